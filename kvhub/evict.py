"""Which chunk makes room: the policies of the host tier, by name.

A policy sees slots, not bytes, and only those that hold a ready chunk.  The arena's lock guards it; every call is O(1),
amortised.  A chunk that is leased stands in no queue, so nothing is ever searched for one that may go.
"""

from __future__ import annotations

import abc
from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice


class Policy(abc.ABC):
    """The order in which idle chunks go."""

    @abc.abstractmethod
    def added(self, slot: int, key: bytes) -> None:
        """A chunk became ready; it is leased by whoever filled it."""

    @abc.abstractmethod
    def leased(self, touched: Sequence[int], fresh: Sequence[int]) -> None:
        """Chunks in `touched` were used; those in `fresh` were idle and are not any more."""

    @abc.abstractmethod
    def idle(self, slot: int, *, cold: bool = False) -> None:
        """The last lease of a chunk that stays has ended; `cold`: that lease was no use, it may go first."""

    @abc.abstractmethod
    def removed(self, slot: int) -> None:
        """A chunk was taken out of the index, idle or not."""

    @abc.abstractmethod
    def victim(self) -> int:
        """Take the idle chunk that is to go out of the queues; its slot.  There is one: the arena counts."""

    @abc.abstractmethod
    def coldest(self, count: int) -> list[int]:
        """Up to `count` idle slots in the order in which `victim` would take them if nothing were used meanwhile."""


class Lru(Policy):
    """The one whose last use ended longest ago."""

    def __init__(self, slots: int) -> None:
        self._queue: OrderedDict[int, None] = OrderedDict()

    def added(self, slot: int, key: bytes) -> None:
        pass

    def leased(self, touched: Sequence[int], fresh: Sequence[int]) -> None:
        queue = self._queue
        for slot in fresh:
            del queue[slot]

    def idle(self, slot: int, *, cold: bool = False) -> None:
        self._queue[slot] = None
        if cold:
            self._queue.move_to_end(slot, last=False)

    def removed(self, slot: int) -> None:
        self._queue.pop(slot, None)

    def victim(self) -> int:
        return self._queue.popitem(last=False)[0]

    def coldest(self, count: int) -> list[int]:
        return list(islice(self._queue, count))


class S3Fifo(Policy):
    """S3-FIFO (Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023).

    New chunks stand in a small queue, a tenth of the slots.  Whoever leaves it without having been used goes, and its
    key is remembered; the others move to the main queue, as does a chunk that comes back while its key is remembered.
    The main queue lets a chunk go round once more for each use, three at most.  So a prompt that is seen once passes
    through the tenth and leaves the rest alone.

    One difference: a chunk leaves its queue while it is leased and comes back at the end.
    """

    SMALL, MAIN = 0, 1
    MOST_USES = 3

    def __init__(self, slots: int) -> None:
        self._queues: tuple[OrderedDict[int, None], ...] = (OrderedDict(), OrderedDict())
        self._small = max(1, slots // 10)
        self._most_ghosts = slots
        self._ghosts: OrderedDict[bytes, None] = OrderedDict()
        self._uses = bytearray(slots)
        self._stage = bytearray(slots)
        self._keys: list[bytes] = [b""] * slots

    def added(self, slot: int, key: bytes) -> None:
        known = key in self._ghosts
        if known:
            del self._ghosts[key]
        self._stage[slot] = self.MAIN if known else self.SMALL
        self._uses[slot] = 0
        self._keys[slot] = key

    def leased(self, touched: Sequence[int], fresh: Sequence[int]) -> None:
        uses, stage, queues = self._uses, self._stage, self._queues
        for slot in touched:
            if uses[slot] < self.MOST_USES:
                uses[slot] += 1
        for slot in fresh:
            del queues[stage[slot]][slot]

    def idle(self, slot: int, *, cold: bool = False) -> None:
        queue = self._queues[self._stage[slot]]
        queue[slot] = None
        if cold:
            queue.move_to_end(slot, last=False)

    def removed(self, slot: int) -> None:
        self._queues[self._stage[slot]].pop(slot, None)

    def victim(self) -> int:
        small, main = self._queues
        uses = self._uses
        while True:
            if len(small) > self._small or not main:
                slot = small.popitem(last=False)[0]
                if not uses[slot]:
                    self._remember(self._keys[slot])
                    return slot
                uses[slot] = 0
                self._stage[slot] = self.MAIN
                main[slot] = None
            else:
                slot = main.popitem(last=False)[0]
                if not uses[slot]:
                    return slot
                uses[slot] -= 1
                main[slot] = None

    def coldest(self, count: int) -> list[int]:
        """Those that no use keeps: of the small queue what is above its share, of the main queue, then the rest."""
        small, main = self._queues
        over = max(0, len(small) - self._small)
        unused = (slot for queue in (islice(small, over), main, islice(small, over, None)) for slot in queue)
        return list(islice((slot for slot in unused if not self._uses[slot]), count))

    def _remember(self, key: bytes) -> None:
        self._ghosts[key] = None
        if len(self._ghosts) > self._most_ghosts:
            self._ghosts.popitem(last=False)


POLICIES: dict[str, type[Lru] | type[S3Fifo]] = {"lru": Lru, "s3fifo": S3Fifo}
