"""Making room at once in a pool that is full, by the rules of collecting but without measuring it first.

One part of the pool after another gives up what was longest unused of it, until there is room for a few objects more.
Keys are digests, so each part is like the whole.
"""

from __future__ import annotations

import contextlib
import time

from kvhub.pool.gc import GRACE_SECONDS
from kvhub.pool.medium import Entry, Medium
from kvhub.pool.pace import Pace
from kvhub.pool.walk import Removed, Walk

FRACTION = 0.1
"""Of the bytes of each part that is gone through: so much goes."""
OBJECTS = 16
"""Room is made for so many objects of the size that is asked for, so that not every save has to."""


def make_room(medium: Medium, size: int, seconds: float) -> Removed:
    """Remove chunks that nobody used in the last ten minutes, for at most about `seconds`; what went.

    Parts that another sweeper has a lease on are left to it.  Raises OSError of the medium.
    """
    walk, until = Walk(medium, Pace()), time.monotonic() + seconds
    limit = medium.now() - GRACE_SECONDS

    def enough(shard: str) -> bool:
        return walk.removed.bytes >= OBJECTS * size or time.monotonic() > until

    with contextlib.closing(walk.shards(enough)) as shards:
        for shard in shards:
            found = [(space, entry) for space in walk.spaces for entry in medium.entries(space, shard)]
            left = max(size, FRACTION * sum(entry.size for _, entry in found))
            goes: dict[str, list[Entry]] = {}
            for space, entry in sorted(found, key=lambda one: one[1].used):
                if left <= 0 or entry.used >= limit:
                    break
                goes.setdefault(space, []).append(entry)
                left -= entry.size
            for space, entries in goes.items():
                gone = medium.remove(space, entries)
                walk.removed.add(len(gone), sum(entry.size for entry in gone))
    return walk.removed
