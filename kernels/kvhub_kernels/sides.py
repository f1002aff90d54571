"""The two kinds of memory that a copy runs between, both as addresses for the kernels and as views for torch."""

from __future__ import annotations

import attrs
import numpy as np
import torch

from kvhub.layout import Layout
from kvhub_kernels.blocks import EngineBlocks
from kvhub_kernels.plan import Ints
from kvhub_kernels.planes import Plane

_WORDS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}


@attrs.frozen(eq=False)
class Place:
    """Where pieces start on one side: a page, a block inside it (0 for an engine, whose pages are blocks), a token."""

    page: Ints
    block: Ints
    token: Ints


@attrs.frozen(eq=False)
class EngineSide:
    """Engine blocks: every layer at an address of its own."""

    engine: EngineBlocks

    @property
    def layout(self) -> Layout:
        return self.engine.layout

    def pages(self, place: Place) -> Ints:
        """Addresses of whole pages, [pieces, layers]."""
        return self.engine.addresses[None, :] + place.page[:, None] * self.engine.steps[None, :]

    def tokens(self, place: Place, plane: Plane) -> Ints:
        """Addresses of each piece's first token in `plane`, [pieces, layers]."""
        return self.pages(place) + (plane.offset + place.token * plane.token)[:, None]

    def bytes_view(self, layer: int) -> torch.Tensor:
        """[blocks, page] of one layer, in words of 8 bytes where they divide everything."""
        page, step = self.engine.page_bytes, int(self.engine.steps[layer])
        word = 1 if page % 8 else 8
        return _view(self.engine.layers[layer], word, 0, ((self.engine.blocks, step), (page // word, word)))

    def plane_view(self, plane: Plane, layer: int) -> torch.Tensor:
        """[blocks, heads, tokens, dims] of one layer; see `_view` for its dtype."""
        axes = ((self.engine.blocks, int(self.engine.steps[layer])), *_axes(plane, self.layout))
        return _view(self.engine.layers[layer], plane.item, plane.offset, axes)

    def index(self, place: Place) -> tuple[torch.Tensor, ...]:
        return (torch.from_numpy(place.page),)


@attrs.frozen(eq=False)
class SlotSide:
    """Slots of an arena, uint8 [slots, slot bytes]: block after block, each with all layers."""

    arena: torch.Tensor
    layout: Layout

    def _starts(self, place: Place) -> Ints:
        step = self.arena.stride(0)
        found: Ints = self.arena.data_ptr() + place.page * step + place.block * self.layout.block_bytes
        return found

    def pages(self, place: Place) -> Ints:
        steps = np.arange(self.layout.layers, dtype=np.int64) * (self.layout.block_bytes // self.layout.layers)
        return self._starts(place)[:, None] + steps[None, :]

    def tokens(self, place: Place, plane: Plane) -> Ints:
        layers = np.arange(self.layout.layers, dtype=np.int64) * plane.layer
        return (self._starts(place) + plane.offset + place.token * plane.token)[:, None] + layers[None, :]

    def _outer(self) -> tuple[tuple[int, int], tuple[int, int]]:
        blocks = int(self.arena.shape[1]) // self.layout.block_bytes
        return (int(self.arena.shape[0]), self.arena.stride(0)), (blocks, self.layout.block_bytes)

    def bytes_view(self, layer: int) -> torch.Tensor:
        """[slots, blocks, page] of one layer, in words of 8 bytes where they divide everything."""
        page = self.layout.block_bytes // self.layout.layers
        word = 1 if page % 8 else 8
        return _view(self.arena, word, layer * page, (*self._outer(), (page // word, word)))

    def plane_view(self, plane: Plane, layer: int) -> torch.Tensor:
        """[slots, blocks, heads, tokens, dims] of one layer; see `_view` for its dtype."""
        axes = (*self._outer(), *_axes(plane, self.layout))
        return _view(self.arena, plane.item, plane.offset + layer * plane.layer, axes)

    def index(self, place: Place) -> tuple[torch.Tensor, ...]:
        return torch.from_numpy(place.page), torch.from_numpy(place.block)


Side = EngineSide | SlotSide


def _axes(plane: Plane, layout: Layout) -> tuple[tuple[int, int], ...]:
    return (plane.heads, plane.head), (layout.block_tokens, plane.token), (plane.dims, plane.dim)


def _view(memory: torch.Tensor, item: int, offset: int, axes: tuple[tuple[int, int], ...]) -> torch.Tensor:
    """`memory` seen with (size, byte stride) axes: integers of `item` bytes, or, where something is not aligned to
    them, bytes with one more axis of `item`."""
    offset += memory.storage_offset() * memory.element_size()
    sizes, strides = zip(*axes, strict=True)
    storage = memory.untyped_storage()
    if any(number % item for number in (storage.data_ptr(), offset, *strides)):
        sizes, strides, item = (*sizes, item), (*strides, 1), 1
    view = torch.empty(0, dtype=_WORDS[item], device=memory.device)
    return view.set_(storage, offset // item, sizes, tuple(stride // item for stride in strides))
