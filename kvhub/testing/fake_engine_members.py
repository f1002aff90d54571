"""A pool and a wire inside one process, so that whole prefill/decode deployments run in one test."""

from __future__ import annotations

import itertools
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import attrs

from kvhub.errors import MisuseError
from kvhub.hookspecs import hookimpl
from kvhub.store import BlockingStore, Store
from kvhub.transport import Source, Transport
from kvhub.types import Batch, Capabilities, Completion, Held, Key, MemberContext, Op, Outcome, Peer, Region


@attrs.frozen
class MemoryConfig:
    """Options of `use: memory`."""

    name: str
    """Stores of one name share their objects, as directories of one path do."""


class MemoryStore(BlockingStore):
    """A shared, persistent store in a dict of this process: `use: memory`."""

    Config = MemoryConfig
    kind: ClassVar[str] = ""
    persistent = True
    shared = True
    workers = 2
    objects: ClassVar[dict[str, dict[str, bytes]]] = {}
    """By the store's name and namespace, then by the object's name; a test may look and damage."""

    def _mine(self) -> dict[str, bytes]:
        return self.objects.setdefault(f"{self.config.name} {self.context.namespace.hex()}", {})

    def has(self, name: str) -> bool:
        return name in self._mine()

    def read(self, name: str, header: memoryview, payload: memoryview) -> int | None:
        data = self._mine().get(name)
        if data is None:
            return None
        head, body = data[: header.nbytes], data[header.nbytes :][: payload.nbytes]
        header[: len(head)] = head
        payload[: len(body)] = body
        return len(data)

    def write(self, name: str, header: bytes, payload: memoryview) -> bool:
        self._mine()[name] = header + bytes(payload)
        return True

    def drop(self, name: str) -> None:
        self._mine().pop(name, None)


@attrs.frozen
class MemoryMedium:
    """A hand on what the stores of one name keep: a `Medium` for `StoreContract`."""

    name: str

    def read(self, context: MemberContext, key: Key) -> bytes | None:
        """The whole object under a key, or None."""
        return MemoryStore.objects.get(f"{self.name} {context.namespace.hex()}", {}).get(key.hex())

    def write(self, context: MemberContext, key: Key, data: bytes) -> None:
        """Put a whole object under a key."""
        MemoryStore.objects.setdefault(f"{self.name} {context.namespace.hex()}", {})[key.hex()] = data


@attrs.frozen
class DirectConfig:
    """Options of `use: direct`: none."""


@attrs.define
class _Pull:
    batch: Batch
    source: Source | None = None
    region: Region | None = None
    ticket: int = 0
    over: bool = False


class DirectTransport(Transport):
    """Copies from the arena of a peer of this process: `use: direct`.  One thread does all of it."""

    Config = DirectConfig
    kind: ClassVar[str] = ""
    living: ClassVar[dict[str, DirectTransport]] = {}
    """By address."""
    _ports: ClassVar[itertools.count[int]] = itertools.count(1)

    def __init__(self, config: Any, context: Any) -> None:
        super().__init__(config, context)
        self._address = ""
        self._source: Source | None = None
        self._region: Region | None = None
        self._wake: Callable[[], None] = lambda: None
        self._done: deque[Completion] = deque()
        self._pulls: dict[int, _Pull] = {}
        self._todo: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"kvhub-{context.name}-direct", daemon=True)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities()

    def attach(self, region: Region, wake: Callable[[], None]) -> None:
        self._region, self._wake = region, wake
        self._address = f"direct:{next(self._ports)}"
        self.living[self._address] = self
        self._thread.start()

    def address(self) -> str:
        return self._address

    def serve(self, source: Source) -> None:
        self._source = source

    def connect(self, peer: Peer) -> None:
        """Nothing to pair."""

    def forget(self, peer: Peer) -> None:
        for pull in list(self._pulls.values()):
            if pull.batch.peer is not None and pull.batch.peer.address == peer.address:
                self._todo.put(lambda pull=pull: self._end(pull, Outcome.FAILED, "forgotten"))  # type: ignore[misc]

    def fulfil(self, peer: Peer) -> None:
        def tell() -> None:
            other = self._peer(peer)
            if other is not None and other._source is not None:
                other._source.fulfilled(peer.promise)

        self._todo.put(tell)

    def submit(self, batch: Batch) -> None:
        if not self._thread.is_alive() or batch.op is not Op.LOAD or batch.peer is None:
            raise MisuseError(f"{self.context.name}: not attached or closed, not a LOAD, or no peer")
        pull = self._pulls[batch.id] = _Pull(batch)
        self._todo.put(lambda: self._begin(pull))

    def poll(self) -> list[Completion]:
        return [self._done.popleft() for _ in range(len(self._done))]

    def cancel(self, batch_id: int) -> None:
        pull = self._pulls.get(batch_id)
        if pull is not None:
            self._todo.put(lambda: self._end(pull, Outcome.LATE, "cancelled"))

    def close(self) -> None:
        self.living.pop(self._address, None)
        if self._thread.is_alive():
            self._todo.put(None)
            self._thread.join(4.0)

    # -- the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (work := self._todo.get()) is not None:
            work()
        for pull in list(self._pulls.values()):
            self._end(pull, Outcome.LATE, "closed")

    def _peer(self, peer: Peer) -> DirectTransport | None:
        other = self.living.get(peer.address)
        if other is None or other.context.incarnation != peer.incarnation:
            return None
        return other if other.context.namespace == self.context.namespace else None

    def _begin(self, pull: _Pull) -> None:
        peer = pull.batch.peer
        other = self._peer(peer) if peer is not None else None
        if pull.over or other is None or other._source is None:
            self._end(pull, Outcome.FAILED, "no-peer")
            return
        pull.source, pull.region = other._source, other._region

        def ready(ticket: int, found: list[Held | None]) -> None:
            # Perhaps inside `take`, perhaps on the peer's pump: the copying is this thread's.
            self._todo.put(lambda: self._guarded(pull, found))

        pull.ticket = pull.source.take(pull.batch.keys, pull.batch.deadline, ready)

    def _guarded(self, pull: _Pull, found: list[Held | None]) -> None:
        try:
            self._copy(pull, found)
        except ValueError:
            # The peer closed its arena while it was read: what crossed is not to be believed.
            self._end(pull, Outcome.FAILED, "peer-gone")

    def _copy(self, pull: _Pull, found: list[Held | None]) -> None:
        if pull.over or self._region is None or pull.region is None:
            return
        outcomes, lengths, layouts, generated = [], [], [], []
        own = self.context.layout.text
        theirs = next((m.context.layout.text for m in self.living.values() if m._region is pull.region), own)
        for slot, room, held in zip(pull.batch.slots, pull.batch.lengths, found, strict=True):
            good = held is not None and held.length <= room
            outcomes.append(Outcome.DONE if good else Outcome.MISS)
            lengths.append(held.length if good and held is not None else 0)
            text = (held.layout or theirs) if good and held is not None else ""
            layouts.append("" if text == own else text)
            generated.append(held.generated if good and held is not None else 0)
            if good and held is not None:
                self._region.slot(slot, held.length)[:] = pull.region.slot(held.slot, held.length)
        self._over(
            pull,
            Completion(pull.batch.id, tuple(outcomes), tuple(lengths), tuple(layouts), tuple(generated), sum(lengths)),
        )

    def _end(self, pull: _Pull, outcome: Outcome, reason: str) -> None:
        count = len(pull.batch.keys)
        self._over(pull, Completion(pull.batch.id, (outcome,) * count, (0,) * count, reason=reason))

    def _over(self, pull: _Pull, completion: Completion) -> None:
        if pull.over:
            return
        pull.over = True
        self._pulls.pop(pull.batch.id, None)
        if pull.source is not None:
            pull.source.give_back(pull.ticket)
        self._done.append(completion)
        self._wake()


class MemoryPlugin:
    """`registry.add("memory", MemoryPlugin())`."""

    @hookimpl
    def kvhub_register_stores(self) -> Iterable[type[Store]]:
        return (MemoryStore,)


class DirectPlugin:
    """`registry.add("direct", DirectPlugin())`."""

    @hookimpl
    def kvhub_register_transports(self) -> Iterable[type[Transport]]:
        return (DirectTransport,)
