"""Sinks: saving ready chunks to the stores of a route, in the background, bounded, in the route's order."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvhub.demotion import Demotions
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
        self.numbered = any(step.prefix_chunks for step in self._steps)
        """Whether it matters which chunk of its prompt a chunk is."""
        self._uses: OrderedDict[tuple[str, Key], int] = OrderedDict()
        self._owed: OrderedDict[Key, set[str]] = OrderedDict()
        self._replacing: dict[tuple[str, Key], list[Held]] = {}
        self._write_back = hub.route.write_back
        back = [step for step in self._steps if step.back]
        self.demotes = bool(back)
        """Whether some step waits for what the arena is about to lose."""
        self._demotions = Demotions(hub, back, self._demote)

    def save(self, chunks: Sequence[tuple[Key, Held]], *, replace: bool = False) -> None:
        """Chunks that this engine made, or that a peer sent, became ready; each has a lease of the caller's."""
        for step in self._steps:
            wanted = [(key, held) for key, held in chunks if self._wanted(step, held)]
            if not replace:
                wanted = [chunk for chunk in wanted if self._due(step, chunk[0])]
            if step.back:
                self._demotions.owe(step, wanted, replace=replace)
            else:
                self._put(step, wanted, replace)

    def _put(self, step: BoundStep, chunks: Sequence[tuple[Key, Held]], replace: bool) -> None:
        if not replace:
            self._save(step, chunks)
            return
        for key, held in chunks:
            self._replace(step, key, held)

    def _demote(self, step: BoundStep, chunks: Sequence[tuple[Key, Held]], replace: bool) -> None:
        if replace:
            self._put(step, chunks, replace)
        else:
            self._save(step, chunks, cold=True)

    def demote(self, *, everything: bool = False) -> None:
        """Save what the arena is about to lose; `everything` when it is about to go itself."""
        if everything:
            self._demotions.all()
        else:
            self._demotions.turn()

    def arrived(self, chunks: Sequence[tuple[Key, Held]], origin: str) -> None:
        """Chunks came from `origin`: a peer's go to every store of the route, a store's only where it promotes to."""
        for source in self._hub.route.retrieve:
            if source.name != origin:
                continue
            if source.is_transport:
                self.save(chunks)
            for step in self._hub.route.promotions:
                if step.name in source.promote:
                    self._save(step, chunks)

    def seen(self, keys: Sequence[Key]) -> None:
        """Chunks in the arena were computed or asked for again: store what a sink still lacks, in one order each."""
        if not self._counting:
            keys = [key for key in keys if key in self._owed]
        chunks = []
        for key in keys:
            slot = self._hub.arena.lease(key, use=False)
            if slot is not None:
                chunks.append((key, self._hub.arena.held(slot)))
        for step in self._steps:
            lacking = [c for c in chunks if self._wanted(step, c[1]) and self._lacks(step, c[0])]
            if step.back:
                self._demotions.owe(step, lacking, replace=False)
            else:
                self._save(step, lacking)
        self._hub.arena.release([held.slot for _, held in chunks])

    def _lacks(self, step: BoundStep, key: Key) -> bool:
        return step.name in self._owed.get(key, ()) or (step.uses > 1 and self._due(step, key))

    def _wanted(self, step: BoundStep, held: Held) -> bool:
        part = "generated" if held.generated else "prompt"
        if part not in self._write_back or (step.part and step.part != part):
            return False
        return not step.prefix_chunks or 0 <= held.number < step.prefix_chunks

    def _replace(self, step: BoundStep, key: Key, held: Held) -> None:
        """Save a tail: one order per key at a time, since two under way may land in either order; the latest waits."""
        busy = self._replacing.get((step.name, key))
        if busy is None:
            self._replacing[step.name, key] = []
            self._save(step, [(key, held)], replace=True)
            return
        self._hub.arena.add_lease(held.slot)
        self._hub.arena.release([waiting.slot for waiting in busy])
        busy[:] = [held]

    def waiting(self) -> bool:
        """Whether a tail waits for an older one under the same key to be saved."""
        return any(self._replacing.values())

    def _replaced(self, step: BoundStep, key: Key) -> None:
        waiting = self._replacing.pop((step.name, key), [])
        for held in waiting:
            self._replace(step, key, held)
            self._hub.arena.release((held.slot,))

    def _due(self, step: BoundStep, key: Key) -> bool:
        """Count a use of `key` for a step that wants chunks used more than once; whether it is due there now."""
        if step.uses <= 1:
            return True
        uses = self._uses.pop((step.name, key), 0) + 1
        self._uses[step.name, key] = uses
        while len(self._uses) > MOST_REMEMBERED:
            self._uses.popitem(last=False)
        return bool(uses == step.uses)

    def _save(
        self, step: BoundStep, chunks: Sequence[tuple[Key, Held]], *, replace: bool = False, cold: bool = False
    ) -> None:
        """One order; `cold` chunks are as near to being evicted after it as they were before."""
        if not chunks:
            return
        keys = [key for key, _ in chunks]
        slots = [held.slot for _, held in chunks]
        for slot in slots:
            self._hub.arena.add_lease(slot)

        def settled() -> None:
            self._hub.arena.release(reversed(slots), cold=cold)
            if cold:
                self._demotions.settled(len(slots))
            if replace:
                self._replaced(step, keys[0])

        self._hub.orders.send(
            step.name,
            Op.SAVE,
            keys,
            slots=slots,
            lengths=[held.length for _, held in chunks],
            seconds=step.deadline,
            layouts=tuple(held.layout for _, held in chunks) if any(held.layout for _, held in chunks) else None,
            generated=tuple(held.generated for _, held in chunks),
            tenants=tuple(held.tenant for _, held in chunks) if any(held.tenant for _, held in chunks) else None,
            replace=replace,
            done=lambda completion: self._saved(keys, step.name, completion),
            settled=settled,
        )

    def _saved(self, keys: Sequence[Key], name: str, completion: Completion) -> None:
        for key, outcome in zip(keys, completion.outcomes, strict=True):
            owed = self._owed.setdefault(key, set())
            if outcome.good:
                owed.discard(name)
                self._hub.orders.trust(name, key)
            else:
                owed.add(name)
            if not owed:
                del self._owed[key]
        while len(self._owed) > MOST_REMEMBERED:
            self._owed.popitem(last=False)
