"""Copying chunks from one pool to another, each verified on the way; what is there already is skipped.

Both pools are listed side by side, shard by shard, so a copy that was cut short goes on where it was for the price of a
listing.  A shard is leased on the destination: several processes may copy at once.
"""

from __future__ import annotations

import contextlib
import errno
import threading
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

import attrs

from kvhub import chunkfile
from kvhub.errors import KvhubError
from kvhub.pool.look import check_head, check_whole
from kvhub.pool.medium import Entry, Medium
from kvhub.pool.pace import Pace
from kvhub.pool.select import Selection
from kvhub.pool.tally import total
from kvhub.pool.walk import Walk, measure

IN_FLIGHT = 8
_FULL = (errno.ENOSPC, errno.EDQUOT)


@attrs.define
class Copied:
    """What a copy did."""

    copied: int = 0
    bytes: int = 0
    there: int = 0
    """Skipped, being there already."""
    damaged: int = 0
    """Not copied, failing a check; `kvhub pool verify --remove` takes them away."""
    failed: int = 0
    """Not copied for an error of either medium."""
    first_error: str = ""


class Copier:
    """One copy under way, with `in_flight` chunks at once; memory is that many chunks."""

    def __init__(self, source: Medium, destination: Medium, pace: Pace, *, in_flight: int = IN_FLIGHT) -> None:
        self.source, self.destination, self.pace = source, destination, pace
        self.done = Copied()
        self._in_flight = in_flight
        self._lock = threading.Lock()

    def run(self, selection: Selection, *, since: float = 0.0, dry: bool = False) -> Copied:
        """Copy the selected chunks that were used at `since` or later.

        Raises Stopped, ConfigError, KvhubError when the destination is full, and OSError of a listing.
        """
        spaces = selection.spaces(self.source)
        if not dry:
            for space in spaces:
                self.destination.admit(space)
        now = self.source.now()
        walk = Walk(self.destination, self.pace, lease="copy", dry=dry)
        with (
            ThreadPoolExecutor(self._in_flight) as threads,
            contextlib.closing(walk.shards(lambda shard: not selection.shard(shard))) as shards,
        ):
            for shard in shards:
                self.pace.show(f"copying shard {shard}, {self.done.copied} copied, {self.done.there} there")
                under_way: set[Future[None]] = set()
                try:
                    for space in spaces:
                        for entry in self._missing(space.id, shard):
                            if entry.used < since or not selection.wants(self.source, space.id, entry, now):
                                continue
                            if dry:
                                self._count("copied", entry.size)
                                continue
                            self.pace.take(objects=1, size=entry.size)
                            walk.renew(shard)
                            under_way.add(threads.submit(self._one, space.id, entry))
                            if len(under_way) >= self._in_flight:
                                under_way = self._collect(under_way, FIRST_COMPLETED)
                finally:
                    self._collect(under_way)
        return self.done

    def _missing(self, space: str, shard: str) -> Iterator[Entry]:
        """Entries of the source that the destination lacks: two listings in order of name, merged."""
        theirs = self.destination.entries(space, shard)
        there = next(theirs, None)
        for entry in self.source.entries(space, shard):
            while there is not None and there.name < entry.name:
                there = next(theirs, None)
            if there is not None and there.name == entry.name:
                self._count("there")
            else:
                yield entry

    def _one(self, space: str, entry: Entry) -> None:
        head = memoryview(bytearray(chunkfile.HEADER_BYTES))
        try:
            seen = self.source.read(space, entry.name, head)
            if seen is None:
                return
            check_head(space, entry.name, head, seen.size)
            whole = memoryview(bytearray(seen.size))  # the header has spoken for as much
            seen = self.source.read(space, entry.name, whole)
            if seen is None:
                return
            whole = whole[: min(seen.size, whole.nbytes)]
            check_whole(space, entry.name, whole)
        except chunkfile.Damaged:
            self._count("damaged")
            return
        except OSError as error:
            self._fail(self.source, error)
            return
        try:
            if self.destination.put(space, entry.name, whole):
                self._count("copied", whole.nbytes)
            else:
                self._count("there")
        except OSError as error:
            if error.errno in _FULL:
                raise
            self._fail(self.destination, error)

    def _collect(self, under_way: set[Future[None]], when: str = "ALL_COMPLETED") -> set[Future[None]]:
        """Wait for some or all; those that go on.  Raises KvhubError when the destination is full."""
        done, going = wait(under_way, return_when=when)
        for future in done:
            if error := future.exception():
                if isinstance(error, OSError):
                    place = self.destination.describe()
                    raise KvhubError(
                        f"{place}: full after {self.done.copied} chunks ({errno.errorcode[error.errno or 0]}); "
                        "free some, or copy less with --max; the same command goes on from there"
                    ) from error
                raise error
        return going

    def _count(self, field: str, size: int = 0) -> None:
        with self._lock:
            setattr(self.done, field, getattr(self.done, field) + 1)
            self.done.bytes += size

    def _fail(self, medium: Medium, error: OSError) -> None:
        with self._lock:
            self.done.failed += 1
            self.done.first_error = self.done.first_error or f"{medium.describe()}: {error}"


def hottest(source: Medium, selection: Selection, most: int, pace: Pace, *, dry: bool = False) -> float:
    """The time of use from which on the selected namespaces' chunks weigh at most `most` bytes.

    To the bin: the oldest chunks that would have fitted in part are left out.
    """
    spaces = [space.id for space in selection.spaces(source)]
    walk, now = Walk(source, pace, dry=dry), source.now()
    tally = total(measure(walk, spaces, now).values(), now)
    left = most
    for (start, width), (_, size) in sorted(tally.bins.items(), reverse=True):
        if size > left:
            return start + width
        left -= size
    return 0.0
