"""`Link`: one control connection with one UCX worker, which live and end together.

A link is an epoch.  Nothing of it outlives it: when a peer hangs or dies, the link is cut by closing its connection,
force-closing its endpoint and destroying its worker.  Only the last step makes sure that no late message can reach a
slot: a receive that a message has half filled can be neither cancelled nor ended (seen on TCP and shared memory with
UCX 1.21), and the rest of that message may come whenever the peer wakes up.  A link goes one way, from the server
that has chunks to the puller that wants them, so that a cut ends no transfer of the other direction.
"""

from __future__ import annotations

import abc
import contextlib
import enum
import time
from array import array
from typing import TYPE_CHECKING

from kvhub_ucx import _frames as frames
from kvhub_ucx._channel import Channel, Lost
from kvhub_ucx._greeting import Greeting, Refusal
from kvhub_ucx._libucp import IN_PROGRESS, UcxError, Worker

if TYPE_CHECKING:
    from kvhub_ucx._wire import Wire

PROBE_TAG = (1 << 64) - 1
_PROBE = b"kvhub-ucx probe\n"


class State(enum.Enum):
    DIALLING = "dialling"
    GREETING = "greeting"
    PROBING = "probing"
    UP = "up"
    CLOSING = "closing"
    CLOSED = "closed"


class Link(abc.ABC):
    """What pulling and serving links have in common.  Everything runs on the wire's thread."""

    def __init__(self, wire: Wire, channel: Channel, label: str, state: State) -> None:
        self.wire = wire
        self.channel = channel
        self.label = label
        """The peer's address, for logs."""
        self.state = state
        self.worker: Worker | None = None
        self.peer: frames.Card | None = None
        self.was_up = False
        self.reason = ""
        self.text = ""
        self.expires = time.monotonic() + wire.config.handshake_timeout
        self._closing = 0
        self._cut_at = float("inf")
        self._greeting = self.make_greeting()
        self._probe_bytes = array("B", _PROBE)
        self._probe_iov = array("Q")
        self._probe = 0

    # What the two kinds do differently.

    @abc.abstractmethod
    def make_greeting(self) -> Greeting: ...

    @abc.abstractmethod
    def greeted(self, address: bytes) -> None:
        """The greeting went well; `address` is the peer's UCX address."""

    @abc.abstractmethod
    def hear(self, message: frames.Any) -> None:
        """A message after the greeting.  May raise Refusal, Lost and UcxError."""

    @abc.abstractmethod
    def advance(self) -> int:
        """Look after transfers; 0 when nothing changed.  May raise UcxError and Lost."""

    @property
    @abc.abstractmethod
    def busy(self) -> bool:
        """Whether messages are under way on the data lane."""

    @abc.abstractmethod
    def due(self) -> float:
        """When `tick` has something to do, by `time.monotonic()`."""

    @abc.abstractmethod
    def tick(self, now: float) -> None: ...

    @abc.abstractmethod
    def release(self) -> None:
        """The worker is about to be destroyed: hand its requests back to UCX."""

    @abc.abstractmethod
    def ended(self) -> None:
        """The worker is gone: no message can read or write a slot any more."""

    # The data lane.

    def open_worker(self) -> Worker:
        self.worker = self.wire.open_worker(self)
        return self.worker

    def post_probe(self, worker: Worker, *, send: bool) -> None:
        """One small message over the data lane, so that a lane that does not work is found at pairing."""
        if not send:
            self._probe_bytes = array("B", bytes(len(_PROBE)))
        self._probe_iov = array("Q", self._probe_bytes.buffer_info())
        act = worker.send if send else worker.receive
        self._probe = act(PROBE_TAG, self._probe_iov.buffer_info()[0], 1)
        self.wire.heat(self)

    def probe_ended(self, worker: Worker) -> bool:
        if self._probe and worker.status(self._probe) == IN_PROGRESS:
            return False
        if self._probe:
            worker.free(self._probe)
            self._probe = 0
        return True

    @property
    def probe_arrived(self) -> bool:
        return self._probe_bytes.tobytes() == _PROBE

    def lanes(self) -> tuple[str, ...]:
        return self.worker.lanes() if self.worker is not None else ()

    # Events.

    def on_events(self, readable: bool, writable: bool) -> None:
        """The control connection has something; never raises."""
        try:
            if writable:
                self.channel.flush()
            if readable:
                self._read()
            self.wire.watch(self)
        except Exception as error:
            self._fail(error)

    def _read(self) -> None:
        for message in self.channel.receive():
            if self.state is State.GREETING:
                self._greet(message)
            elif self.state in (State.PROBING, State.UP):
                self.hear(message)
            else:
                return
        if self.channel.ended:
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
            self.peer, address = end.value
            self.channel.limit = frames.FRAME_LIMIT
            self.greeted(address)
            return
        if answer is not None:
            self.channel.send(answer)

    def say(self, message: frames.Message) -> None:
        """Send a message; a lost connection closes the link and raises nothing."""
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
        elif isinstance(error, UcxError):
            self.close("ucx", str(error))
        else:
            self.wire.log.error("wire.bug", peer=self.label, exc_info=error)
            self.close("bug", f"{type(error).__name__}: {error}")

    def _refuse(self, reason: str, text: str) -> None:
        with contextlib.suppress(Lost):
            self.channel.send(frames.Refused(reason, text[:2000]), plain=reason == "secret")

    # Progress and end.

    def progress(self) -> int:
        """Let UCX work, look after transfers; never raises.  0 when nothing moved."""
        if self.state is State.CLOSING:
            return self._cut()
        worker = self.worker
        if worker is None:
            return 0
        try:
            moved = worker.progress()
            if worker.failed:
                raise Lost("peer", f"the data lane broke: {worker.library.text(worker.failed)}")
            return moved + self.advance()
        except Exception as error:
            self._fail(error)
            return 1

    def close(self, reason: str, text: str = "") -> None:
        """Begin the end; `ended` is called when it is safe.  Returns at once, never raises, idempotent."""
        if self.state in (State.CLOSING, State.CLOSED):
            return
        self.state, self.reason, self.text = State.CLOSING, reason, text
        self._cut_at = time.monotonic() + 1.0
        self.wire.unwatch(self)
        self.channel.close()
        if self.worker is not None:
            try:
                self._closing = self.worker.force_close()
            except UcxError:
                self._closing = 0
        self.wire.heat(self)

    def _cut(self) -> int:
        worker = self.worker
        if worker is not None:
            worker.progress()
            waiting = self._closing and worker.status(self._closing) == IN_PROGRESS
            if waiting and time.monotonic() < self._cut_at:
                return 0
            for request in (self._closing, self._probe):
                if request:
                    worker.free(request)
            self.release()
            self.wire.close_worker(self, worker)
            self.worker = None
        self.state = State.CLOSED
        self._greeting.close()
        self.ended()
        self.wire.gone(self)
        return 1
