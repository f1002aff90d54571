"""`Link`: one control connection and at most one lane, which live and end together.

A link is an epoch.  Nothing of it outlives it: when a peer hangs or dies, the link is cut by telling the peer so,
cutting its lane off and destroying it.  Only the last step makes sure that no late message can reach a slot: a receive
that a message has half filled can be neither cancelled nor ended (seen on TCP and shared memory with UCX 1.21), and the
rest of that message may come whenever the peer wakes up.  Where even that is no fence, because the peer's process
writes by itself, the link is quarantined until the peer has closed its end, be it by dying.  A link goes one way, from
the server that has chunks to the puller that wants them, so that a cut ends no transfer of the other direction.
"""

from __future__ import annotations

import abc
import contextlib
import enum
import time
from array import array
from typing import TYPE_CHECKING

from kvhub.errors import KvhubError
from kvhub.wire import frames
from kvhub.wire.channel import Channel, Lost
from kvhub.wire.greeting import Greeting, HandOver, Refusal
from kvhub.wire.groups import Pieces
from kvhub.wire.lane import IN_PROGRESS, Lane, LaneError

if TYPE_CHECKING:
    from kvhub.wire.wire import Wire

PROBE_TAG = (1 << 64) - 1
_PROBE = b"kvhub-wire probe"
_CUT_TIMEOUT = 1.0
SILENCES = 3


class State(enum.Enum):
    DIALLING = "dialling"
    GREETING = "greeting"
    PROBING = "probing"
    UP = "up"
    CLOSING = "closing"
    QUARANTINED = "quarantined"
    """Cut, and the peer may still write."""
    CLOSED = "closed"


class Link(abc.ABC):
    """What pulling and serving links have in common.  Everything runs on the wire's thread."""

    def __init__(self, wire: Wire, channel: Channel, label: str, state: State) -> None:
        self.wire = wire
        self.channel = channel
        self.label = label
        """The peer's address, for logs."""
        self.state = state
        self.lane: Lane | None = None
        self.path = ""
        self.checked = True
        """Whether every payload is hashed at both ends."""
        self.peer: frames.Card | None = None
        self.was_up = False
        self.reason = ""
        self.text = ""
        now = time.monotonic()
        self.expires = now + wire.config.handshake_timeout
        self.heard_at = self.said_at = now
        self._cut_at = float("inf")
        self._greeting = self.make_greeting()
        self._probe_bytes = array("B", _PROBE)
        self._probe_pieces = Pieces.of(self._probe_bytes)
        self._probe = 0

    # What the two kinds do differently.

    @abc.abstractmethod
    def make_greeting(self) -> Greeting: ...

    @abc.abstractmethod
    def greeted(self, join: frames.Join, ready: frames.Ready) -> None:
        """The greeting went well."""

    @abc.abstractmethod
    def hear(self, message: frames.Any) -> None:
        """A message after the greeting.  May raise Refusal, Lost and LaneError."""

    @abc.abstractmethod
    def advance(self) -> int:
        """Look after transfers; 0 when nothing changed.  May raise LaneError and Lost."""

    @property
    @abc.abstractmethod
    def busy(self) -> bool:
        """Whether bytes are under way."""

    @property
    @abc.abstractmethod
    def waiting(self) -> bool:
        """Whether the peer or the lane is expected to be heard of at any moment."""

    @abc.abstractmethod
    def due(self) -> float:
        """When `tick` has something to do, by `time.monotonic()`."""

    @abc.abstractmethod
    def tick(self, now: float) -> None: ...

    @abc.abstractmethod
    def release(self, lane: Lane) -> None:
        """The lane is about to be destroyed: hand its requests back to it."""

    @abc.abstractmethod
    def ended(self) -> None:
        """No message can read or write a slot any more."""

    def left(self) -> None:  # noqa: B027 - optional by design
        """The link is quarantined: nobody should wait for it."""

    @property
    def exposed(self) -> bool:
        """Whether the peer could still write into slots of ours after our lane's end."""
        return False

    @property
    def writes(self) -> bool:
        """Whether the peer takes our silence for our word that nothing of ours writes into its slots any more."""
        return False

    # The data lane.

    @property
    def data(self) -> Lane:
        """The lane of a link that has one.  Raises LaneError when it has gone."""
        if self.lane is None:
            raise LaneError("the lane is gone")
        return self.lane

    def open_lane(self) -> Lane:
        self.lane = self.wire.open_lane(self)
        return self.lane

    def post_probe(self, lane: Lane, *, send: bool) -> None:
        """One small message over the data lane, so that a lane that does not work is found at pairing."""
        if not send:
            self._probe_bytes[:] = array("B", bytes(len(_PROBE)))
        self._probe = (lane.send if send else lane.receive)(PROBE_TAG, self._probe_pieces)
        self.wire.heat(self)

    def probe_ended(self, lane: Lane) -> bool:
        if self._probe and lane.status(self._probe) == IN_PROGRESS:
            return False
        if self._probe:
            lane.free(self._probe)
            self._probe = 0
        return True

    @property
    def probe_arrived(self) -> bool:
        return self._probe_bytes.tobytes() == _PROBE

    def names(self) -> tuple[str, ...]:
        """What the payloads of this link go through."""
        if self.path == "mapped":
            return ("mapped/memory",)
        return self.lane.names() if self.lane is not None else ()

    # Events.

    def on_events(self, readable: bool, writable: bool) -> None:
        """The control connection has something; never raises."""
        if self.state is State.QUARANTINED:
            if self.channel.silent():
                self._over()
            return
        try:
            if writable or self.channel.stream.waits_for_read:
                self.channel.flush()
            if readable:
                self._read()
            self.wire.watch(self)
        except HandOver as over:
            self.wire.hand_over(self, over.token)
        except Exception as error:
            self._fail(error)

    def _read(self) -> None:
        for message in self.channel.receive():
            self.heard_at = time.monotonic()
            if self.state is State.GREETING:
                self._greet(message)
            elif self.state in (State.PROBING, State.UP):
                self.hear(message)
            else:
                return
        if self.channel.ended and self.state not in (State.CLOSING, State.CLOSED):
            raise Lost("peer", "the peer closed the connection")

    def begin_greeting(self) -> None:
        self.state = State.GREETING
        first = next(self._greeting)
        if first is not None:
            self.say(first)

    def _greet(self, message: frames.Any) -> None:
        try:
            answer = self._greeting.send(message)
        except StopIteration as end:
            self.peer, join, ready = end.value
            self.channel.limit = frames.FRAME_LIMIT
            self.path, self.checked = ready.path, ready.checked
            self.greeted(join, ready)
            return
        if answer is not None:
            self.channel.send(answer)

    def say(self, message: frames.Message) -> None:
        """Send a message; a lost connection closes the link and raises nothing."""
        if self.state in (State.CLOSING, State.QUARANTINED, State.CLOSED):
            return
        self.said_at = time.monotonic()
        try:
            self.channel.send(message)
            self.wire.watch(self)
        except Lost as lost:
            self._fail(lost)

    def _fail(self, error: Exception) -> None:
        if isinstance(error, Refusal):
            if self.state is State.GREETING and not error.heard:
                self._refuse(error.reason, str(error))
            self.close(error.reason, str(error))
        elif isinstance(error, frames.BadFrame):
            # Who cannot seal may be an operator's typo and is told so; who sends garbage is told nothing.
            if self.state is State.GREETING and error.reason == "secret":
                self._refuse("secret", "the two hubs have different secrets")
            self.close(error.reason, f"refused a frame: {error}")
        elif isinstance(error, Lost):
            self.close(error.reason, str(error))
        elif isinstance(error, LaneError | KvhubError):
            self.close("lane", str(error))
        else:
            self.wire.log.error("wire.bug", peer=self.label, exc_info=error)
            self.close("bug", f"{type(error).__name__}: {error}")

    def _refuse(self, reason: str, text: str) -> None:
        with contextlib.suppress(Lost):
            self.channel.send(frames.Refused(reason, text[:2000]), plain=reason == "secret")

    # Progress and end.

    def progress(self) -> int:
        """Let the lane work, look after transfers; never raises.  0 when nothing moved."""
        if self.state is State.CLOSING:
            return self._cut()
        lane = self.lane
        if self.state in (State.QUARANTINED, State.CLOSED) or (lane is None and self.path != "mapped"):
            return 0
        try:
            moved = lane.progress() if lane is not None else 0
            if lane is not None and lane.failed:
                raise Lost("peer", f"the data lane broke: {lane.failed}")
            return moved + self.advance()
        except Exception as error:
            self._fail(error)
            return 1

    def close(self, reason: str, text: str = "") -> None:
        """Begin the end; `ended` is called when it is safe.  Returns at once, never raises, idempotent."""
        if self.state in (State.CLOSING, State.QUARANTINED, State.CLOSED):
            return
        self.state, self.reason, self.text = State.CLOSING, reason, text
        self._cut_at = time.monotonic() + _CUT_TIMEOUT
        self.wire.unwatch(self)
        if not self.writes:
            # The peer learns of it, while its own end stays visible to us.
            self.channel.end()
        if self.lane is not None:
            self.lane.begin_close()
        self.wire.heat(self)

    def _cut(self) -> int:
        lane, exposed = self.lane, self.exposed
        if lane is not None:
            lane.progress()
            if not lane.closed() and time.monotonic() < self._cut_at:
                return 0
            if self._probe:
                lane.free(self._probe)
            self.release(lane)
            self.wire.close_lane(self, lane)
            self.lane = None
        self._greeting.close()
        if exposed and not self.channel.silent():
            self.state = State.QUARANTINED
            self.wire.log.warning("wire.quarantined", peer=self.label, reason=self.reason)
            self.wire.report("quarantines", 1)
            self.wire.quarantine(self)
            self.left()
        else:
            self._over()
        return 1

    def _over(self) -> None:
        if self.state is State.QUARANTINED:
            self.wire.unwatch(self)
        self.state = State.CLOSED
        # Only now: the end of this connection tells the peer that nothing of ours reads or writes any more.
        self.channel.close()
        self.ended()
        self.wire.gone(self)
