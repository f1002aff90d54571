"""Demotion: a step with `write: back` gets a chunk only when the arena is about to lose it.

The chunks that claims would evict next are kept clean: saved where they are owed before their turn comes.  A burst that
claims more than that share of the arena at once loses what is behind it, which is counted and costs a miss later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kvhub.types import Held, Key

if TYPE_CHECKING:
    from kvhub.hub import Hub
    from kvhub.router import BoundStep

SHARE = 8
"""One slot in so many is kept free or clean."""
LEAST, MOST = 16, 4096
"""Slots; the most bounds how long one look may hold the hub's lock, well under a millisecond."""
AT_ONCE = 64
"""Chunks of one order."""

Save = Callable[["BoundStep", Sequence[tuple[Key, Held]], bool], None]


class Demotions:
    """What each step is owed.  Called under the hub's lock."""

    def __init__(self, hub: Hub, steps: Sequence[BoundStep], save: Save) -> None:
        self._hub = hub
        self._save = save
        self._steps = {step.name: step for step in steps}
        self._owed: dict[str, dict[Key, bool]] = {step.name: {} for step in steps}
        """By step: key -> whether it replaces what is there."""
        self._going = 0
        """Chunks on their way down: as good as clean, but in no queue of the arena."""

    def owe(self, step: BoundStep, chunks: Sequence[tuple[Key, Held]], *, replace: bool) -> None:
        """These chunks are in the arena and, one day, the step's."""
        owed = self._owed[step.name]
        for key, _ in chunks:
            owed.pop(key, None)
            owed[key] = replace
        if len(owed) > self._hub.arena.region.slots:
            self._forget_lost(step.name)
        if self._hub.arena.free < self._window:
            self._hub.wake()

    @property
    def _window(self) -> int:
        return min(max(LEAST, self._hub.arena.region.slots // SHARE), MOST)

    def turn(self) -> None:
        """Save what is about to be lost."""
        short = self._window - self._hub.arena.free - self._going
        if short > 0 and any(self._owed.values()):
            self._demote(self._hub.arena.coldest(short))

    def settled(self, count: int) -> None:
        """So many chunks are down, or failed to go."""
        self._going -= count

    def all(self) -> None:
        """Save everything that is owed: the arena is about to go."""
        for name, owed in self._owed.items():
            self._demote(list(owed))
            self._forget_lost(name)

    def _demote(self, keys: Sequence[Key]) -> None:
        for name, owed in self._owed.items():
            for replace in (False, True):
                due = [key for key in keys if owed.get(key) is replace]
                for at in range(0, len(due), AT_ONCE):
                    self._send(self._steps[name], due[at : at + AT_ONCE], replace)

    def _send(self, step: BoundStep, keys: Sequence[Key], replace: bool) -> None:
        arena, owed, chunks = self._hub.arena, self._owed[step.name], []
        for key in keys:
            slot = arena.lease(key, use=False)
            if slot is not None:
                del owed[key]
                chunks.append((key, arena.held(slot)))
        if chunks:
            self._hub.reports.count("demotions", len(chunks), member=step.name)
            self._going += 0 if replace else len(chunks)
            self._save(step, chunks, replace)
            arena.release([held.slot for _, held in reversed(chunks)], cold=True)

    def _forget_lost(self, name: str) -> None:
        """What the arena has no more cannot be saved."""
        owed = self._owed[name]
        lost = [key for key in owed if key not in self._hub.arena]
        for key in lost:
            del owed[key]
        if lost:
            self._hub.reports.count("demotions_lost", len(lost), member=name)
