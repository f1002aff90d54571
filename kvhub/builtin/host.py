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
        late = batch.deadline < time.monotonic()
        outcomes, lengths, layouts, generated, moved = [], [], [], [], 0
        for at, key in enumerate(batch.keys):
            held = Held(-1, 0)
            if late:
                outcome = Outcome.LATE
            elif batch.op == Op.LOAD:
                outcome, held = self._load(self._arena, self._region, key, batch, at)
            elif batch.op == Op.SAVE:
                outcome, held = self._save(self._arena, self._region, key, batch, at)
            elif batch.op == Op.REMOVE:
                self._arena.forget(key)
                outcome = Outcome.DONE
            else:
                outcome = Outcome.DONE if key in self._arena else Outcome.MISS
            outcomes.append(outcome)
            lengths.append(held.length)
            layouts.append(held.layout)
            generated.append(held.generated)
            moved += held.length
        loads = batch.op == Op.LOAD
        self._done.append(
            Completion(
                batch.id, tuple(outcomes), tuple(lengths) if loads else (), tuple(layouts) if loads else None,
                tuple(generated) if loads else None, moved,
            )
        )  # fmt: skip
        self._wake()

    def _load(self, arena: Arena, region: Region, key: Key, batch: Batch, at: int) -> tuple[Outcome, Held]:
        slot = arena.lease(key)
        if slot is None:
            return Outcome.MISS, Held(-1, 0)
        try:
            held = arena.held(slot)
            if held.length > batch.lengths[at]:
                return Outcome.MISS, Held(-1, 0)
            region.slot(batch.slots[at], held.length)[:] = arena.region.slot(slot, held.length)
            return Outcome.DONE, held
        finally:
            arena.release((slot,))

    def _save(self, arena: Arena, region: Region, key: Key, batch: Batch, at: int) -> tuple[Outcome, Held]:
        length = batch.lengths[at]
        if length > arena.region.slot_bytes:
            return Outcome.FULL, Held(-1, 0)
        if key in arena and not batch.replace:
            return Outcome.KEPT, Held(-1, 0)
        slots = arena.claim(1)
        if not slots:
            return Outcome.FULL, Held(-1, 0)
        arena.region.slot(slots[0], length)[:] = region.slot(batch.slots[at], length)
        layout = batch.layouts[at] if batch.layouts else ""
        tenant = batch.tenants[at] if batch.tenants else b""
        held = Held(slots[0], length, layout, batch.generated[at] if batch.generated else 0, tenant=tenant)
        arena.publish(key, held, replace=batch.replace)
        arena.release(slots)
        return Outcome.DONE, held

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
