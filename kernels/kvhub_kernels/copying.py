"""`gather`, `scatter`, `convert`: check a plan against the memory it names, cut it, and hand it to one kernel call."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import attrs
import numpy as np
import numpy.typing as npt
import torch

from kvhub.errors import LayoutError, MisuseError
from kvhub.layout import Layout
from kvhub_kernels import cpu_native, cpu_torch
from kvhub_kernels.blocks import EngineBlocks
from kvhub_kernels.plan import Ints, Pieces, Plan, cut
from kvhub_kernels.planes import planes
from kvhub_kernels.sides import EngineSide, Place, Side, SlotSide

native: bool = cpu_native.available
"""Whether the compiled copy is in use on CPUs; without it the same calls go through torch, at a lower speed."""


def gather(engine: EngineBlocks, arena: torch.Tensor, plan: Plan, *, threads: int = 1) -> int:
    """Engine blocks to slots, all layers, in one call.  Returns the bytes copied.

    `arena`: uint8 [slots, slot_bytes], see `arena_tensor`.  Only tokens [first, last) of each chunk are written; every
    other byte of a slot stays as it was.  On a CPU the bytes are there when this returns, and the GIL is free
    meanwhile; on CUDA the copy is queued on the current stream.

    Raises LayoutError for a partial block of an opaque layout, and MisuseError for a plan that names slots, blocks or
    tokens that are not there; nothing is copied then.
    """
    pieces = _cut(engine, arena, plan, engine.layout)
    inside, outside = _places(pieces)
    return _run(EngineSide(engine), inside, SlotSide(arena, engine.layout), outside, pieces, threads)


def scatter(
    engine: EngineBlocks, arena: torch.Tensor, plan: Plan, source: Layout | None = None, *, threads: int = 1
) -> int:
    """Slots to engine blocks, all layers, in one call; converts where `source`, the payload's layout, is another than
    the engine's (its blocks may have another number of tokens too).  Returns the bytes copied.

    Only tokens [first, last) of each chunk are written; every other byte of an engine block stays as it was.  Raises as
    `gather` does, and LayoutError for a payload that cannot be converted.
    """
    layout = engine.layout if source is None else source
    require_convertible(layout, engine.layout)
    pieces = _cut(engine, arena, plan, layout)
    inside, outside = _places(pieces)
    return _run(SlotSide(arena, layout), outside, EngineSide(engine), inside, pieces, threads)


def convert(
    source: Layout,
    target: Layout,
    src: torch.Tensor,
    dst: torch.Tensor,
    tokens: int | Sequence[int] | None = None,
    *,
    threads: int = 1,
) -> int:
    """Payloads in one layout to payloads in another, uint8 [n, bytes] each, row by row.  Returns the bytes copied.

    `tokens`: how many tokens each row holds; by default as many as its whole blocks do.  Raises LayoutError for
    layouts that cannot be converted and MisuseError for rows that are too short.
    """
    require_convertible(source, target)
    _check_arena(src, "src")
    _check_arena(dst, "dst")
    rows = int(src.shape[0])
    if rows != int(dst.shape[0]) or src.device != dst.device:
        raise MisuseError(
            f"convert needs as many rows in dst as in src, on one device, found {tuple(dst.shape)} on "
            f"{dst.device} and {tuple(src.shape)} on {src.device}"
        )
    if tokens is None:
        tokens = int(src.shape[1]) // source.block_bytes * source.block_tokens
    last = np.broadcast_to(np.asarray(tokens, dtype=np.int64), (rows,))
    first = np.zeros(rows, dtype=np.int64)
    _check_room(src, source, last, "src")
    _check_room(dst, target, last, "dst")
    pieces, _ = cut(np.arange(rows, dtype=np.int64), first, last, source.block_tokens, target.block_tokens)
    here = Place(pieces.slot, pieces.slot_block, pieces.slot_token)
    there = Place(pieces.other, pieces.other_block, pieces.other_token)
    return _run(SlotSide(src, source), here, SlotSide(dst, target), there, pieces, threads)


def require_convertible(source: Layout, target: Layout) -> None:
    """Raise LayoutError unless a payload in `source` can be brought into `target`."""
    if source == target or source.same_content(target):
        return
    differ = [
        f"{field.name} {getattr(source, field.name)!r} and {getattr(target, field.name)!r}"
        for field in attrs.fields(Layout)
        if getattr(source, field.name) != getattr(target, field.name)
    ]
    raise LayoutError(
        f"a payload cannot be converted to the engine's layout, they differ in {', '.join(differ)}; "
        "treat the chunk as a miss, and give engines that cannot share KV different namespaces"
    )


def _cut(engine: EngineBlocks, arena: torch.Tensor, plan: Plan, layout: Layout) -> Pieces:
    """Pieces whose `other` is an engine block, after every check."""
    _check_arena(arena, "arena")
    if not len(plan.slots):
        empty = np.zeros(0, dtype=np.int64)
        return Pieces(*(empty for _ in range(7)))
    chunk = plan.blocks.shape[1] * engine.layout.block_tokens
    if plan.slots.min() < 0 or plan.slots.max() >= arena.shape[0]:
        raise MisuseError(
            f"the plan names slots {plan.slots.min()} to {plan.slots.max()} where the arena has "
            f"0 to {arena.shape[0] - 1}"
        )
    if (plan.first < 0).any() or (plan.first > plan.last).any() or (plan.last > chunk).any():
        raise MisuseError(
            f"a plan's token ranges must run forward inside [0, {chunk}), found first {plan.first.min()} to "
            f"{plan.first.max()}, last {plan.last.min()} to {plan.last.max()}"
        )
    _check_room(arena, layout, plan.last, "arena")
    pieces, row = cut(plan.slots, plan.first, plan.last, layout.block_tokens, engine.layout.block_tokens)
    blocks = plan.blocks[row, pieces.other_block]
    if blocks.size and (blocks.min() < 0 or blocks.max() >= engine.blocks):
        raise MisuseError(
            f"the plan copies tokens of engine blocks {blocks.min()} to {blocks.max()} where there are "
            f"0 to {engine.blocks - 1}; give every block of [first, last) its number"
        )
    return attrs.evolve(pieces, other=blocks, other_block=np.zeros_like(blocks))


def _places(pieces: Pieces) -> tuple[Place, Place]:
    return (
        Place(pieces.other, pieces.other_block, pieces.other_token),
        Place(pieces.slot, pieces.slot_block, pieces.slot_token),
    )


def _check_arena(arena: torch.Tensor, name: str) -> None:
    if arena.dtype != torch.uint8 or arena.dim() != 2 or (arena.shape[1] > 1 and arena.stride(1) != 1):
        raise MisuseError(
            f"{name} must be uint8 [slots, slot_bytes] with contiguous slots, found {arena.dtype} "
            f"{tuple(arena.shape)} with strides {arena.stride()}"
        )


def _check_room(arena: torch.Tensor, layout: Layout, last: Ints, name: str) -> None:
    end = int(last.max(initial=0))
    if layout.payload_bytes(end) > arena.shape[1]:
        raise MisuseError(
            f"{name} has slots of {arena.shape[1]} bytes, and {end} tokens take {layout.payload_bytes(end)} in the "
            "layout of the payload; copy fewer tokens or make the slots larger"
        )


def _run(source: Side, at: Place, target: Side, to: Place, pieces: Pieces, threads: int) -> int:
    if not len(pieces.tokens):
        return 0
    kernel = _kernel(source, target)
    layout = target.layout
    moved = 0
    whole = np.zeros(len(pieces.tokens), dtype=np.bool_)
    if source.layout == layout and (not layout.cuttable or layout.key_order.startswith("l")):
        whole = pieces.tokens == layout.block_tokens
    if not layout.cuttable and not whole.all():
        raise LayoutError(
            f"{int((~whole).sum())} of {len(whole)} blocks would be copied in part, and the layout "
            f"{layout.tag or 'without a tag'!r} is opaque: copy whole blocks of {layout.block_tokens} tokens only"
        )
    if whole.any():
        kernel.copy(source, _pick(at, whole), target, _pick(to, whole), threads)
        moved += int(whole.sum()) * layout.block_bytes
    if not whole.all():
        part = ~whole
        kernel.move(source, _pick(at, part), target, _pick(to, part), pieces.tokens[part], threads)
        row = sum(plane.heads * plane.dims * plane.item for plane in planes(layout)) * layout.layers
        moved += int(pieces.tokens[part].sum()) * row
    return moved


def _pick(place: Place, mask: npt.NDArray[np.bool_]) -> Place:
    return place if mask.all() else Place(place.page[mask], place.block[mask], place.token[mask])


def _kernel(source: Side, target: Side) -> ModuleType:
    if "cuda" in (_device(source).type, _device(target).type):
        from kvhub_kernels import cuda_triton

        for side in (source, target):
            cuda_triton.require_reachable(side)
        return cuda_triton
    return cpu_native if native else cpu_torch


def _device(side: Side) -> torch.device:
    return side.engine.device if isinstance(side, EngineSide) else side.arena.device
