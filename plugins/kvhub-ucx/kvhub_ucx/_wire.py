"""`Wire`: the one thread that owns the UCX context, all workers, all control connections and all transfers.

It sleeps in epoll on the control sockets, on every worker's event descriptor and on a wake-up descriptor.  After
bytes have moved it looks again for a fifth of a millisecond before it sleeps, since a wake-up costs as much on a
virtual machine.  Longer would be paid by the engine: a Python thread that spins takes the GIL from it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

import structlog

from kvhub.errors import KvhubError
from kvhub.transport import Source
from kvhub.types import Batch, Completion, Held, Key, Peer, Region
from kvhub_ucx import _frames as frames
from kvhub_ucx import _lanes, _settings
from kvhub_ucx._channel import Channel
from kvhub_ucx._greeting import Refusal
from kvhub_ucx._libucp import Context, Worker
from kvhub_ucx._link import Link, State
from kvhub_ucx._listener import Listener
from kvhub_ucx._opening import open_context
from kvhub_ucx._serve import ServeLink
from kvhub_ucx._target import Target
from kvhub_ucx.config import Config

_SPIN = 0.0002
# While it spins, how often it looks at the control connections; one look costs a few microseconds.
_LOOK = 0.0001
_LONGEST_SLEEP = 5.0
# Where a transfer is under way an event that UCX forgets to signal must not cost more than this.
_LONGEST_BUSY_SLEEP = 0.02
_START_TIMEOUT = 10.0


class Wire:
    """Started once, stopped once.  `post`, and what is built on it, may be called from any thread."""

    def __init__(
        self,
        config: Config,
        name: str,
        card: frames.Card,
        region: Region,
        report: Callable[[str, int], None],
        done: Callable[[Batch, Completion], None],
    ) -> None:
        self.config, self.card, self.region = config, card, region
        self.report = report
        self.log = structlog.get_logger("kvhub.ucx").bind(member=name)
        self.stopping = False
        self.broken = ""
        """Why the thread ended, if it did not end by `stop`."""
        self.address = ""
        self.source: Source | None = None
        self._name = name
        self._done = done
        self.secret = _settings.secret(config, name)
        self._commands: deque[Callable[[], None]] = deque()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll = select.epoll()
        self._epoll.register(self._wake_fd, select.EPOLLIN)
        self._asleep = False
        self._gate = threading.Lock()
        self._ended = False
        self._listener: Listener | None = None
        self._context: Context | None = None
        self._links: dict[int, Link] = {}
        self._lanes: dict[int, Link] = {}
        self._watched: dict[int, int] = {}
        self._hot: dict[Link, None] = {}
        self._tick_at = 0.0
        self._targets: dict[str, Target] = {}
        self._told: set[tuple[str, str]] = set()
        self._started = threading.Event()
        self._start_error: Exception | None = None
        self._thread = threading.Thread(target=self._main, name="kvhub-ucx", daemon=True)

    # From other threads.

    def start(self) -> None:
        """Listen, open UCX, prove that it moves bytes.  Raises KvhubError; then nothing is left behind."""
        try:
            if self.config.listen:
                self._listener = Listener(self.config, self._name)
                self.address = self._listener.address
                self._epoll.register(self._listener.fd, select.EPOLLIN)
        except Exception:
            self._close_descriptors()
            raise
        self._thread.start()
        if not self._started.wait(_START_TIMEOUT):
            self.stopping = True
            raise KvhubError(f"{self._name}: UCX did not start within {_START_TIMEOUT:g} s")
        if self._start_error is not None:
            self._thread.join(2.0)
            raise self._start_error

    def stop(self, timeout: float) -> bool:
        """End everything; whether the thread ended in time."""
        self.stopping = True
        self.post(lambda: None)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def post(self, command: Callable[[], None]) -> bool:
        """Run `command` on the wire's thread, soon; False when the thread has ended and never will."""
        with self._gate:
            if self._ended:
                return False
            self._commands.append(command)
            if self._asleep:
                os.eventfd_write(self._wake_fd, 1)
        return True

    def submit(self, batch: Batch) -> bool:
        """Whether the batch was taken; then it will be completed."""
        peer = batch.peer
        assert peer is not None
        return self.post(lambda: self._target(peer.address).submit(batch))

    def connect(self, peer: Peer) -> None:
        self.post(lambda: self._target(peer.address).connect(peer.incarnation))

    def forget(self, peer: Peer) -> None:
        self.post(lambda: self._target(peer.address).forget())

    def fulfil(self, peer: Peer) -> None:
        self.post(lambda: self._target(peer.address).fulfil(peer.incarnation, peer.promise))

    def cancel(self, batch_id: int) -> None:
        def cancel() -> None:
            for target in self._targets.values():
                target.cancel(batch_id)

        self.post(cancel)

    def problems(self) -> list[str]:
        """Peers that could not be paired, for operators."""
        return [f"{t.address}: {t.problem}" for t in list(self._targets.values()) if t.problem]

    # For links and targets, on the wire's thread.

    def complete(self, batch: Batch, completion: Completion) -> None:
        self._done(batch, completion)

    def take(self, keys: Sequence[Key], deadline: float, ready: Callable[[int, list[Held | None]], None]) -> int:
        if self.source is None:
            raise KvhubError(f"{self._name}: this hub serves nothing yet")
        return self.source.take(keys, deadline, ready)

    def give_back(self, ticket: int) -> None:
        self._tell_source(lambda source: source.give_back(ticket))

    def fulfilled(self, promise: str) -> None:
        self._tell_source(lambda source: source.fulfilled(promise))

    def _tell_source(self, say: Callable[[Source], None]) -> None:
        try:
            if self.source is not None:
                say(self.source)
        except Exception as error:
            self.log.error("wire.source_failed", exc_info=error)

    def open_worker(self, link: Link) -> Worker:
        assert self._context is not None
        worker = Worker(self._context)
        self._lanes[worker.efd] = link
        self._epoll.register(worker.efd, select.EPOLLIN)
        self.heat(link)
        return worker

    def close_worker(self, link: Link, worker: Worker) -> None:
        self._epoll.unregister(worker.efd)
        del self._lanes[worker.efd]
        worker.destroy()

    def check_lanes(self, lanes: Sequence[str], peer: str) -> None:
        """Count what UCX chose for a pairing.  Raises Refusal where the configuration requires another transport."""
        if problem := _lanes.lacking(self.config, lanes):
            if self.config.require_action == "refuse":
                raise Refusal("lane", problem)
            self.report("lane_unwanted", 1)
            self.log.warning("wire.lane_unwanted", peer=peer, text=problem)
        for transport in _lanes.transports(lanes):
            self.report(f"lane_{transport}", 1)

    def heat(self, link: Link) -> None:
        """UCX was called for this link: it wants progress before the thread may sleep."""
        self._hot[link] = None

    def add(self, link: Link) -> None:
        self._links[link.channel.fd] = link
        self.watch(link)
        if link.state is State.GREETING:
            link.begin_greeting()

    def watch(self, link: Link) -> None:
        """Bring epoll's interest in a link's connection up to date."""
        fd = link.channel.fd
        if link.state in (State.CLOSING, State.CLOSED) or self._links.get(fd) is not link:
            return
        dialling = link.state is State.DIALLING
        wanted = select.EPOLLOUT if dialling else select.EPOLLIN | (select.EPOLLOUT if link.channel.unsent else 0)
        known = self._watched.get(fd)
        if known is None:
            self._epoll.register(fd, wanted)
        elif known != wanted:
            self._epoll.modify(fd, wanted)
        self._watched[fd] = wanted

    def unwatch(self, link: Link) -> None:
        """The connection is about to be closed; its number may be another's at once."""
        fd = link.channel.fd
        if self._links.get(fd) is link:
            del self._links[fd]
            if self._watched.pop(fd, None) is not None:
                self._epoll.unregister(fd)
        if isinstance(link, ServeLink) and link.peer is None and link.reason not in ("closed", "peer"):
            self._refused(link)

    def gone(self, link: Link) -> None:
        self._hot.pop(link, None)

    def _refused(self, link: Link) -> None:
        self.report("handshake_refused", 1)
        host = link.label.rpartition(":")[0]
        if (host, link.reason) not in self._told and len(self._told) < 1000:
            self._told.add((host, link.reason))
            self.log.warning("wire.refused", peer=link.label, reason=link.reason, text=link.text)

    def _target(self, address: str) -> Target:
        found = self._targets.get(address)
        if found is None:
            found = self._targets[address] = Target(self, address)
        return found

    # The thread.

    def _open(self) -> None:
        self._context, facts = open_context(self.config, self._name, self.region)
        self.log.info("wire.opened", address=self.address, secret=bool(self.secret), **facts)

    def _main(self) -> None:
        try:
            self._open()
        except Exception as error:
            self._start_error = error
            self._close_all()
            self._started.set()
            return
        self._started.set()
        try:
            self._run()
        except Exception as error:
            self.broken = f"{type(error).__name__}: {error}"
            self.log.error("wire.broken", exc_info=error)
        self.stopping = True
        self._close_all()

    def _run(self) -> None:
        spin_until = look_at = 0.0
        while not self.stopping:
            self._run_commands()
            moved = sum(link.progress() for link in list(self._hot))
            now = time.monotonic()
            if now >= look_at:
                moved += self._events(0.0)
                look_at = now + _LOOK
            if moved:
                spin_until = now + _SPIN
            if moved or self._commands or (self._hot and now < spin_until):
                if now >= self._tick_at:
                    self._tick_at = max(self._tick(now), now + _SPIN)
                continue
            due = self._tick(now)
            if self._cool():
                longest = _LONGEST_BUSY_SLEEP if self._hot else _LONGEST_SLEEP
                self._sleep(min(longest, max(due - time.monotonic(), 0.0)))
                spin_until = look_at = self._tick_at = 0.0

    def _run_commands(self) -> None:
        for _ in range(len(self._commands)):
            command = self._commands.popleft()
            try:
                command()
            except Exception as error:
                self.log.error("wire.bug", exc_info=error)

    def _cool(self) -> bool:
        """Arm the workers that were at work; False when one of them must not wait."""
        for link in list(self._hot):
            if link.state is State.CLOSING or (link.worker is not None and not link.worker.arm()):
                return False
            if not link.busy:
                del self._hot[link]
        return True

    def _sleep(self, timeout: float) -> None:
        self._asleep = True
        # A command posted before the flag was seen has woken nobody.
        if not self._commands and not self.stopping:
            self._events(timeout)
        self._asleep = False

    def _events(self, timeout: float) -> int:
        """Handle what has happened on the descriptors; how many of them, lanes not counted.

        A lane's descriptor stays readable until its worker is armed again, so it says nothing while a link is hot.
        """
        handled = 0
        for fd, mask in self._epoll.poll(timeout):
            link = self._lanes.get(fd)
            if link is not None:
                self.heat(link)
                continue
            handled += 1
            if fd == self._wake_fd:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(fd)
            elif self._listener is not None and fd == self._listener.fd:
                self._accept(self._listener)
            elif (link := self._links.get(fd)) is not None:
                self._on_link(link, mask)
        return handled

    def _on_link(self, link: Link, mask: int) -> None:
        if link.state is not State.DIALLING:
            link.on_events(bool(mask & ~select.EPOLLOUT), bool(mask & select.EPOLLOUT))
            return
        code = link.channel.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            link.close("refused" if code == errno.ECONNREFUSED else "unreachable", os.strerror(code))
        else:
            link.begin_greeting()
            self.watch(link)

    def _accept(self, listener: Listener) -> None:
        for sock, label in listener.accept():
            if sum(isinstance(link, ServeLink) for link in self._links.values()) < self.config.most_peers:
                self.add(ServeLink(self, Channel(sock), label))
            else:
                self.report("handshake_refused", 1)
                sock.close()

    def _tick(self, now: float) -> float:
        """Look at every clock; returns when to look again."""
        owners: list[Link | Target] = [*self._links.values(), *self._targets.values()]
        due = float("inf")
        for owner in owners:
            if owner.due() <= now:
                owner.tick(now)
            due = min(due, owner.due())
        if len(self._targets) > self.config.most_peers:
            # What is known of an idle one is only when to try it again and which incarnations are gone.
            for address in [address for address, target in self._targets.items() if target.idle]:
                del self._targets[address]
        return due

    # The end.

    def _close_all(self) -> None:
        with self._gate:
            self._ended = True
        self._run_commands()
        for target in self._targets.values():
            target.forget()
        for link in list(self._links.values()):
            link.close("closed")
        deadline = time.monotonic() + 2.0
        while self._hot and time.monotonic() < deadline:
            for link in list(self._hot):
                link.progress()
                if link.state is not State.CLOSING:
                    self._hot.pop(link, None)
        if self._context is not None and not self._lanes:
            self._context.close()
        self._close_descriptors()

    def _close_descriptors(self) -> None:
        if self._listener is not None:
            self._listener.close()
        self._epoll.close()
        os.close(self._wake_fd)
