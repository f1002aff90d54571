"""The serving side: one peer's pulls, answered from the hub's source."""

from __future__ import annotations

import enum
import time
from array import array
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvhub.types import KEY_BYTES, Held, Key
from kvhub_ucx import _frames as frames
from kvhub_ucx._channel import Channel
from kvhub_ucx._greeting import Greeting, Refusal, answer
from kvhub_ucx._groups import CHECK_BYTES, WINDOW, Pieces, check, plan
from kvhub_ucx._libucp import IN_PROGRESS
from kvhub_ucx._link import Link, State

if TYPE_CHECKING:
    from kvhub_ucx._wire import Wire

_ALL_OF_THEM = 1 << 31


class _Step(enum.Enum):
    WAITING = 1
    """For the source."""
    OFFERED = 2
    """For the puller's receives."""
    SENDING = 3
    STOPPED = 4
    """Nothing more will be sent; what was is still under way."""


class Serve:
    """One pull of a peer."""

    def __init__(self, transfer: int, keys: list[Key], rooms: Sequence[int], deadline: float) -> None:
        self.transfer = transfer
        self.keys = keys
        self.rooms = rooms
        self.deadline = deadline
        self.step = _Step.WAITING
        self.ticket: int | None = None
        """Of leases that are to be given back; None again once they were."""
        self.held: list[Held | None] = []
        self.groups: list[list[int]] = []
        self.sent = 0
        """Messages handed to UCX."""
        self.under_way = 0
        """Of those, messages that still read the slots."""
        self.bytes = 0


class ServeLink(Link):
    """A link that a puller dialled."""

    def __init__(self, wire: Wire, channel: Channel, label: str) -> None:
        super().__init__(wire, channel, label, State.GREETING)
        self._serves: dict[int, Serve] = {}
        self._turns: deque[Serve] = deque()
        """Serves with messages to send, in turn, so that a short pull does not wait for a long one."""
        self._under_way: deque[tuple[Serve, int, Pieces]] = deque()

    def make_greeting(self) -> Greeting:
        return answer(self.wire.card, self.wire.secret, self.channel, self._open_lane)

    def _open_lane(self, address: bytes) -> bytes:
        worker = self.open_worker()
        worker.connect(address)
        return worker.address()

    def greeted(self, address: bytes) -> None:
        assert self.worker is not None
        self.post_probe(self.worker, send=True)
        self.state, self.was_up = State.UP, True
        self.wire.log.debug("wire.accepted", peer=self.label, lanes=",".join(self.lanes()))

    @property
    def busy(self) -> bool:
        return bool(self._under_way or self._turns)

    def hear(self, message: frames.Any) -> None:
        if isinstance(message, frames.Pull):
            self._pull(message)
        elif isinstance(message, frames.Fulfilled):
            self.wire.fulfilled(message.promise)
        elif isinstance(message, frames.Go):
            self._go(message.transfer)
        elif isinstance(message, frames.Stop):
            self._stop(message.transfer)
        elif isinstance(message, frames.Ping):
            self.say(frames.Pong())
        else:
            raise Refusal("protocol", f"a puller never says {type(message).__name__}")

    def _pull(self, pull: frames.Pull) -> None:
        count, rest = divmod(len(pull.keys), KEY_BYTES)
        if rest or len(pull.rooms) != 8 * count or pull.transfer in self._serves or not pull.within >= 0:
            raise Refusal("protocol", "a pull whose keys, rooms, time or number cannot be")
        rooms: array[int] = array("Q")
        rooms.frombytes(pull.rooms)
        keys = [pull.keys[at : at + KEY_BYTES] for at in range(0, len(pull.keys), KEY_BYTES)]
        deadline = time.monotonic() + min(pull.within, self.wire.config.transfer_timeout)
        serve = self._serves[pull.transfer] = Serve(pull.transfer, keys, rooms, deadline)
        self.wire.report("pulls_served", 1)

        def ready(ticket: int, found: list[Held | None]) -> None:
            self.wire.post(lambda: self._found(serve, found))

        try:
            ticket = self.wire.take(keys, deadline, ready)
        except Exception as error:
            self.wire.log.error("wire.source_failed", exc_info=error)
            del self._serves[pull.transfer]
            self.say(frames.Broken(pull.transfer, "source"))
            return
        serve.ticket = ticket

    def _found(self, serve: Serve, found: list[Held | None]) -> None:
        if self._serves.get(serve.transfer) is not serve or serve.step is not _Step.WAITING:
            # Its leases went back when it ended, be it before the source had answered.
            return
        region, lengths = self.wire.region, array("q")
        for held, room in zip(found, serve.rooms, strict=True):
            if held is None or not (0 <= held.slot < region.slots and 0 <= held.length <= region.slot_bytes):
                lengths.append(frames.ABSENT)
            else:
                lengths.append(held.length if held.length <= room else frames.OVERSIZE)
        serve.held, serve.groups, serve.step = found, plan(lengths), _Step.OFFERED
        held_or_not = [held if length >= 0 else None for held, length in zip(found, lengths, strict=True)]
        generated = array("I", (held.generated if held else 0 for held in held_or_not))
        layouts = list(dict.fromkeys(["", *(held.layout for held in held_or_not if held)]))
        which = array("H", (layouts.index(held.layout) if held else 0 for held in held_or_not))
        self.say(
            frames.Offer(
                serve.transfer,
                lengths.tobytes(),
                generated.tobytes() if any(generated) else b"",
                layouts if any(which) else [],
                which.tobytes() if any(which) else b"",
            )
        )
        if not serve.groups:
            self._end(serve)

    def _go(self, transfer: int) -> None:
        serve = self._serves.get(transfer)
        if serve is None:
            # Its time was up here before the puller was ready.
            self.say(frames.Stopped(transfer, 0))
        elif serve.step is _Step.OFFERED:
            serve.step = _Step.SENDING
            self._turns.append(serve)
            self.wire.heat(self)
        else:
            raise Refusal("protocol", "a second go for one pull")

    def _stop(self, transfer: int) -> None:
        serve = self._serves.get(transfer)
        if serve is None:
            self.say(frames.Stopped(transfer, _ALL_OF_THEM))
            return
        self._no_more(serve)
        if not serve.under_way:
            self._end(serve)

    def _no_more(self, serve: Serve) -> None:
        if serve.step is not _Step.STOPPED:
            if serve.step is _Step.SENDING and serve in self._turns:
                self._turns.remove(serve)
            serve.step = _Step.STOPPED
            self.say(frames.Stopped(serve.transfer, serve.sent))

    def advance(self) -> int:
        assert self.worker is not None
        self.probe_ended(self.worker)
        moved = 0
        while self._under_way:
            serve, request, _ = self._under_way[0]
            if request:
                status = self.worker.status(request)
                if status == IN_PROGRESS:
                    break
                self.worker.free(request)
                self._under_way.popleft()
                self.worker.library.check(status, "ucp_tag_send")
            else:
                self._under_way.popleft()
            self._left(serve)
            moved += 1
        while self._turns and len(self._under_way) < WINDOW:
            self._send(self._turns.popleft())
            moved += 1
        return moved

    def _send(self, serve: Serve) -> None:
        assert self.worker is not None
        region, indexes = self.wire.region, serve.groups[serve.sent]
        held = [one for one in (serve.held[index] for index in indexes) if one is not None]
        pieces = Pieces(region, [one.slot for one in held], [one.length for one in held])
        for place, (index, one) in enumerate(zip(indexes, held, strict=True)):
            digest = check(serve.keys[index], region.slot(one.slot, one.length))
            pieces.checks[place * CHECK_BYTES : (place + 1) * CHECK_BYTES] = array("B", digest)
        request = self.worker.send(serve.transfer << 32 | serve.sent, pieces.address, pieces.entries)
        self._under_way.append((serve, request, pieces))
        serve.sent, serve.under_way, serve.bytes = (
            serve.sent + 1,
            serve.under_way + 1,
            serve.bytes + pieces.payload_bytes,
        )
        if serve.sent < len(serve.groups):
            self._turns.append(serve)

    def _left(self, serve: Serve) -> None:
        serve.under_way -= 1
        if not serve.under_way and (serve.step is _Step.STOPPED or serve.sent == len(serve.groups)):
            self._end(serve)

    def _end(self, serve: Serve) -> None:
        """No request reads its slots any more."""
        if self._serves.pop(serve.transfer, None) is serve:
            self.wire.report("bytes_out", serve.bytes)
            if serve.ticket is not None:
                self.wire.give_back(serve.ticket)
                serve.ticket = None

    def due(self) -> float:
        if self.state is not State.UP:
            return self.expires
        patience = self.wire.config.stop_timeout
        return min((serve.deadline + patience for serve in self._serves.values()), default=float("inf"))

    def tick(self, now: float) -> None:
        if self.state is State.GREETING and now >= self.expires:
            self.close("handshake", f"no greeting within {self.wire.config.handshake_timeout:g} s")
        for serve in list(self._serves.values()):
            if now < serve.deadline + self.wire.config.stop_timeout:
                continue
            if serve.under_way:
                self.close("timeout", "the peer takes no more bytes")
                return
            if serve.step is not _Step.STOPPED:
                self._no_more(serve)
            self._end(serve)

    def release(self) -> None:
        assert self.worker is not None
        for _, request, _ in self._under_way:
            if request:
                self.worker.free(request)

    def ended(self) -> None:
        self._under_way.clear()
        self._turns.clear()
        for serve in list(self._serves.values()):
            self._end(serve)
