"""Sinks: saving ready chunks to the stores of a route, in the background, bounded, in the route's order."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvhub.types import Completion, Held, Key, Op

if TYPE_CHECKING:
    from kvhub.hub import Hub
    from kvhub.router import BoundStep

MOST_REMEMBERED = 262144


class Sinks:
    """Called under the hub's lock."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._steps = tuple(step for step in hub.route.store if not step.is_arena and not step.is_transport)
        self._counting = any(step.uses > 1 for step in self._steps)
        self._uses: OrderedDict[tuple[str, Key], int] = OrderedDict()
        self._owed: OrderedDict[Key, set[str]] = OrderedDict()
        self._write_back = hub.route.write_back

    def save(self, chunks: Sequence[tuple[Key, Held]], *, replace: bool = False) -> None:
        """Chunks that this engine made, or that a peer sent, became ready; each has a lease of the caller's."""
        wanted = [(key, held) for key, held in chunks if self._wanted(held)]
        for step in self._steps:
            self._save(step, [chunk for chunk in wanted if self._due(step, chunk[0], replace)], replace)

    def arrived(self, chunks: Sequence[tuple[Key, Held]], origin: str) -> None:
        """Chunks came from `origin`: a peer's go to every store of the route, a store's only where it promotes to."""
        for source in self._hub.route.retrieve:
            if source.name != origin:
                continue
            if source.is_transport:
                self.save(chunks)
            for step in self._steps:
                if step.name in source.promote:
                    self._save(step, chunks, False)

    def seen(self, key: Key) -> None:
        """A chunk that is in the arena was computed or asked for again: store what a sink still lacks of it."""
        if not self._counting and key not in self._owed:
            return
        slot = self._hub.arena.lease(key)
        if slot is None:
            return
        held = self._hub.arena.held(slot)
        if self._wanted(held):
            for step in self._steps:
                if step.name in self._owed.get(key, ()) or (step.uses > 1 and self._due(step, key, False)):
                    self._save(step, [(key, held)], False)
        self._hub.arena.release((slot,))

    def _wanted(self, held: Held) -> bool:
        return ("generated" if held.generated else "prompt") in self._write_back

    def _due(self, step: BoundStep, key: Key, replace: bool) -> bool:
        """Count a use of `key` for a step that wants chunks used more than once; whether it is due there now."""
        if step.uses <= 1 or replace:
            return True
        uses = self._uses[step.name, key] = self._uses.pop((step.name, key), 0) + 1
        while len(self._uses) > MOST_REMEMBERED:
            self._uses.popitem(last=False)
        return uses == step.uses

    def _save(self, step: BoundStep, chunks: Sequence[tuple[Key, Held]], replace: bool) -> None:
        if not chunks:
            return
        keys = [key for key, _ in chunks]
        slots = [held.slot for _, held in chunks]
        for slot in slots:
            self._hub.arena.add_lease(slot)
        self._hub.order(
            step.name, Op.SAVE, keys, slots=slots, lengths=[held.length for _, held in chunks], seconds=step.deadline,
            layouts=tuple(held.layout for _, held in chunks) if any(held.layout for _, held in chunks) else None,
            generated=tuple(held.generated for _, held in chunks), replace=replace,
            done=lambda completion: self._saved(keys, step.name, completion),
            settled=lambda: self._hub.arena.release(slots),
        )  # fmt: skip

    def _saved(self, keys: Sequence[Key], name: str, completion: Completion) -> None:
        for key, outcome in zip(keys, completion.outcomes, strict=True):
            owed = self._owed.setdefault(key, set())
            if outcome.good:
                owed.discard(name)
            else:
                owed.add(name)
            if not owed:
                del self._owed[key]
        while len(self._owed) > MOST_REMEMBERED:
            self._owed.popitem(last=False)
