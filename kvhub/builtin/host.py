"""The host tier: the arena itself, seen as a store.

Inside a hub nothing is copied: a chunk in a slot of the arena *is* stored, and the hub asks the arena directly.
Attached to somebody else's region (the store contract does so) it copies between that region and its own arena.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar

import attrs

from kvhub.arena import Arena, slot_bytes_for
from kvhub.errors import MisuseError
from kvhub.evict import POLICIES
from kvhub.hookspecs import hookimpl
from kvhub.store import Store
from kvhub.types import Batch, Capabilities, Completion, Held, Key, MemberContext, Op, Outcome, Region
from kvhub.units import seconds, size


@attrs.frozen
class HostConfig:
    """Options of `use: host`."""

    capacity: int = attrs.field(converter=size, metadata={"help": "bytes of host memory, all of them taken at start"})
    policy: str = attrs.field(
        default="lru",
        validator=attrs.validators.in_(tuple(POLICIES)),
        metadata={
            "help": "which chunk makes room: lru, the one that was not used for longest; s3fifo, chunks that were seen "
            "once before those that were used again"
        },
    )
    admit: str = attrs.field(
        default="always",
        validator=attrs.validators.in_(("always", "second_touch")),
        metadata={"help": "which chunks are kept: always, all; second_touch, those that were there once before"},
    )
    ttl: float = attrs.field(
        default=0.0,
        converter=seconds,
        metadata={"help": "age at which a chunk goes, used or not, such as 1h; 0 keeps it as long as there is room"},
    )
    huge_pages: str = attrs.field(
        default="auto",
        validator=attrs.validators.in_(("auto", "off")),
        metadata={"help": "auto asks for huge pages where the kernel offers them for shared memory; off does not"},
    )
    numa_node: int | None = attrs.field(
        default=None,
        validator=attrs.validators.optional([attrs.validators.instance_of(int), attrs.validators.ge(0)]),
        metadata={"help": "NUMA node for the memory, best the accelerator's; the kernel's choice if absent"},
    )

    @capacity.validator
    def _positive(self, _: Any, value: int) -> None:
        if value <= 0:
            raise ValueError(f"expected a size above 0, found {value}")


class _Columns:
    """What a completion says of each chunk: a miss, until something else is known."""

    def __init__(self, batch: Batch) -> None:
        count = len(batch.keys)
        self.batch, self.moved = batch, 0
        self.outcomes = [Outcome.MISS] * count
        self._lengths, self._layouts, self._generated = [0] * count, [""] * count, [0] * count

    def loaded(self, at: int, held: Held) -> None:
        self.outcomes[at] = Outcome.DONE
        self._lengths[at], self._layouts[at], self._generated[at] = held.length, held.layout, held.generated
        self.moved += held.length

    def completion(self) -> Completion:
        if self.batch.op != Op.LOAD:
            return Completion(self.batch.id, tuple(self.outcomes), (), None, None, self.moved)
        lengths, layouts, generated = tuple(self._lengths), tuple(self._layouts), tuple(self._generated)
        return Completion(self.batch.id, tuple(self.outcomes), lengths, layouts, generated, self.moved)


class HostStore(Store):
    """Chunks in unleased slots, bounded by `capacity`, which counts every slot, also those being filled."""

    Config = HostConfig
    kind: ClassVar[str] = ""
    persistent: ClassVar[bool] = False

    def __init__(self, config: HostConfig, context: MemberContext) -> None:
        super().__init__(config, context)
        self._arena: Arena | None = None
        self._region: Region | None = None
        self._done: deque[Completion] = deque()
        self._wake: Callable[[], None] = lambda: None
        self._closed = False

    def open_arena(self, slot_bytes: int) -> Arena:
        """The hub's arena.  Called once by the hub, before `attach`."""
        config: HostConfig = self.config
        self._arena = Arena(
            config.capacity,
            slot_bytes,
            name=self.context.name,
            policy=config.policy,
            second_touch=config.admit == "second_touch",
            ttl=config.ttl,
            huge_pages=config.huge_pages == "auto",
            numa_node=config.numa_node,
        )
        return self._arena

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(removes=True, scans=True, arena=True)

    def attach(self, region: Region, wake: Callable[[], None]) -> None:
        if self._arena is None:
            self.open_arena(slot_bytes_for(region.slot_bytes))
        self._region, self._wake = region, wake

    def submit(self, batch: Batch) -> None:
        if self._closed or self._region is None or self._arena is None:
            raise MisuseError(f"{self.context.name}: submit to a host tier that is not attached or is closed")
        moves = batch.op in (Op.LOAD, Op.SAVE)
        count = len(batch.keys)
        beside = [len(told) for told in (batch.layouts, batch.generated, batch.tenants) if told is not None]
        if moves and {len(batch.slots), len(batch.lengths), *beside} != {count}:
            raise MisuseError(f"{self.context.name}: batch {batch.id} has tuples of unequal length")
        arena, region, result = self._arena, self._region, _Columns(batch)
        if batch.deadline < time.monotonic():
            result.outcomes = [Outcome.LATE] * count
        elif batch.op == Op.LOAD:
            self._load(arena, region, batch, result)
        elif batch.op == Op.SAVE:
            self._save(arena, region, batch, result)
        elif batch.op == Op.REMOVE:
            for key in batch.keys:
                arena.forget(key)
            result.outcomes = [Outcome.DONE] * count
        else:
            result.outcomes = [Outcome.DONE if key in arena else Outcome.MISS for key in batch.keys]
        self._done.append(result.completion())
        self._wake()

    def _load(self, arena: Arena, region: Region, batch: Batch, result: _Columns) -> None:
        leased, own, theirs = arena.lease_each(batch.keys), arena.region, region.view
        try:
            for at, (slot, room) in enumerate(zip(leased, batch.lengths, strict=True)):
                if slot is None or (held := arena.held(slot)).length > room:
                    continue
                start, source = batch.slots[at] * region.slot_bytes, slot * own.slot_bytes
                theirs[start : start + held.length] = own.view[source : source + held.length]
                result.loaded(at, held)
        finally:
            arena.release([slot for slot in leased if slot is not None])

    def _save(self, arena: Arena, region: Region, batch: Batch, result: _Columns) -> None:
        own, theirs, most = arena.region, region.view, arena.region.slot_bytes
        kept = [not batch.replace and key in arena for key in batch.keys]
        wanted = sum(not there and length <= most for there, length in zip(kept, batch.lengths, strict=True))
        free: list[int] = []
        filled: list[int] = []
        try:
            for at, (key, length) in enumerate(zip(batch.keys, batch.lengths, strict=True)):
                if kept[at] or length > most:
                    result.outcomes[at] = Outcome.KEPT if length <= most else Outcome.FULL
                    continue
                if not free:
                    # What this batch has filled may make room for the rest of it.
                    arena.release(filled)
                    filled, free = [], arena.claim(wanted)[::-1]
                wanted -= 1
                if not free:
                    result.outcomes[at] = Outcome.FULL
                    continue
                slot = free.pop()
                filled.append(slot)
                start, source = slot * most, batch.slots[at] * region.slot_bytes
                own.view[start : start + length] = theirs[source : source + length]
                layout = batch.layouts[at] if batch.layouts else ""
                tenant = batch.tenants[at] if batch.tenants else b""
                held = Held(slot, length, layout, batch.generated[at] if batch.generated else 0, tenant=tenant)
                if arena.publish(key, held, replace=batch.replace):
                    result.outcomes[at] = Outcome.DONE
                    result.moved += length
                else:
                    result.outcomes[at] = Outcome.KEPT  # twice in one batch, or somebody was faster
        finally:
            arena.release((*filled, *free))

    def poll(self) -> list[Completion]:
        found = []
        while self._done:
            found.append(self._done.popleft())
        return found

    def scan(self) -> Iterator[tuple[Key, int]]:
        arena = self._arena
        for key in arena.keys() if arena else ():
            slot = arena.lease(key) if arena else None
            if slot is not None and arena is not None:
                length = arena.held(slot).length
                arena.release((slot,))
                yield key, length

    def used_bytes(self) -> int | None:
        return self._arena.usage()["bytes"] if self._arena else 0

    def close(self) -> None:
        self._closed = True
        self._done.clear()
        if self._arena is not None:
            self._arena.close()


@hookimpl
def kvhub_register_stores() -> Iterable[type[Store]]:
    """`use: host`."""
    return (HostStore,)
