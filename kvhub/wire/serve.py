"""The serving side: one peer's pulls, answered from the hub's source."""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

from kvhub.types import KEY_BYTES, Held
from kvhub.wire import frames
from kvhub.wire.channel import Channel
from kvhub.wire.departures import KINDS, Serve, Step
from kvhub.wire.greeting import Greeting, Refusal, answer
from kvhub.wire.groups import WINDOW, plan
from kvhub.wire.lane import Lane
from kvhub.wire.link import SILENCES, Link, State

if TYPE_CHECKING:
    from kvhub.wire.wire import Wire

_ALL_OF_THEM = 1 << 31
_GENERATED, _LAYOUT = attrgetter("generated"), attrgetter("layout")


def _columns(found: Sequence[Held | None]) -> tuple[array[int], array[int]]:
    """Length and slot of each chunk; ABSENT and 0 where there is none."""
    lengths = array("q", [frames.ABSENT if held is None else held.length for held in found])
    return lengths, array("q", [0 if held is None else held.slot for held in found])


class ServeLink(Link):
    """A link that a puller dialled."""

    def __init__(self, wire: Wire, channel: Channel, label: str) -> None:
        super().__init__(wire, channel, label, State.GREETING)
        self.room = WINDOW
        """How many more messages may be under way."""
        self.remote = (0, 0)
        """Address of the puller's region in its process, and the size of its slots."""
        self._remote_slots = 0
        self._heartbeat = wire.config.heartbeat
        self._serves: dict[int, Serve] = {}
        self._turns: deque[Serve] = deque()
        """Serves with something to send, in turn, so that a short pull does not wait for a long one."""

    # Pairing.

    def make_greeting(self) -> Greeting:
        return answer(self.wire.server_card(), self.wire.secret, self.channel, self._join)

    def _join(self, join: frames.Join) -> frames.Ready:
        self.wire.check_room()
        mine = self.wire.config.path
        checked = join.checked or self.wire.config.checksum == "always"
        self._heartbeat = max(join.heartbeat, 0.01)
        if join.path == "mapped":
            if mine not in ("auto", "mapped"):
                raise Refusal("path", f"the peer wants to map the arena, here path={mine}")
            return frames.Ready("mapped", checked=checked)
        lane = self.open_lane()
        address = lane.address()
        lane.connect(join.address)
        wanted = {join.path, mine} - {"auto"}
        better = lane.puts_from is not None and lane.puts_from <= min(join.slot_bytes, self.wire.region.slot_bytes)
        puts = bool(join.ticket) and (wanted == {"put"} or (not wanted and better))
        path = "put" if puts else "message"
        if wanted - {path}:
            raise Refusal("path", f"the puller's path is {join.path!r}, the server's {mine!r}, and that leaves none")
        if puts:
            lane.use_ticket(join.ticket)
        self.remote, self._remote_slots = (join.base, join.slot_bytes), join.slots
        return frames.Ready(path, address, checked or not lane.local, list(lane.names()), lane.fenced)

    def greeted(self, join: frames.Join, ready: frames.Ready) -> None:
        self.state, self.was_up = State.UP, True
        if self.lane is not None:
            self.post_probe(self.lane, send=True)
        self.wire.log.debug("wire.accepted", peer=self.label, path=self.path, lanes=",".join(self.names()))

    @property
    def writes(self) -> bool:
        return self.path == "put"

    @property
    def busy(self) -> bool:
        return bool(self._probe) or any(
            serve.step is Step.SENDING or serve.under_way or serve.turn for serve in self._serves.values()
        )

    @property
    def waiting(self) -> bool:
        return self.state is not State.UP or bool(self._probe or self._serves)

    # What the puller says.

    def hear(self, message: frames.Any) -> None:
        if isinstance(message, frames.Pull):
            self._pull(message)
        elif isinstance(message, frames.Fulfilled):
            self.wire.fulfilled(message.promise)
        elif isinstance(message, frames.Go):
            self._go(message.transfer)
        elif isinstance(message, frames.Ack):
            self._ack(message.transfer)
        elif isinstance(message, frames.Stop):
            self._stop(message.transfer)
        elif isinstance(message, frames.Ping):
            self.say(frames.Pong())
        else:
            raise Refusal("protocol", f"a puller never says {type(message).__name__}")

    def _pull(self, pull: frames.Pull) -> None:
        count, rest = divmod(len(pull.keys), KEY_BYTES)
        puts = 8 * count if self.path == "put" else 0
        if rest or not count or len(pull.rooms) != 8 * count or len(pull.slots) != puts:
            raise Refusal("protocol", "a pull of nothing, or whose keys, rooms and slots are not as many")
        if pull.transfer in self._serves or not pull.within >= 0:
            raise Refusal("protocol", "a pull whose time or number cannot be")
        rooms, slots = array("Q"), array("Q")
        rooms.frombytes(pull.rooms)
        slots.frombytes(pull.slots)
        if any(slot >= self._remote_slots for slot in slots) or (puts and max(rooms, default=0) > self.remote[1]):
            raise Refusal("protocol", "a pull into slots that are not there")
        keys = [pull.keys[at : at + KEY_BYTES] for at in range(0, len(pull.keys), KEY_BYTES)]
        deadline = time.monotonic() + min(pull.within, self.wire.config.transfer_timeout)
        serve = KINDS[self.path](self, pull.transfer, keys, rooms, slots, deadline)
        self._serves[pull.transfer] = serve
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
        if self._serves.get(serve.transfer) is not serve or serve.step is not Step.WAITING:
            # Its leases went back when it ended, be it before the source had answered.
            return
        lengths, places = _columns(found)
        region = self.wire.region
        if not (0 <= min(places) <= max(places) < region.slots and max(lengths) <= region.slot_bytes):
            slots, most = region.slots, region.slot_bytes
            found = [h if h is not None and 0 <= h.slot < slots and 0 <= h.length <= most else None for h in found]
            lengths, places = _columns(found)
        if max(lengths) > min(serve.rooms):
            for index, (length, room) in enumerate(zip(lengths, serve.rooms, strict=True)):
                if length > room:
                    lengths[index] = frames.OVERSIZE
        came = [held for held, length in zip(found, lengths, strict=True) if held is not None and length >= 0]
        generated, layouts, which = b"", [""], b""
        if any(map(_GENERATED, came)):
            generated = array("I", [0 if held is None else held.generated for held in found]).tobytes()
        if any(map(_LAYOUT, came)):
            layouts = list(dict.fromkeys(["", *(held.layout for held in came)]))
            places_of = {layout: number for number, layout in enumerate(layouts)}
            which = array("H", [0 if held is None else places_of.get(held.layout, 0) for held in found]).tobytes()
        serve.lengths, serve.held, serve.count, serve.groups = lengths, places, len(came), plan(lengths)
        serve.step = Step.OFFERED
        slots_said = serve.offered()
        self.say(
            frames.Offer(
                serve.transfer,
                lengths.tobytes(),
                generated,
                layouts if which else [],
                which,
                slots_said,
            )
        )
        if serve.count:
            self._turns.append(serve)
            self.wire.heat(self)
        else:
            self._end(serve)

    def _go(self, transfer: int) -> None:
        serve = self._serves.get(transfer)
        if serve is None:
            # Its time was up here before the puller was ready.
            self.say(frames.Stopped(transfer, 0))
        elif serve.step is not Step.STOPPED:
            serve.go()
            self.wire.heat(self)

    def _ack(self, transfer: int) -> None:
        serve = self._serves.get(transfer)
        if serve is None:
            return
        if serve.step not in (Step.COMMITTED, Step.STOPPED):
            raise Refusal("protocol", "an acknowledgement of what was not committed")
        serve.step = Step.STOPPED
        if not serve.under_way:
            self._end(serve)

    def _stop(self, transfer: int) -> None:
        serve = self._serves.get(transfer)
        if serve is None:
            self.say(frames.Stopped(transfer, _ALL_OF_THEM))
            return
        self._no_more(serve)

    def _no_more(self, serve: Serve) -> None:
        """Send nothing more of it; say so as soon as that is true of everything that was begun."""
        first, serve.step = serve.step is not Step.STOPPED, Step.STOPPED
        # The puller takes back its receives of messages that were not sent, and lets the others come.
        if first and self.path == "message":
            self.say(frames.Stopped(serve.transfer, serve.sent))
        if not serve.under_way:
            if first and self.path != "message":
                self.say(frames.Stopped(serve.transfer, serve.sent))
            self._end(serve)
        else:
            self.wire.heat(self)

    # Sending.

    def advance(self) -> int:
        if self.lane is not None and not self.probe_ended(self.lane):
            return 0
        moved = 0
        for serve in list(self._serves.values()):
            moved += serve.advance()
            if serve.step is Step.STOPPED and not serve.under_way:
                if self.path == "put":
                    self.say(frames.Stopped(serve.transfer, serve.sent))
                self._end(serve)
        for _ in range(len(self._turns)):
            serve = self._turns.popleft()
            if serve.turn:
                serve.send()
                moved += 1
            if self._serves.get(serve.transfer) is serve and serve.step in (Step.OFFERED, Step.SENDING):
                self._turns.append(serve)
        return moved

    def _end(self, serve: Serve) -> None:
        """No request reads its slots any more."""
        if self._serves.pop(serve.transfer, None) is serve:
            self.wire.report("bytes_out", serve.bytes)
            if serve.ticket is not None:
                self.wire.give_back(serve.ticket)
                serve.ticket = None

    # Clocks and the end.

    def due(self) -> float:
        if self.state in (State.CLOSING, State.QUARANTINED):
            return float("inf")
        if self.state is not State.UP:
            return self.expires
        config = self.wire.config
        first = min((serve.deadline + config.stop_timeout for serve in self._serves.values()), default=float("inf"))
        return min(first, self._silent_at)

    @property
    def _silent_at(self) -> float:
        """When a puller that says nothing counts as gone; later than it would give up itself."""
        return self.heard_at + (SILENCES + 2) * self._heartbeat

    def tick(self, now: float) -> None:
        if self.state is State.GREETING and now >= self.expires:
            self.close("handshake", f"no greeting within {self.wire.config.handshake_timeout:g} s")
            return
        for serve in list(self._serves.values()):
            if now < serve.deadline + self.wire.config.stop_timeout:
                continue
            if serve.under_way:
                self.close("timeout", "the peer takes no more bytes")
                return
            self._no_more(serve)
        if self.state is State.UP and now >= self._silent_at:
            self.close("heartbeat", f"the peer has been silent for {now - self.heard_at:.1f} s")

    def release(self, lane: Lane) -> None:
        for serve in self._serves.values():
            serve.release(lane)

    def ended(self) -> None:
        self._turns.clear()
        for serve in list(self._serves.values()):
            self._end(serve)
