"""Whose a pool's chunks are: counted by the tags in their headers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import attrs

from kvhub.pool.medium import Entry
from kvhub.pool.select import Selection, read_header
from kvhub.pool.walk import AHEAD, Removed, Walk

READERS = 16
"""Headers that are read at once."""


@attrs.define
class Tenants:
    """Chunks and bytes by tag; "" for chunks of no tenant and for those from before there were tags."""

    by_tag: dict[str, Removed] = attrs.field(factory=dict)
    unreadable: int = 0
    """Chunks whose header tells nothing: damaged, of another version, or gone meanwhile."""

    def add(self, tag: str, size: int) -> None:
        self.by_tag.setdefault(tag, Removed()).add(1, size)


@contextlib.contextmanager
def readers() -> Iterator[ThreadPoolExecutor]:
    """Threads that read headers side by side."""
    with ThreadPoolExecutor(READERS, thread_name_prefix="kvhub-pool-headers") as threads:
        try:
            yield threads
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            raise


def count(walk: Walk, selection: Selection) -> Tenants:
    """Read every header of the selected namespaces.  Raises Stopped, ConfigError and OSError of the medium."""
    found, spaces = Tenants(), [space.id for space in selection.spaces(walk.medium)]
    with readers() as threads, contextlib.closing(walk.shards()) as shards:
        for shard in shards:
            walk.pace.show(f"reading headers of shard {shard}, {walk.seen} chunks seen")
            for space in spaces:
                batch: list[Entry] = []
                for entry in walk.medium.entries(space, shard):
                    batch.append(entry)
                    if len(batch) >= AHEAD:
                        _count(walk, space, shard, batch, threads, found)
                _count(walk, space, shard, batch, threads, found)
    return found


def _count(walk: Walk, space: str, shard: str, batch: list[Entry], threads: ThreadPoolExecutor, found: Tenants) -> None:
    """Count a batch and empty it."""
    walk.renew(shard)
    walk.seen += len(batch)
    for entry, header in zip(batch, threads.map(lambda e: read_header(walk.medium, space, e), batch), strict=True):
        if header is None:
            found.unreadable += 1
        else:
            found.add(header.tenant.hex(), entry.size)
    batch.clear()
