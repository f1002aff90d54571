"""`UcxTransport`: the member that the hub sees.  All the work is done on the wire's thread."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from typing import ClassVar

from kvhub.errors import MisuseError
from kvhub.transport import Source, Transport
from kvhub.types import Batch, Capabilities, Completion, MemberContext, Op, Outcome, Peer, Region
from kvhub_ucx import _addresses
from kvhub_ucx import _frames as frames
from kvhub_ucx import config as options
from kvhub_ucx._wire import Wire

_CLOSE_TIMEOUT = 4.5


class UcxTransport(Transport):
    """Pulls chunks by key out of a peer's arena into ours, over UCX; see the README for settings and safety.

    Counters: bytes_in, bytes_out (payload on the wire), pulls, pull_errors (pulls with a FAILED, CORRUPT or LATE
    chunk), pulls_served, pair_failed, handshake_refused, late_frames.
    """

    Config: ClassVar[type] = options.Config

    def __init__(self, config: options.Config, context: MemberContext) -> None:
        super().__init__(config, context)
        self.config: options.Config = config
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

    def attach(self, region: Region, wake: Callable[[], None]) -> None:
        if self._wire is not None:
            raise MisuseError(f"{self.context.name}: attached twice")
        self._capabilities = Capabilities(max_chunk_bytes=region.slot_bytes)
        self._wake = wake
        card = frames.Card(
            self.context.incarnation, self.context.namespace, self.context.namespace_json, self.context.layout.text
        )
        wire = Wire(self.config, self.context.name, card, region, self.context.report, self._done)
        wire.start()
        self._wire = wire

    def address(self) -> str:
        return self._wire.address if self._wire is not None else ""

    def serve(self, source: Source) -> None:
        self._open("serve").source = source

    def connect(self, peer: Peer) -> None:
        wire = self._open("connect")
        if _addresses.valid(peer.address):
            wire.connect(peer)

    def forget(self, peer: Peer) -> None:
        wire = self._open("forget")
        if _addresses.valid(peer.address):
            wire.forget(peer)

    def fulfil(self, peer: Peer) -> None:
        wire = self._open("fulfil")
        if peer.promise and _addresses.valid(peer.address):
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
        if any(not 0 <= slot < slots for slot in batch.slots) or any(not 0 <= room <= most for room in batch.lengths):
            raise MisuseError(f"{name}: a slot beyond {slots} or a length beyond {most} bytes")
        self.context.report("pulls", 1)
        if not _addresses.valid(batch.peer.address):
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
