"""Collecting: what was longest unused goes when a pool is too full, and what was unused for too long goes anyway.

A round measures every shard, or takes what another sweeper measured since the round began, and finds the time of use
before which chunks must go to come down to the low mark.  Every sweeper that measures the same pool finds the same
time, and one that comes when part of the work is done finds a time that asks for the rest: so several of them remove
together what one would have.  Within the one bin that is needed in part, chunks go by name, the same for all sweepers.
"""

from __future__ import annotations

import contextlib

import attrs

from kvhub.pool.medium import Entry, Medium, Room
from kvhub.pool.pace import Pace
from kvhub.pool.tally import Tally, total
from kvhub.pool.walk import Removed, Walk, measure

GRACE_SECONDS = 600.0
"""Nothing that was written or used since is collected: somebody may be about to read it."""
DEAD_SECONDS = 24 * 3600.0
"""An unfinished object whose owner cannot be known to be dead is taken for left over after a day."""
PASSES = 3
NEAR = 0.01
"""A pool that is this fraction above its low mark after a pass is not listed again for the rest."""
REGAIN = 1.1
"""Free space is brought to this times what is to be kept free, so that it does not fall short again at once."""


@attrs.frozen
class Limits:
    """What a pool is to be kept to; at least one of the first three is set."""

    most: int | None = None
    """Bytes of all chunks with their headers."""
    keep_free: float | None = None
    """Bytes of the file system that are to stay free; below 1, that fraction of it."""
    unused_for: float | None = None
    """Seconds after which a chunk that nobody used goes."""
    high: float = 0.9
    low: float = 0.8
    """Fractions of `most`: above the first, collecting begins, down to the second."""
    grace: float = GRACE_SECONDS


@attrs.frozen
class Plan:
    """What is to go: chunks used before `before`, and of those used in the bin from there to `until` a part."""

    before: float = 0.0
    until: float = 0.0
    part: float = 0.0
    """From 0 to 1; a chunk's name says whether it belongs to it."""
    need: int = 0
    """Bytes that have to go; no more go for want of room."""
    expired: float = 0.0
    """Chunks used before this go whatever they weigh."""

    def wants(self, entry: Entry) -> bool:
        """Whether the chunk is among those that go for want of room."""
        return entry.used < self.before or (entry.used < self.until and _place(entry.name) < self.part)


def _place(name: str) -> float:
    """Where a name lies among all of its shard, from 0 to 1: names are digests, so evenly spread."""
    return int(name[2:10], 16) / 2**32


@attrs.frozen
class Report:
    """One round."""

    chunks: int
    bytes: int
    """Before the round, as measured."""
    wanted: int
    """Bytes that had to go."""
    removed: Removed
    left_chunks: int
    left_bytes: int
    leftovers: int
    """Unfinished objects of dead writers that were cleared."""


def need(limits: Limits, used: int, room: Room | None) -> int:
    """Bytes that have to go now; 0 below the high mark."""
    wanted = 0
    if limits.most is not None and used > limits.high * limits.most:
        wanted = used - int(limits.low * limits.most)
    if limits.keep_free is not None and room is not None:
        free = int(limits.keep_free * room.total) if limits.keep_free < 1 else int(limits.keep_free)
        if room.free < free:
            wanted = max(wanted, int(REGAIN * free) - room.free)
    return min(wanted, used)


def plan(limits: Limits, tally: Tally, room: Room | None, now: float) -> Plan:
    """What has to go of a pool with this tally."""
    expired = now - limits.unused_for if limits.unused_for is not None else 0.0
    wanted = left = need(limits, tally.bytes, room)
    if not wanted:
        return Plan(expired=expired)
    for (start, width), (_, size) in sorted(tally.bins.items()):
        if size >= left:
            return Plan(start, start + width, left / size, wanted, expired)
        left -= size
    return Plan(now, now, 0.0, wanted, expired)


def collect(medium: Medium, limits: Limits, pace: Pace, *, since: float | None = None, dry: bool = False) -> Report:
    """One round; `since`: how old what is known of a shard may be (default: the start of the round).

    Raises Stopped, and OSError of the medium.
    """
    walk = Walk(medium, pace, dry=dry)
    started = medium.now()
    before = left = _measured(walk, started if since is None else since)
    wanted = 0
    for turn in range(PASSES):
        todo = plan(limits, left, medium.room() if limits.keep_free is not None else None, medium.now())
        wanted = wanted or todo.need
        if todo.need <= NEAR * left.bytes * (turn > 0) and not any(start < todo.expired for start, _ in left.bins):
            break
        gone = walk.removed.chunks
        left = _remove(walk, todo, limits.grace)
        if dry or walk.removed.chunks == gone:
            break
        limits = attrs.evolve(limits, high=limits.low, unused_for=None)
    leftovers = list(medium.leftovers(DEAD_SECONDS))
    cleared = len(leftovers) if dry else medium.clear(leftovers)
    return Report(before.chunks, before.bytes, wanted, walk.removed, left.chunks, left.bytes, cleared)


def _measured(walk: Walk, since: float) -> Tally:
    return total(measure(walk, walk.spaces, since).values(), walk.medium.now())


def _remove(walk: Walk, todo: Plan, grace: float) -> Tally:
    """Go through all shards and remove what the plan names; what is left."""
    limit = walk.medium.now() - grace
    planned = 0

    def choose(entry: Entry) -> bool:
        nonlocal planned
        goes = entry.used < limit and (entry.used < todo.expired or (planned < todo.need and todo.wants(entry)))
        planned += entry.size * goes
        return goes

    found = Tally(walk.medium.now())
    with contextlib.closing(walk.shards()) as shards:
        for shard in shards:
            walk.pace.show(f"collecting in shard {shard}, {walk.removed.chunks} chunks removed")
            measured = {space: walk.sweep(space, shard, choose) for space in walk.spaces}
            walk.keep(shard, measured)
            for tally in measured.values():
                found.merge(tally, walk.medium.now())
    return found
