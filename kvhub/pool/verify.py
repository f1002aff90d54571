"""The scrubber: reads every header, and with `deep` every payload; takes away what is certainly damaged.

A chunk is damaged when it fails its checks twice, each time by a fresh open; what is removed is the object that was
listed,
"""

from __future__ import annotations

import contextlib
import errno
from collections import Counter
from collections.abc import Callable

import attrs

from kvhub import chunkfile
from kvhub.pool.look import check_head, check_whole
from kvhub.pool.medium import Entry, Medium
from kvhub.pool.select import Selection
from kvhub.pool.walk import Walk

WHOLE, GONE, FOREIGN, ERROR, DAMAGED = "whole", "gone", "foreign", "error", "damaged"


@attrs.define
class Verdicts:
    """What a scrub found."""

    whole: int = 0
    bytes: int = 0
    """Of what was read and found whole."""
    foreign: int = 0
    io_errors: int = 0
    damaged: Counter[str] = attrs.field(factory=Counter)
    """By reason."""


def verdict(medium: Medium, space: str, name: str, deep: bool) -> tuple[str, str]:
    """One look by a fresh open: WHOLE, GONE, FOREIGN, ERROR or DAMAGED, and the reason."""
    try:
        head = memoryview(bytearray(chunkfile.HEADER_BYTES))
        seen = medium.read(space, name, head)
        if seen is None:
            return GONE, ""
        check_head(space, name, head, seen.size)
        if deep:
            whole = memoryview(bytearray(seen.size))  # the header has spoken for as much
            seen = medium.read(space, name, whole)
            if seen is None:
                return GONE, ""
            check_whole(space, name, whole[: min(seen.size, whole.nbytes)])
    except chunkfile.Foreign as why:
        return FOREIGN, why.reason
    except chunkfile.Damaged as why:
        return DAMAGED, why.reason
    except OSError as error:
        return ERROR, errno.errorcode.get(error.errno or 0, type(error).__name__)
    return WHOLE, ""


def verify(
    walk: Walk,
    selection: Selection,
    *,
    deep: bool,
    remove: bool,
    tell: Callable[[str, str, str], None] = lambda space, name, reason: None,
) -> Verdicts:
    """Check the selected chunks; `tell` hears of every one that is not whole.  Raises Stopped."""
    verdicts = Verdicts()
    medium, spaces = walk.medium, [space.id for space in selection.spaces(walk.medium)]
    now = medium.now()

    def look(space: str, entry: Entry) -> bool:
        """Count the chunk; whether it is to be removed."""
        if not selection.wants(medium, space, entry, now):
            return False
        walk.pace.take(objects=1, size=entry.size if deep else chunkfile.HEADER_BYTES)
        said, reason = verdict(medium, space, entry.name, deep)
        if said == DAMAGED:
            said, reason = verdict(medium, space, entry.name, deep)
        if said == WHOLE:
            verdicts.whole += 1
            verdicts.bytes += entry.size if deep else chunkfile.HEADER_BYTES
            return False
        if said == FOREIGN:
            verdicts.foreign += 1
        elif said == ERROR:
            verdicts.io_errors += 1
        elif said != GONE:
            verdicts.damaged[reason] += 1
        if said != GONE:
            tell(space, entry.name, f"{said} {reason}".strip())
        return remove and said == DAMAGED

    with contextlib.closing(walk.shards(lambda shard: not selection.shard(shard))) as shards:
        for shard in shards:
            walk.pace.show(f"verifying shard {shard}, {verdicts.whole} chunks whole")
            measured = {
                space: walk.sweep(space, shard, lambda entry, space=space: look(space, entry))  # type: ignore[misc]
                for space in spaces
            }
            walk.keep(shard, measured)
    return verdicts
