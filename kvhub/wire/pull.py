"""The pulling side: the link that carries batches to one server."""

from __future__ import annotations

import time
from array import array
from typing import TYPE_CHECKING

from kvhub.types import Batch, Outcome
from kvhub.wire import frames
from kvhub.wire.arrivals import MappedPull, MessagePull, Pull, PutPull, Step
from kvhub.wire.channel import Channel
from kvhub.wire.greeting import Greeting, Refusal, greet
from kvhub.wire.lane import Lane, LaneError
from kvhub.wire.link import SILENCES, Link, State
from kvhub.wire.mapped import Mapping

if TYPE_CHECKING:
    from kvhub.wire.target import Target
    from kvhub.wire.wire import Wire

_KINDS: dict[str, type[Pull]] = {"message": MessagePull, "put": PutPull, "mapped": MappedPull}


class PullLink(Link):
    """A link to a server, dialled by this hub."""

    def __init__(self, wire: Wire, channel: Channel, target: Target) -> None:
        super().__init__(wire, channel, target.address, State.DIALLING)
        self.target = target
        self.mapping: Mapping | None = None
        self._lanes: tuple[str, ...] = ()
        self._fenced = True
        self._pulls: dict[int, Pull] = {}
        self._next = 1

    # Pairing.

    def make_greeting(self) -> Greeting:
        return greet(self.wire.card, self.wire.secret, self.channel, self._join)

    def _join(self, card: frames.Card) -> frames.Join:
        wanted, checked = self.wire.config.path, self.wire.config.checksum == "always"
        if wanted in ("auto", "mapped"):
            problem = self._map(card)
            if not problem:
                return frames.Join("mapped", heartbeat=self.wire.config.heartbeat, checked=checked)
            if wanted == "mapped":
                raise Refusal("path", f"path=mapped, but the peer's arena cannot be mapped: {problem}")
        lane, region = self.open_lane(), self.wire.region
        ticket = self.wire.fabric.ticket() if wanted != "message" else b""
        return frames.Join(
            wanted,
            lane.address(),
            ticket,
            region.address,
            region.slots,
            region.slot_bytes,
            self.wire.config.heartbeat,
            checked,
        )

    def _map(self, card: frames.Card) -> str:
        """Map the server's arena; why not."""
        if not card.arena:
            return "the peer offers none"
        try:
            self.mapping = Mapping(card.arena, card.arena_id, card.slots, card.slot_bytes)
        except (OSError, ValueError) as error:
            return getattr(error, "strerror", None) or str(error)
        return ""

    def greeted(self, join: frames.Join, ready: frames.Ready) -> None:
        if join.checked and not ready.checked:
            raise Refusal("checksum", "asked for checked payloads, the peer means to send them unchecked")
        if self.path not in _KINDS or (join.path in _KINDS and self.path != join.path):
            raise Refusal("path", f"asked for path {join.path!r}, the peer answers {ready.path!r}")
        if self.path == "mapped":
            self._up()
            return
        self.state = State.PROBING
        self._lanes, self._fenced = tuple(ready.lanes), ready.fenced
        self.data.await_peer(ready.address)
        self.post_probe(self.data, send=False)

    def _up(self) -> None:
        self.wire.check_lanes(self)
        self.state, self.was_up = State.UP, True
        self.target.on_up(self)

    @property
    def busy(self) -> bool:
        return self.state is State.PROBING or any(
            pull.under_way and pull.step is not Step.ASKED for pull in self._pulls.values()
        )

    @property
    def waiting(self) -> bool:
        return self.state is not State.UP or bool(self._pulls)

    @property
    def exposed(self) -> bool:
        return self.path == "put" and not self._fenced and any(pull.under_way for pull in self._pulls.values())

    def names(self) -> tuple[str, ...]:
        return super().names() or self._lanes

    def layout_here(self, text: str) -> str:
        """A layout text of the server ("" for the server's own) as this hub would write it."""
        full = text or (self.peer.layout if self.peer is not None else "")
        return "" if full == self.wire.card.layout else full

    # Batches.

    def start(self, batch: Batch) -> None:
        """Ask for the chunks of a batch; the link is up."""
        now = time.monotonic()
        deadline = min(batch.deadline, now + self.wire.config.transfer_timeout)
        pull = _KINDS[self.path](self, batch, self._next, deadline)
        self._next += 1
        self._pulls[pull.transfer] = pull
        rooms = array("Q", batch.lengths).tobytes()
        within = max(pull.deadline - now, 0.0)
        self.say(frames.Pull(pull.transfer, b"".join(batch.keys), rooms, within, pull.asked()))
        self.wire.heat(self)

    def cancel(self, batch_id: int) -> None:
        for pull in list(self._pulls.values()):
            if pull.batch.id == batch_id:
                self._stop(pull, "cancelled")

    def hear(self, message: frames.Any) -> None:
        if isinstance(message, frames.Pong):
            self.target.on_pong()
            return
        if not isinstance(message, frames.Offer | frames.Landed | frames.Commit | frames.Stopped | frames.Broken):
            raise Refusal("protocol", f"a server never says {type(message).__name__}")
        pull = self._pulls.get(message.transfer)
        if pull is None:
            # It ended here while this was on its way.
            self.wire.report("late_frames", 1)
            return
        self.wire.heat(self)
        if isinstance(message, frames.Broken):
            if pull.step is not Step.ASKED and not isinstance(pull, PutPull):
                raise Refusal("protocol", "a pull that broke after its offer")
            pull.stopped(0)
            self._end(pull, Outcome.FAILED, message.reason[:32])
        elif isinstance(message, frames.Stopped):
            if pull.step is not Step.STOPPING:
                self._stop(pull, "stopped", tell=False)
            if pull.transfer in self._pulls:
                pull.stopped(message.groups)
        elif isinstance(message, frames.Commit | frames.Landed):
            if not pull.offered and pull.step is not Step.STOPPING:
                raise Refusal("protocol", "a commit before its offer")
            if isinstance(message, frames.Commit):
                pull.take_commit(message)
            elif pull.step is Step.RUNNING:
                pull.take_checks(message.checks, last=False)
        elif pull.offered or pull.step is Step.STOPPING:
            if pull.offered:
                raise Refusal("protocol", "a second offer for one pull")
        else:
            pull.take_offer(message)
            if not pull.coming:
                self._end(pull, Outcome.MISS, "")

    def advance(self) -> int:
        if self.state is State.PROBING:
            if self.probe_ended(self.data):
                if not self.probe_arrived:
                    raise LaneError("the probe's bytes arrived changed")
                self._up()
            return 0
        ended = 0
        for pull in list(self._pulls.values()):
            if pull.step is Step.ASKED:
                continue
            ended += pull.advance()
            if pull.complete:
                self.say(frames.Ack(pull.transfer, pull.good))
                if pull.transfer in self._pulls:
                    self._end(pull, Outcome.FAILED, pull.reason)
                ended += 1
            elif pull.step is Step.STOPPING and not pull.under_way:
                self._end(pull, Outcome.LATE, pull.reason)
        return ended

    def _stop(self, pull: Pull, reason: str, *, tell: bool = True) -> None:
        if pull.step is Step.STOPPING:
            return
        if tell:
            self.say(frames.Stop(pull.transfer))
        if pull.transfer not in self._pulls:
            return
        asked, pull.step, pull.reason = pull.step is Step.ASKED, Step.STOPPING, reason
        if asked or not pull.under_way:
            self._end(pull, Outcome.LATE, reason)
            return
        pull.cut_at = time.monotonic() + self.wire.config.stop_timeout
        self.wire.heat(self)

    def _end(self, pull: Pull, rest: Outcome, reason: str) -> None:
        del self._pulls[pull.transfer]
        self.wire.complete(pull.batch, pull.completion(rest, reason))

    # Clocks.

    def due(self) -> float:
        if self.state in (State.CLOSING, State.QUARANTINED):
            return float("inf")
        if self.state is not State.UP:
            return self.expires
        first = self.said_at + self.wire.config.heartbeat
        for pull in self._pulls.values():
            first = min(first, pull.cut_at if pull.step is Step.STOPPING else pull.deadline)
        return first

    def tick(self, now: float) -> None:
        if self.state in (State.DIALLING, State.GREETING, State.PROBING) and now >= self.expires:
            self.close("handshake", f"no pairing within {self.wire.config.handshake_timeout:g} s ({self.state.value})")
        for pull in list(self._pulls.values()):
            if pull.step is not Step.STOPPING and now >= pull.deadline:
                self._stop(pull, "timeout")
            elif now >= pull.cut_at:
                self.close("timeout", "the peer did not acknowledge a stop")
        every = self.wire.config.heartbeat
        if self.state is State.UP and now >= self.said_at + every:
            if now >= self.heard_at + SILENCES * every:
                self.close("heartbeat", f"the peer has been silent for {now - self.heard_at:.1f} s")
            else:
                # Also while much is heard: what the server hears is all that it knows of us.
                self.say(frames.Ping())

    # The end.

    def release(self, lane: Lane) -> None:
        for pull in self._pulls.values():
            pull.release(lane)

    def left(self) -> None:
        self.target.on_closed(self)

    def ended(self) -> None:
        now = time.monotonic()
        for pull in list(self._pulls.values()):
            late = pull.step is Step.STOPPING or now >= pull.deadline
            reason = pull.reason if pull.step is Step.STOPPING else self.reason
            self._end(pull, Outcome.LATE if late else Outcome.FAILED, reason)
        if self.mapping is not None:
            self.mapping.close()
            self.mapping = None
        self.target.on_closed(self)
