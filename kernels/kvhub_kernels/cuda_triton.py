"""The copy on CUDA devices: Triton kernels over the same addresses as the compiled copy on CPUs.

Imported only when a tensor lies on a CUDA device, since it needs Triton.  Layers may be separate allocations and slots
may lie in pinned host memory, because the kernels take addresses: under unified addressing a pinned or registered host
page has the same address on the device.  Copies are queued on the current stream; wait for it before a slot is
published.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from kvhub.errors import LayoutError, PluginError
from kvhub_kernels.cpu_native import moves
from kvhub_kernels.plan import Ints
from kvhub_kernels.sides import EngineSide, Place, Side

try:
    import triton
    import triton.language as tl
except ImportError as error:
    raise PluginError(
        "copying KV of a CUDA device needs Triton, which is not installed; run: pip install 'kvhub-kernels[cuda]'"
    ) from error

_WORDS: dict[int, Any] = {8: tl.int64, 4: tl.int32, 2: tl.int16, 1: tl.int8}
_RUN = 1024
"""Words that one program copies of a page: 8 KiB, enough for whole bursts over PCIe."""
_TOKENS, _DIMS = 32, 64


@triton.jit  # type: ignore[untyped-decorator]
def _copy_pages(src, dst, words, WORD: tl.constexpr, RUN: tl.constexpr):  # type: ignore[no-untyped-def]
    job = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * RUN + tl.arange(0, RUN)
    inside = at < words
    read = tl.load(src + job).to(tl.pointer_type(WORD))
    write = tl.load(dst + job).to(tl.pointer_type(WORD))
    tl.store(write + at, tl.load(read + at, mask=inside), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _move_tokens(  # type: ignore[no-untyped-def]
    src, dst, tokens, dims,
    SRC_H: tl.constexpr, SRC_T: tl.constexpr, SRC_D: tl.constexpr,
    DST_H: tl.constexpr, DST_T: tl.constexpr, DST_D: tl.constexpr,
    WORD: tl.constexpr, TOKENS: tl.constexpr, DIMS: tl.constexpr,
):  # fmt: skip
    job = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    tiles = tl.cdiv(dims, DIMS)
    t = (tl.program_id(2) // tiles) * TOKENS + tl.arange(0, TOKENS)
    d = (tl.program_id(2) % tiles) * DIMS + tl.arange(0, DIMS)
    inside = (t < tl.load(tokens + job))[:, None] & (d < dims)[None, :]
    read = tl.load(src + job).to(tl.pointer_type(WORD)) + head * SRC_H
    write = tl.load(dst + job).to(tl.pointer_type(WORD)) + head * DST_H
    numbers = tl.load(read + t[:, None] * SRC_T + d[None, :] * SRC_D, mask=inside)
    tl.store(write + t[:, None] * DST_T + d[None, :] * DST_D, numbers, mask=inside)


def require_reachable(side: Side) -> None:
    """Raise LayoutError for host memory that a CUDA device cannot address."""
    memory = side.engine.layers[0] if isinstance(side, EngineSide) else side.arena
    if memory.device.type == "cuda" or memory.is_pinned():
        return
    raise LayoutError(
        f"{memory.numel() * memory.element_size()} bytes of host memory are not pinned, and a CUDA device cannot copy "
        "to or from them; register the arena once with torch.cuda.cudart().cudaHostRegister(address, bytes, 0)"
    )


def copy(source: Side, at: Place, target: Side, to: Place, threads: int) -> None:
    """Whole blocks of one layout, every layer.  `threads` has no meaning here."""
    src, dst = source.pages(at).reshape(-1), target.pages(to).reshape(-1)
    page = target.layout.block_bytes // target.layout.layers
    word = next(size for size in (8, 4, 2, 1) if page % size == 0 and _aligned(src, dst, size))
    device = _device(source, target)
    grid = (src.size, triton.cdiv(page // word, _RUN))
    _copy_pages[grid](_there(src, device), _there(dst, device), page // word, _WORDS[word], _RUN)


def move(source: Side, at: Place, target: Side, to: Place, tokens: Ints, threads: int) -> None:
    """Token ranges, from any order of axes to any; one launch for keys and one for values."""
    src, dst, walks = moves(source, at, target, to)
    device = _device(source, target)
    count = np.repeat(tokens, target.layout.layers)
    held = _there(count, device)
    for index, (heads, dims, item, *strides) in enumerate(walks.tolist()):
        read, write = src[..., index].reshape(-1), dst[..., index].reshape(-1)
        if not _aligned(read, write, item):
            raise LayoutError(
                f"KV on a CUDA device must be aligned to its items of {item} bytes; align blocks and slots"
            )
        tiles = triton.cdiv(int(tokens.max()), _TOKENS) * triton.cdiv(dims, _DIMS)
        steps = [stride // item for stride in strides]
        grid = (read.size, heads, tiles)
        _move_tokens[grid](
            _there(read, device), _there(write, device), held, dims, *steps, _WORDS[item], _TOKENS, _DIMS
        )


def _aligned(src: Ints, dst: Ints, size: int) -> bool:
    return not ((src | dst) % size).any()


def _device(source: Side, target: Side) -> torch.device:
    for side in (source, target):
        device = side.engine.device if isinstance(side, EngineSide) else side.arena.device
        if device.type == "cuda":
            return device
    return torch.device("cpu")


def _there(numbers: Ints, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(numbers)).to(device, non_blocking=True)
