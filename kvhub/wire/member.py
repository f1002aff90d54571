"""`WireTransport`: the member that the hub sees.  All the work is done on the wire's thread."""

from __future__ import annotations

import abc
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import ClassVar

import attrs

from kvhub.errors import KvhubError, MisuseError
from kvhub.findings import Finding
from kvhub.transport import Source, Transport
from kvhub.types import Batch, Capabilities, Completion, MemberContext, Op, Outcome, Peer, Region
from kvhub.wire import addresses, diagnosis, frames
from kvhub.wire.lane import Fabric
from kvhub.wire.options import WireConfig
from kvhub.wire.wire import Wire

_CLOSE_TIMEOUT = 4.5


class WireTransport(Transport):
    """Pulls chunks by key out of a peer's arena into ours, over the lanes of a fabric; see docs/transport.md.

    Counters: bytes_in, bytes_out (payload bytes that moved), pulls, pull_errors (pulls with a FAILED, CORRUPT or LATE
    chunk), pulls_served, pair_failed, handshake_refused, late_frames, quarantines, lane_NAME (pairings that use it).
    """

    Config: ClassVar[type] = WireConfig

    def __init__(self, config: WireConfig, context: MemberContext) -> None:
        super().__init__(config, context)
        self.config: WireConfig = config
        self._capabilities = Capabilities()
        self._completions: deque[Completion] = deque()
        self._wire: Wire | None = None
        self._wake: Callable[[], None] = lambda: None
        self._closed = False
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._queued_bytes = 0

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @abc.abstractmethod
    def fabric(self) -> Fabric:
        """What the lanes are made of; called once, at `attach`.  Raises KvhubError."""

    def attach(self, region: Region, wake: Callable[[], None]) -> None:
        if self._wire is not None:
            raise MisuseError(f"{self.context.name}: attached twice")
        fabric = self.fabric()
        if region.memory != "host" and not fabric.device_direct:
            raise KvhubError(
                f"{self.context.name}: the region is in the memory of {region.memory}, where payloads cannot be "
                "checked by this transport; give it an arena in host memory"
            )
        self._capabilities = Capabilities(max_chunk_bytes=region.slot_bytes, device_direct=fabric.device_direct)
        self._wake = wake
        context = self.context
        card = frames.Card(context.incarnation, context.namespace, context.namespace_json, context.layout.text)
        wire = Wire(self.config, context.name, card, region, fabric, context.report, self._done)
        wire.start()
        self._wire = wire

    def address(self) -> str:
        return self._wire.address if self._wire is not None else ""

    def serve(self, source: Source) -> None:
        self._open("serve").source = source

    def connect(self, peer: Peer) -> None:
        wire = self._open("connect")
        if addresses.valid(peer.address):
            wire.connect(peer)

    def forget(self, peer: Peer) -> None:
        wire = self._open("forget")
        if addresses.valid(peer.address):
            wire.forget(peer)

    def fulfil(self, peer: Peer) -> None:
        wire = self._open("fulfil")
        if peer.promise and addresses.valid(peer.address):
            wire.fulfil(peer)

    def submit(self, batch: Batch) -> None:
        name = self.context.name
        if batch.op is not Op.LOAD:
            raise MisuseError(f"{name}: a transport takes LOAD batches only, found {batch.op.name}")
        if batch.peer is None:
            raise MisuseError(f"{name}: a LOAD from a transport needs a peer")
        if not len(batch.keys) == len(batch.slots) == len(batch.lengths):
            raise MisuseError(
                f"{name}: one batch has {len(batch.keys)} keys, {len(batch.slots)} slots, {len(batch.lengths)} lengths"
            )
        wire = self._open("submit")
        slots, most = wire.region.slots, wire.region.slot_bytes
        if batch.keys and (
            min(batch.slots) < 0 or max(batch.slots) >= slots or min(batch.lengths) < 0 or max(batch.lengths) > most
        ):
            raise MisuseError(f"{name}: a slot beyond {slots} or a length beyond {most} bytes")
        self.context.report("pulls", 1)
        if not addresses.valid(batch.peer.address):
            # It came with a request's parameters: the world's fault, not the caller's.
            self.context.report("pull_errors", 1)
            self._end(batch, Outcome.FAILED, "address")
            return
        with self._lock:
            full = self._queued_bytes + sum(batch.lengths) > self.config.most_queued_bytes
            if not full:
                self._queued_bytes += sum(batch.lengths)
        if full:
            self._end(batch, Outcome.FULL, "queue")
        elif not batch.keys:
            self._done(batch, Completion(batch.id, ()))
        elif not wire.submit(batch):
            count = len(batch.keys)
            self._done(batch, Completion(batch.id, (Outcome.FAILED,) * count, (0,) * count, reason="broken"))

    def poll(self) -> list[Completion]:
        found = []
        while self._completions:
            found.append(self._completions.popleft())
        return found

    def cancel(self, batch_id: int) -> None:
        if self._wire is not None and not self._closed:
            self._wire.cancel(batch_id)

    def healthy(self) -> str:
        if self._wire is None:
            return "" if self._closed else "not attached"
        if self._wire.broken:
            return f"the wire's thread ended: {self._wire.broken}"
        problems = self._wire.problems()
        more = f" (and {len(problems) - 1} more peers)" if len(problems) > 1 else ""
        return f"cannot pair with {problems[0]}{more}" if problems else ""

    @classmethod
    def rehearsal(cls, config: WireConfig) -> tuple[WireConfig, WireConfig]:
        # On the addresses that are configured, since a fabric takes its devices from them.
        host = addresses.parse(config.listen)[0] if config.listen else "127.0.0.1"
        told = addresses.show(addresses.parse(config.advertise)[0], 0) if config.advertise else ""
        free = attrs.evolve(config, listen=addresses.show(host, 0), advertise=told if addresses.is_any(host) else "")
        return free, free

    def diagnose(self) -> Iterable[Finding]:
        return diagnosis.findings(self.config, self.address())

    def close(self) -> None:
        wire, already = self._wire, self._closed
        self._closed = True
        # A forked child has the object but neither the thread nor a right to the connections.
        if wire is None or already or os.getpid() != self._pid:
            return
        if not wire.stop(_CLOSE_TIMEOUT):
            wire.log.error("wire.stuck", text="the wire's thread did not end; its memory stays mapped")

    def _open(self, what: str) -> Wire:
        if self._closed or self._wire is None:
            state = "closed" if self._closed else "not attached"
            raise MisuseError(f"{self.context.name}: {what} on a transport that is {state}")
        return self._wire

    def _end(self, batch: Batch, outcome: Outcome, reason: str) -> None:
        count = len(batch.keys)
        self._completions.append(Completion(batch.id, (outcome,) * count, (0,) * count, reason=reason))
        self._wake()

    def _done(self, batch: Batch, completion: Completion) -> None:
        """On the wire's thread: a batch has ended, and nothing can write to its slots any more."""
        with self._lock:
            self._queued_bytes -= sum(batch.lengths)
        if completion.moved:
            self.context.report("bytes_in", completion.moved)
        if any(o in (Outcome.FAILED, Outcome.CORRUPT, Outcome.LATE) for o in completion.outcomes):
            self.context.report("pull_errors", 1)
        self._completions.append(completion)
        self._wake()
