"""`Walk`: through all shards, each under a lease, so that several sweepers share the work."""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import socket
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import attrs

from kvhub.pool.medium import SHARDS, Entry, Medium
from kvhub.pool.pace import Pace
from kvhub.pool.tally import Notes, Tally

LEASE_SECONDS = 60.0
"""After a sweeper died, its shard waits this long for another."""
RENEW_SECONDS = 15.0
BUSY_SECONDS = 0.5
BATCH = 500
AHEAD = 32
"""Chunks that are asked about before the first of them is done with."""
_NOTHING = memoryview(bytearray())


@attrs.define
class Removed:
    """What a sweep took away, or in a dry run would have."""

    chunks: int = 0
    bytes: int = 0

    def add(self, chunks: int, size: int) -> None:
        self.chunks += chunks
        self.bytes += size


class Walk:
    """One process's way through a pool.  Not thread-safe."""

    def __init__(self, medium: Medium, pace: Pace, *, lease: str = "sweep", dry: bool = False) -> None:
        self.medium, self.pace, self.dry = medium, pace, dry
        self.notes = Notes(medium)
        self.holder = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self.removed = Removed()
        self.seen = 0
        self.spaces = [space.id for space in medium.spaces()]
        """Every namespace that has a place in the pool."""
        self._lease = lease
        self._renewed = 0.0

    def shards(self, done: Callable[[str], bool] = lambda shard: False) -> Generator[str, None, None]:
        """Every shard that is not `done`, once and leased, from a random one on; those that others hold come last.

        `done` is asked just before, so what another sweeper has done meanwhile can be left out.  Raises Stopped.
        """
        first = random.randrange(len(SHARDS))
        waiting = deque(SHARDS[first:] + SHARDS[:first])
        busy = 0
        while waiting:
            self.pace.check()
            shard = waiting.popleft()
            if done(shard):
                continue
            if not self._claim(shard):
                waiting.append(shard)
                busy += 1
                if busy >= len(waiting):
                    busy = 0
                    self.pace.sleep(BUSY_SECONDS)
                continue
            busy = 0
            try:
                yield shard
            finally:
                with contextlib.suppress(OSError):
                    if not self.dry:
                        self.medium.release(f"{self._lease}-{shard}", self.holder)

    def sweep(
        self,
        space: str,
        shard: str,
        choose: Callable[[Entry], bool] = lambda entry: False,
        *,
        ahead: ThreadPoolExecutor | None = None,
    ) -> Tally:
        """Remove the chosen chunks of a leased shard; what remains.  Raises Stopped, and OSError of the medium.

        With `ahead` its threads choose: for choices that ask the medium, some of them at once.
        """
        tally, batch = Tally(self.medium.now()), list[Entry]()
        for entry, chosen in _chosen(self.medium.entries(space, shard), choose, ahead):
            self.seen += 1
            if self.seen % BATCH == 0:
                self.renew(shard)
            if not chosen:
                tally.add(entry)
                continue
            batch.append(entry)
            if len(batch) >= BATCH:
                self._remove(space, shard, batch, tally)
        self._remove(space, shard, batch, tally)
        return tally

    def renew(self, shard: str) -> None:
        """Keep the lease while a shard takes long.  Raises Stopped."""
        self.pace.check()
        if time.monotonic() - self._renewed > RENEW_SECONDS:
            self._claim(shard)

    def keep(self, shard: str, measured: dict[str, Tally]) -> None:
        """Write down what was measured; a pool that may only be read goes without."""
        if not self.dry:
            with contextlib.suppress(OSError):
                self.notes.put(shard, measured, self.spaces)

    def _remove(self, space: str, shard: str, batch: list[Entry], tally: Tally) -> None:
        """Remove and empty the batch; of those that stay, what is there now is tallied."""
        if self.dry:
            self.removed.add(len(batch), sum(entry.size for entry in batch))
            for entry in batch:
                tally.add(entry)
        else:
            for at in range(0, len(batch), self._at_once()):
                part = batch[at : at + self._at_once()]
                self.pace.take(objects=len(part))
                self.renew(shard)
                gone = self.medium.remove(space, part)
                self.removed.add(len(gone), sum(entry.size for entry in gone))
                for name in {entry.name for entry in part} - {entry.name for entry in gone}:
                    if (now := self.medium.read(space, name, _NOTHING)) is not None:
                        tally.add(now)
        batch.clear()

    def _at_once(self) -> int:
        """So few that a rate limit is felt as a pace and not as bursts."""
        return BATCH if not self.pace.rate else max(1, min(BATCH, int(self.pace.rate / 10)))

    def _claim(self, shard: str) -> bool:
        self._renewed = time.monotonic()
        try:
            return self.dry or self.medium.claim(f"{self._lease}-{shard}", self.holder, LEASE_SECONDS)
        except OSError:  # a lease only saves work, and on a medium that may only be read there is none to take
            return True


def _chosen(
    entries: Iterator[Entry], choose: Callable[[Entry], bool], ahead: ThreadPoolExecutor | None
) -> Iterator[tuple[Entry, bool]]:
    """Each entry, in order, and whether it is chosen; a few are asked about at once."""
    if ahead is None:
        yield from ((entry, choose(entry)) for entry in entries)
        return
    waiting: deque[tuple[Entry, Future[bool]]] = deque()
    for entry in entries:
        waiting.append((entry, ahead.submit(choose, entry)))
        if len(waiting) >= AHEAD:
            first, asked = waiting.popleft()
            yield first, asked.result()
    yield from ((entry, asked.result()) for entry, asked in waiting)


def measure(walk: Walk, spaces: list[str], since: float) -> dict[str, Tally]:
    """A tally for every space: from notes that are not older than `since`, and by listing where there is none."""
    now = walk.medium.now()
    found = {space: Tally(now) for space in spaces}

    def take(tallies: dict[str, Tally]) -> None:
        for space in spaces:
            found[space].merge(tallies[space], now)

    def known(shard: str) -> bool:
        kept = walk.notes.get(shard)
        fresh = all(space in kept and kept[space].at >= since for space in spaces)
        if fresh:
            take(kept)
        return fresh

    with contextlib.closing(walk.shards(known)) as shards:
        for shard in shards:
            walk.pace.show(f"measuring shard {shard}, {walk.seen} chunks seen")
            measured = {space: walk.sweep(space, shard) for space in spaces}
            walk.keep(shard, measured)
            take(measured)
    return found
