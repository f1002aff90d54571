"""What goes from a session to the engine's worker once per step, and what comes back: plain numbers, ready to be sent.

The worker maps the arena by its name and copies between slots and engine blocks.  It knows no keys and no members.
"""

from __future__ import annotations

import attrs


@attrs.frozen
class Copy:
    """Chunks to copy, as parallel tuples: chunk i lies in `slots[i]` and in the engine blocks `blocks[i]`.

    `blocks[i]` names every block of the chunk in order, -1 where the request has none.  Only the tokens
    `first[i]` to `last[i]` (exclusive) of the chunk may be touched.
    """

    id: int
    request: str
    slots: tuple[int, ...]
    blocks: tuple[tuple[int, ...], ...]
    first: tuple[int, ...]
    last: tuple[int, ...]
    layouts: tuple[str, ...] | None = None
    """Layout text of each slot, "" for the engine's own; None means that all are its own."""


@attrs.frozen
class Load:
    """A copy from slots to blocks that a request waits for; it is received when the copy has ended, come what may."""

    copy: Copy
    failed: tuple[int, ...] = ()
    """Engine blocks that the engine expected to be loaded and that will not be: it has to compute them."""


@attrs.frozen
class StepPlan:
    """One step's work."""

    arena: str
    slots: int
    slot_bytes: int
    gathers: tuple[Copy, ...] = ()
    """Blocks to slots, to be read after this step's forward pass."""
    loads: tuple[Load, ...] = ()
    fences: tuple[int, ...] = ()
    """Gathers that must have ended before this step's forward pass: their blocks have a new owner."""
    closing: dict[str, tuple[int, ...]] = attrs.field(factory=dict)
    """Requests that ended, with the gathers after which their blocks are free."""
    idle: bool = False
    """Nothing is computed in this step: the worker may rest while a load is under way."""


@attrs.frozen
class Report:
    """Numbers of copies that ended, well or not."""

    done: tuple[int, ...] = ()
    failed: tuple[int, ...] = ()
