"""A transport between hubs of one process: pulls are answered through `Source`, on a thread, as over a network."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, ClassVar

import attrs

from kvhub import hookimpl
from kvhub.errors import MisuseError
from kvhub.member import Member
from kvhub.testing.faults import Faulty
from kvhub.transport import Transport
from kvhub.types import Batch, Capabilities, Completion, Held, Op, Outcome, Peer, Region


@attrs.frozen
class WireConfig:
    """No options."""


class Wire(Transport):
    """Every chunk of a pull is copied while the other side's ticket is out, and not a moment longer."""

    Config = WireConfig
    hubs: ClassVar[dict[str, Wire]] = {}
    numbers: ClassVar[Any] = itertools.count(1)
    capabilities = property(lambda self: Capabilities())  # type: ignore[assignment]

    def attach(self, region: Region, wake: Callable[[], None]) -> None:
        self.region, self.wake = region, wake
        self.done: list[Completion] = []
        self.connected: list[Peer] = []
        self.threads: list[threading.Thread] = []
        self.name = f"here:{next(self.numbers)}"
        self.hubs[self.name] = self

    def address(self) -> str:
        return self.name

    def serve(self, source: Any) -> None:
        self.source = source

    def connect(self, peer: Peer) -> None:
        self.connected.append(peer)

    def forget(self, peer: Peer) -> None: ...

    def fulfil(self, peer: Peer) -> None:
        other = self.hubs.get(peer.address)
        if other is not None:
            other.source.fulfilled(peer.promise)

    def submit(self, batch: Batch) -> None:
        if batch.op is not Op.LOAD or batch.peer is None:
            raise MisuseError("a transport is asked to LOAD from a peer, and for nothing else")
        thread = threading.Thread(target=self._pull, args=(batch, batch.peer), name="kvhub-wire", daemon=True)
        self.threads.append(thread)
        thread.start()

    def _pull(self, batch: Batch, peer: Peer) -> None:
        other = self.hubs.get(peer.address)
        if other is None or other.context.incarnation != peer.incarnation:
            self._end(Completion(batch.id, (Outcome.FAILED,) * len(batch.keys), (0,) * len(batch.keys), reason="peer"))
            return
        got = threading.Event()
        found: list[Held | None] = []

        def ready(ticket: int, helds: list[Held | None]) -> None:
            found.extend(helds)
            got.set()

        ticket = other.source.take(batch.keys, batch.deadline, ready)
        got.wait(30.0)
        for slot, held in zip(batch.slots, found, strict=True):
            if held is not None:
                self.region.slot(slot, held.length)[:] = other.region.slot(held.slot, held.length)
        other.source.give_back(ticket)
        self._end(
            Completion(
                batch.id,
                tuple(Outcome.DONE if held else Outcome.MISS for held in found),
                tuple(held.length if held else 0 for held in found),
                generated=tuple(held.generated if held else 0 for held in found),
                moved=sum(held.length for held in found if held),
            )
        )

    def _end(self, completion: Completion) -> None:
        self.done.append(completion)
        self.wake()

    def poll(self) -> list[Completion]:
        done, self.done = self.done, []
        return done

    def close(self) -> None:
        self.hubs.pop(getattr(self, "name", ""), None)
        for thread in getattr(self, "threads", ()):
            thread.join(5.0)


def wires(wraps: Mapping[str, Callable[[Member], Member]]) -> SimpleNamespace:
    """A plugin whose transports are spied upon, or wrapped in what `wraps` says of their name."""

    class Wrapped(Wire):
        def __new__(cls, config: Any, context: Any) -> Any:
            inner = Wire(config, context)
            if context.name in wraps:
                return wraps[context.name](inner)
            spied = Faulty(inner)
            spied.broken = False
            return spied

    @hookimpl
    def kvhub_register_transports() -> tuple[type, ...]:
        return (Wrapped,)

    return SimpleNamespace(kvhub_register_transports=kvhub_register_transports)
