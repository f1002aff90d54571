"""`Plan`: which tokens of which slots and blocks; and `Pieces`, the same cut at block borders, without a loop."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from kvhub.errors import MisuseError

Ints = npt.NDArray[np.int64]


def _ints(value: Any) -> Ints:
    try:
        found = np.ascontiguousarray(value)
    except ValueError as error:
        raise MisuseError(f"a plan takes rows of equal length, padded with -1: {error}") from error
    if found.size and not np.issubdtype(found.dtype, np.integer):
        raise MisuseError(f"a plan takes integers, found an array of {found.dtype}")
    return found.astype(np.int64, copy=False)


@attrs.frozen(eq=False)
class Plan:
    """One batch of chunks, as parallel arrays of plain integers; sequences are converted.

    Shapes are checked here (MisuseError), values when the plan meets an arena and an engine.
    """

    slots: Ints = attrs.field(converter=_ints)
    """[n]: the arena's slot of each chunk."""
    blocks: Ints = attrs.field(converter=_ints)
    """[n, blocks per chunk]: engine blocks of each chunk in token order, -1 where there is none."""
    first: Ints = attrs.field(converter=_ints)
    """[n]: first token inside the chunk that is copied."""
    last: Ints = attrs.field(converter=_ints)
    """[n]: one behind the last token that is copied; `first == last` copies nothing."""

    def __attrs_post_init__(self) -> None:
        count = self.slots.shape[0] if self.slots.ndim == 1 else -1
        shapes = {name: getattr(self, name).shape for name in ("slots", "blocks", "first", "last")}
        if count == 0 and not any(getattr(self, name).size for name in shapes):
            return
        columns = (shapes["slots"], shapes["first"], shapes["last"], shapes["blocks"][:1])
        if columns != ((count,),) * 4 or self.blocks.ndim != 2:
            found = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
            raise MisuseError(f"a plan needs slots, first, last of shape [n] and blocks of shape [n, m], found {found}")


@attrs.frozen(eq=False)
class Pieces:
    """Token ranges that lie in one source block and one target block each; all arrays have shape [m]."""

    slot: Ints
    slot_block: Ints
    """Which block of the slot's payload."""
    slot_token: Ints
    """First token inside that block."""
    other: Ints
    """The other side's page: an engine block, or a slot's row when slots are converted into slots."""
    other_block: Ints
    other_token: Ints
    tokens: Ints

    def take(self, mask: npt.NDArray[np.bool_]) -> Pieces:
        return Pieces(*(getattr(self, field.name)[mask] for field in attrs.fields(Pieces)))


def cut(slots: Ints, first: Ints, last: Ints, slot_tokens: int, other_tokens: int) -> tuple[Pieces, Ints]:
    """Pieces of chunks and the row of each piece; `other` holds that row until the caller puts a block there.

    `slot_tokens` and `other_tokens` are the tokens per block on either side.  Cuts at the borders of both.
    """
    end = int(last.max(initial=0))
    borders = np.union1d(np.arange(0, end, slot_tokens), np.arange(0, end, other_tokens)).astype(np.int64)
    starts, ends = borders, np.append(borders[1:], max(end, 0))
    if not len(borders):
        starts = ends = np.zeros(0, dtype=np.int64)
    low = np.maximum(starts[None, :], first[:, None])
    tokens = np.minimum(ends[None, :], last[:, None]) - low
    row, column = np.nonzero(tokens > 0)
    at, count = low[row, column], tokens[row, column]
    row = row.astype(np.int64)
    pieces = Pieces(
        slot=slots[row],
        slot_block=at // slot_tokens,
        slot_token=at % slot_tokens,
        other=row,
        other_block=at // other_tokens,
        other_token=at % other_tokens,
        tokens=count,
    )
    return pieces, row
