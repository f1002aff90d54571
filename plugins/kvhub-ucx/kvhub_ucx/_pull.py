"""The pulling side: what became of one batch, and the link that carries batches to one server."""

from __future__ import annotations

import enum
import time
from array import array
from collections import deque
from typing import TYPE_CHECKING

from kvhub.types import Batch, Completion, Outcome
from kvhub_ucx import _frames as frames
from kvhub_ucx._channel import Channel
from kvhub_ucx._greeting import Greeting, Refusal, greet
from kvhub_ucx._groups import CHECK_BYTES, Pieces, check, plan
from kvhub_ucx._libucp import CANCELED, IN_PROGRESS, UcxError, Worker
from kvhub_ucx._link import Link, State

if TYPE_CHECKING:
    from kvhub_ucx._target import Target
    from kvhub_ucx._wire import Wire


class _Step(enum.Enum):
    ASKED = 1
    """No receive is posted: the batch may end at any time."""
    RUNNING = 2
    STOPPING = 3
    """The server was told to stop; what it sent before still comes."""


class Pull:
    """One LOAD batch on its way."""

    def __init__(self, batch: Batch, transfer: int, deadline: float) -> None:
        self.batch = batch
        self.transfer = transfer
        self.deadline = deadline
        self.step = _Step.ASKED
        self.cut_at = float("inf")
        """STOPPING: when to stop being patient."""
        self.stopped_after: int | None = None
        self.outcomes: list[Outcome | None] = [None] * len(batch.keys)
        self.lengths = [0] * len(batch.keys)
        self.reason = ""
        self.moved = 0
        self._layouts: list[str] | None = None
        self._generated: list[int] | None = None
        self._offered: list[int] = []
        self._posted: deque[tuple[int, int, Pieces, list[int]]] = deque()

    def take_offer(self, offer: frames.Offer, link: PullLink, worker: Worker) -> None:
        """Mark what will not come and post receives for what will.  Raises Refusal for an offer that lies."""
        count = len(self.batch.keys)
        lengths = _numbers("q", offer.lengths, count)
        generated = _numbers("I", offer.generated or bytes(4 * count), count)
        which = _numbers("H", offer.which or bytes(2 * count), count)
        for index, length in enumerate(lengths):
            if length < 0:
                self.outcomes[index] = Outcome.MISS if length == frames.ABSENT else Outcome.FAILED
                self.reason = self.reason or ("oversize" if length != frames.ABSENT else "")
            elif length > self.batch.lengths[index]:
                raise Refusal("protocol", f"the peer offers {length} bytes for a room of {self.batch.lengths[index]}")
        if max(which, default=0) >= max(len(offer.layouts), 1):
            raise Refusal("protocol", "the peer offers a layout that it does not name")
        if any(generated):
            self._generated = list(generated)
        layouts = [link.layout_here(text) for text in offer.layouts or [""]]
        if any(layouts):
            self._layouts = [layouts[one] for one in which]
        self._offered = list(lengths)
        region = link.wire.region
        for number, indexes in enumerate(plan(lengths)):
            slots = [self.batch.slots[index] for index in indexes]
            pieces = Pieces(region, slots, [lengths[index] for index in indexes])
            request = worker.receive(self.transfer << 32 | number, pieces.address, pieces.entries)
            self._posted.append((number, request, pieces, indexes))
        self.step = _Step.RUNNING

    @property
    def under_way(self) -> bool:
        return bool(self._posted)

    def advance(self, link: PullLink, worker: Worker) -> int:
        """Verify what has arrived; returns how many messages ended.  Raises UcxError when the lane failed."""
        ended = 0
        while self._posted:
            _, request, pieces, indexes = self._posted[0]
            status, length = worker.received(request)
            if status == IN_PROGRESS:
                break
            worker.free(request)
            self._posted.popleft()
            ended += 1
            if status == CANCELED:
                continue
            worker.library.check(status, "ucp_tag_recv")
            self._verify(link, pieces, indexes, whole=length == pieces.message_bytes)
        return ended

    def _verify(self, link: PullLink, pieces: Pieces, indexes: list[int], *, whole: bool) -> None:
        checks = pieces.checks.tobytes()
        for place, index in enumerate(indexes):
            length = self._offered[index]
            payload = link.wire.region.slot(self.batch.slots[index], length)
            expected = checks[place * CHECK_BYTES : (place + 1) * CHECK_BYTES]
            self.moved += length
            if whole and check(self.batch.keys[index], payload) == expected:
                self.outcomes[index], self.lengths[index] = Outcome.DONE, length
            else:
                self.outcomes[index], self.reason = Outcome.CORRUPT, "checksum" if whole else "length"

    def withdraw(self, worker: Worker, after: int) -> None:
        """Take back the receives of messages from number `after` on: they will not be sent."""
        self.stopped_after = after
        for number, request, _, _ in self._posted:
            if number >= after and worker.status(request) == IN_PROGRESS:
                worker.cancel(request)

    def release(self, worker: Worker) -> None:
        """The worker is about to be destroyed; afterwards nothing is under way."""
        self.withdraw(worker, 0)
        for _, request, _, _ in self._posted:
            worker.free(request)

    def completion(self, rest: Outcome, reason: str) -> Completion:
        """How the batch ended; `rest` is for chunks about which nothing is known."""
        outcomes = tuple(rest if one is None else one for one in self.outcomes)
        open_ends = any(one is None for one in self.outcomes)
        return Completion(
            id=self.batch.id,
            outcomes=outcomes,
            lengths=tuple(self.lengths),
            layouts=None if self._layouts is None else tuple(self._layouts),
            generated=None if self._generated is None else tuple(self._generated),
            moved=self.moved,
            reason=reason if open_ends else self.reason,
        )


def _numbers(kind: str, data: bytes, count: int) -> array[int]:
    found: array[int] = array(kind)
    if len(data) != count * found.itemsize:
        raise Refusal("protocol", f"expected {count} numbers of {found.itemsize} bytes, heard {len(data)} bytes")
    found.frombytes(data)
    return found


class PullLink(Link):
    """A link to a server, dialled by this hub."""

    def __init__(self, wire: Wire, channel: Channel, target: Target) -> None:
        super().__init__(wire, channel, target.address, State.DIALLING)
        self.target = target
        self._pulls: dict[int, Pull] = {}
        self._next = 1

    def make_greeting(self) -> Greeting:
        return greet(self.wire.card, self.wire.secret, self.channel, self._open_lane)

    def _open_lane(self) -> bytes:
        worker = self.open_worker()
        self.post_probe(worker, send=False)
        return worker.address()

    def greeted(self, address: bytes) -> None:
        assert self.worker is not None
        self.worker.connect(address)
        self.state = State.PROBING

    @property
    def busy(self) -> bool:
        return any(pull.under_way for pull in self._pulls.values())

    def layout_here(self, text: str) -> str:
        """A layout text of the server ("" for the server's own) as this hub would write it."""
        full = text or (self.peer.layout if self.peer is not None else "")
        return "" if full == self.wire.card.layout else full

    def start(self, batch: Batch) -> None:
        """Ask for the chunks of a batch; the link is up."""
        now = time.monotonic()
        pull = Pull(batch, self._next, min(batch.deadline, now + self.wire.config.transfer_timeout))
        self._next += 1
        self._pulls[pull.transfer] = pull
        rooms = array("Q", batch.lengths).tobytes()
        self.say(frames.Pull(pull.transfer, b"".join(batch.keys), rooms, max(pull.deadline - now, 0.0)))

    def cancel(self, batch_id: int) -> None:
        for pull in list(self._pulls.values()):
            if pull.batch.id == batch_id:
                self._stop(pull, "cancelled")

    def hear(self, message: frames.Any) -> None:
        if isinstance(message, frames.Pong):
            self.target.on_pong()
            return
        if not isinstance(message, frames.Offer | frames.Stopped | frames.Broken):
            raise Refusal("protocol", f"a server never says {type(message).__name__}")
        pull = self._pulls.get(message.transfer)
        if pull is None:
            # It ended here while this was on its way.
            self.wire.report("late_frames", 1)
            return
        if isinstance(message, frames.Broken):
            self._end(pull, Outcome.FAILED, message.reason[:32])
        elif isinstance(message, frames.Stopped):
            if pull.step is not _Step.STOPPING:
                self._stop(pull, "stopped", tell=False)
            if self.worker is not None and pull.transfer in self._pulls:
                pull.withdraw(self.worker, message.groups)
                self.wire.heat(self)
        elif pull.step is _Step.ASKED and self.worker is not None:
            pull.take_offer(message, self, self.worker)
            if pull.under_way:
                self.wire.heat(self)
                self.say(frames.Go(pull.transfer))
            else:
                self._end(pull, Outcome.MISS, "")

    def advance(self) -> int:
        assert self.worker is not None
        if self.state is State.PROBING and self.probe_ended(self.worker):
            self._proved()
        ended = 0
        for pull in list(self._pulls.values()):
            if pull.step is _Step.ASKED:
                continue
            ended += pull.advance(self, self.worker)
            if not pull.under_way:
                late = pull.step is _Step.STOPPING
                self._end(pull, Outcome.LATE if late else Outcome.FAILED, pull.reason)
        return ended

    def _proved(self) -> None:
        if not self.probe_arrived:
            raise UcxError(-1, "probe of the data lane", "other bytes arrived than were sent")
        self.wire.check_lanes(self.lanes(), self.label)
        self.state, self.was_up = State.UP, True
        self.target.on_up(self)

    def _stop(self, pull: Pull, reason: str, *, tell: bool = True) -> None:
        if pull.step is _Step.STOPPING:
            return
        if tell:
            self.say(frames.Stop(pull.transfer))
        if pull.transfer not in self._pulls:
            return
        if pull.step is _Step.ASKED:
            self._end(pull, Outcome.LATE, reason)
            return
        pull.step, pull.reason = _Step.STOPPING, reason
        pull.cut_at = time.monotonic() + self.wire.config.stop_timeout

    def _end(self, pull: Pull, rest: Outcome, reason: str) -> None:
        del self._pulls[pull.transfer]
        self.wire.complete(pull.batch, pull.completion(rest, reason))

    def due(self) -> float:
        first = self.expires if self.state is not State.UP else float("inf")
        for pull in self._pulls.values():
            first = min(first, pull.cut_at if pull.step is _Step.STOPPING else pull.deadline)
        return first

    def tick(self, now: float) -> None:
        if self.state in (State.DIALLING, State.GREETING, State.PROBING) and now >= self.expires:
            self.close("handshake", f"no pairing within {self.wire.config.handshake_timeout:g} s ({self.state.value})")
        for pull in list(self._pulls.values()):
            if pull.step is not _Step.STOPPING and now >= pull.deadline:
                self._stop(pull, "timeout")
            elif now >= pull.cut_at:
                self.close("timeout", "the peer did not acknowledge a stop")

    def release(self) -> None:
        assert self.worker is not None
        for pull in self._pulls.values():
            pull.release(self.worker)

    def ended(self) -> None:
        now = time.monotonic()
        for pull in list(self._pulls.values()):
            late = pull.step is _Step.STOPPING or now >= pull.deadline
            reason = pull.reason if pull.step is _Step.STOPPING else self.reason
            self._end(pull, Outcome.LATE if late else Outcome.FAILED, reason)
        self.target.on_closed(self)
