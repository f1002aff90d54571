"""The copy without a compiler: torch's own indexing, a few calls per layer, correct on any device that torch has."""

from __future__ import annotations

import numpy as np
import torch

from kvhub_kernels.plan import Ints
from kvhub_kernels.planes import planes
from kvhub_kernels.sides import Place, Side


def copy(source: Side, at: Place, target: Side, to: Place, threads: int) -> None:
    """Whole blocks of one layout, every layer.  `threads` is torch's own affair here."""
    here, there = source.index(at), target.index(to)
    for layer in range(target.layout.layers):
        goal, pages = _alike(target.bytes_view(layer), source.bytes_view(layer))
        goal[there] = pages[here]


def move(source: Side, at: Place, target: Side, to: Place, tokens: Ints, threads: int) -> None:
    """Token ranges, from any order of axes to any."""
    here, first = _every_token(at, tokens)
    there, second = _every_token(to, tokens)
    heads = slice(None)
    pairs = list(zip(planes(source.layout), planes(target.layout), strict=True))
    for layer in range(target.layout.layers):
        for plane, aim in pairs:
            goal, numbers = _alike(target.plane_view(aim, layer), source.plane_view(plane, layer))
            goal[(*target.index(there), heads, second)] = numbers[(*source.index(here), heads, first)]


def _every_token(place: Place, tokens: Ints) -> tuple[Place, torch.Tensor]:
    rest = np.arange(int(tokens.sum()), dtype=np.int64) - np.repeat(np.cumsum(tokens) - tokens, tokens)
    each = Place(*(np.repeat(array, tokens) for array in (place.page, place.block, place.token)))
    return each, torch.from_numpy(each.token + rest)


def _alike(one: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both as bytes if one side is not aligned to its items and is seen as bytes already."""
    return (one, other) if one.dtype == other.dtype else (_as_bytes(one), _as_bytes(other))


def _as_bytes(numbers: torch.Tensor) -> torch.Tensor:
    if numbers.dtype == torch.uint8:
        return numbers
    item = numbers.element_size()
    view = torch.empty(0, dtype=torch.uint8, device=numbers.device)
    strides = (*(stride * item for stride in numbers.stride()), 1)
    return view.set_(numbers.untyped_storage(), numbers.storage_offset() * item, (*numbers.shape, item), strides)
