"""`Target`: one address that this hub pulls from, with at most one connect at a time and a pause after failures."""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from kvhub.types import Batch, Completion, Outcome
from kvhub.wire import addresses, frames
from kvhub.wire.channel import Channel
from kvhub.wire.link import State
from kvhub.wire.pull import PullLink

if TYPE_CHECKING:
    from kvhub.wire.wire import Wire

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
_MOST_PROMISES = 4096


class Target:
    """Batches wait here while their link is made.  Everything runs on the wire's thread."""

    def __init__(self, wire: Wire, address: str) -> None:
        self.wire = wire
        self.address = address
        self.link: PullLink | None = None
        self.problem = ""
        """Why the last pairing failed, for operators; empty once one succeeded."""
        self._waiting: deque[Batch] = deque()
        self._promises: deque[str] = deque(maxlen=_MOST_PROMISES)
        self._failures = 0
        self._retry_at = 0.0
        self._reason = ""
        self._patience = float("inf")
        """When a link that was doubted counts as dead."""
        self._tried: deque[str] = deque(maxlen=64)
        """Incarnations wanted since the last pairing: one that is new has just started, and is worth a try."""
        self._resolving = False
        self._expired: deque[str] = deque(maxlen=64)
        """Incarnations that were expected here, and another one answered: their processes are gone."""

    @property
    def idle(self) -> bool:
        return self.link is None and not self._waiting and not self._resolving

    def connect(self, incarnation: str) -> None:
        """Pair ahead of need, unless that was tried in vain a moment ago."""
        if not self.wire.stopping and not self._hopeless(incarnation):
            self._want(incarnation)

    def submit(self, batch: Batch) -> None:
        assert batch.peer is not None
        incarnation = batch.peer.incarnation
        problem = "closed" if self.wire.stopping else self._hopeless(incarnation)
        if problem:
            self._fail(batch, problem)
            return
        self._waiting.append(batch)
        self._want(incarnation)

    def fulfil(self, incarnation: str, promise: str) -> None:
        """Best effort: said when there is a link, and lost with the process that gave it."""
        if not self.wire.stopping and not self._hopeless(incarnation):
            self._promises.append(promise)
            self._want(incarnation)

    def _hopeless(self, incarnation: str) -> str:
        """Why not to bother: that process is gone, or it was tried a moment ago.  Empty otherwise."""
        if incarnation and incarnation in self._expired:
            return "incarnation"
        paused = self.link is None and time.monotonic() < self._retry_at
        return self._reason if paused and incarnation in self._tried else ""

    def _want(self, incarnation: str) -> None:
        """Make sure that a link exists or is being made, to this incarnation if that can be."""
        self._tried.append(incarnation)
        link = self.link
        if link is None:
            self._dial()
        elif link.state is State.UP and link.peer is not None:
            if incarnation in ("", link.peer.incarnation):
                self._start_waiting()
            else:
                self._doubt(link)

    def _doubt(self, link: PullLink) -> None:
        """Someone names another incarnation: either that is old, or our link's process is gone without a word."""
        if self._patience == float("inf"):
            self._patience = time.monotonic() + self.wire.config.stop_timeout
            link.say(frames.Ping())

    def on_pong(self) -> None:
        """The process behind the link lives, so it is the one that answers at this address."""
        self._patience = float("inf")
        self._start_waiting()

    def cancel(self, batch_id: int) -> None:
        for batch in [one for one in self._waiting if one.id == batch_id]:
            self._waiting.remove(batch)
            self._end(batch, Outcome.LATE, "cancelled")
        if self.link is not None:
            self.link.cancel(batch_id)

    def forget(self) -> None:
        """Drop the pairing; what waits or is under way ends with FAILED."""
        self._promises.clear()
        waiting, self._waiting = self._waiting, deque()
        for batch in waiting:
            self._fail(batch, "forgotten")
        if self.link is not None:
            self.link.close("forgotten")

    # Making a link.

    def _dial(self) -> None:
        if self._resolving:
            return
        host, port = addresses.parse(self.address)
        if addresses.literal(host.partition("%")[0]) is not None:
            self._connect(*addresses.resolve(host, port))
            return
        # A resolver can hang for many seconds, and this thread carries the other peers' transfers.
        self._resolving = True
        threading.Thread(target=self._resolve, args=(host, port), name="kvhub-wire-resolve", daemon=True).start()

    def _resolve(self, host: str, port: int) -> None:
        try:
            family, address = addresses.resolve(host, port)
        except OSError as error:
            problem = f"cannot resolve {host}: {error.strerror}"
            self.wire.post(lambda: self._resolved(lambda: self._failed("unreachable", problem)))
            return
        self.wire.post(lambda: self._resolved(lambda: self._connect(family, address)))

    def _resolved(self, then: object) -> None:
        self._resolving = False
        if callable(then) and not self.wire.stopping:
            then()

    def _connect(self, family: socket.AddressFamily, address: tuple[object, ...]) -> None:
        host = addresses.parse(self.address)[0]
        stream, code = self.wire.dial(family, address, host)
        channel = Channel(stream)
        if code:
            channel.close()
            self._failed("unreachable" if code != errno.ECONNREFUSED else "refused", os.strerror(code))
            return
        self.link = PullLink(self.wire, channel, self)
        self.wire.add(self.link)

    # What the link says.

    def on_up(self, link: PullLink) -> None:
        assert link.peer is not None
        self._failures, self._retry_at, self.problem = 0, 0.0, ""
        self._tried.clear()
        if link.peer.incarnation in self._expired:
            self._expired.remove(link.peer.incarnation)
        self.wire.log.info(
            "wire.paired",
            peer=self.address,
            incarnation=link.peer.incarnation,
            path=link.path,
            lanes=",".join(link.names()),
        )
        self._start_waiting()

    def on_closed(self, link: PullLink) -> None:
        """The link moves nothing any more; it may still be quarantined."""
        if self.link is not link:
            return
        self.link, self._patience = None, float("inf")
        if link.reason in ("closed", "forgotten", "incarnation"):
            pass
        elif link.peer is not None and link.was_up:
            self.wire.log.info("wire.lost", peer=self.address, reason=link.reason, text=link.text)
        else:
            self._failed(link.reason, link.text)
        if self._waiting and not self.wire.stopping:
            self._dial()

    def _failed(self, reason: str, text: str) -> None:
        self._failures += 1
        host = addresses.literal(addresses.parse(self.address)[0].partition("%")[0])
        if reason in ("refused", "unreachable") and host is not None and host.is_loopback:
            text += "; a loopback address is this machine itself: a peer elsewhere has to advertise one that reaches it"
        # The second try is immediate: a peer that restarts refuses once and then answers.
        if self._failures > 1:
            self._retry_at = time.monotonic() + min(_FIRST_PAUSE * 2 ** (self._failures - 2), _LONGEST_PAUSE)
        if text != self.problem:
            self.wire.log.warning("wire.not_paired", peer=self.address, reason=reason, text=text)
        self._reason, self.problem = reason, text
        self.wire.report("pair_failed", 1)
        waiting, self._waiting = self._waiting, deque()
        for batch in waiting:
            self._fail(batch, reason)

    def _start_waiting(self) -> None:
        link = self.link
        if link is None or link.state is not State.UP or link.peer is None:
            return
        doubted = self._patience < float("inf")
        while self._promises and not doubted:
            link.say(frames.Fulfilled(self._promises.popleft()))
        waiting, self._waiting = self._waiting, deque()
        for batch in waiting:
            expected = batch.peer.incarnation if batch.peer is not None else ""
            if link.state is State.UP and expected in ("", link.peer.incarnation):
                link.start(batch)
            elif link.state is State.UP and not doubted:
                self._expired.append(expected)
                self._fail(batch, "incarnation")
            else:
                self._waiting.append(batch)

    def _fail(self, batch: Batch, reason: str) -> None:
        self._end(batch, Outcome.FAILED, reason)

    def _end(self, batch: Batch, outcome: Outcome, reason: str) -> None:
        count = len(batch.keys)
        self.wire.complete(batch, Completion(batch.id, (outcome,) * count, (0,) * count, reason=reason))

    def due(self) -> float:
        return min(self._patience, *(batch.deadline for batch in self._waiting), float("inf"))

    def tick(self, now: float) -> None:
        if now >= self._patience and self.link is not None:
            self.link.close("incarnation", "the peer was replaced and its old process is silent")
        for batch in [one for one in self._waiting if now >= one.deadline]:
            self._waiting.remove(batch)
            self._end(batch, Outcome.LATE, "timeout")
