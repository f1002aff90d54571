"""`Loop`: the thread that everything of a wire runs on, and when it sleeps.

It sleeps in epoll on the control connections, on every lane's event descriptor and on a wake-up descriptor.  While a
transfer is not over it looks again for a fifth of a millisecond before it sleeps, since a wake-up costs as much on a
virtual machine.  Longer, or with nothing to come, would be paid by the engine: a Python thread that spins takes the GIL
from it, and from whoever waits for the transfer that was the last.
"""

from __future__ import annotations

import abc
import contextlib
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable

import structlog

from kvhub.errors import KvhubError
from kvhub.wire.lane import Lane
from kvhub.wire.link import Link, State

_SPIN = 0.0002
# While it spins, how often it looks at the control connections; one look costs a few microseconds.
_LOOK = 0.0001
_LONGEST_SLEEP = 5.0
# Where a transfer is under way an event that a library forgets to signal must not cost more than this.
_LONGEST_BUSY_SLEEP = 0.02
_START_TIMEOUT = 10.0
_END_TIMEOUT = 2.0
_QUARANTINE_TIMEOUT = 1.5


class Loop(abc.ABC):
    """Started once, stopped once.  `post` may be called from any thread, the rest from the loop's own."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.log = structlog.get_logger("kvhub.wire").bind(member=name)
        self.stopping = False
        self.broken = ""
        """Why the thread ended, if it did not end by `stop`."""
        self._commands: deque[Callable[[], None]] = deque()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll = select.epoll()
        self._epoll.register(self._wake_fd, select.EPOLLIN)
        self._asleep = False
        self._gate = threading.Lock()
        self._ended = False
        self._links: dict[int, Link] = {}
        self._lanes: dict[int, Link] = {}
        self._watched: dict[int, int] = {}
        self._hot: dict[Link, None] = {}
        self._quarantined: dict[Link, None] = {}
        self._tick_at = 0.0
        self._started = threading.Event()
        self._start_error: Exception | None = None
        self._thread = threading.Thread(target=self._main, name="kvhub-wire", daemon=True)

    # What the wire adds.

    @abc.abstractmethod
    def open(self) -> None:
        """First thing on the thread.  Raises KvhubError."""

    @abc.abstractmethod
    def shut(self) -> None:
        """Last thing but one: no link is left, unless one did not end in time."""

    @abc.abstractmethod
    def on_descriptor(self, fd: int) -> None:
        """Something has happened on a descriptor of the wire's own."""

    @abc.abstractmethod
    def clocks(self, now: float) -> float:
        """Look at the clocks of what is not a link; when to look again."""

    @abc.abstractmethod
    def dialled(self, link: Link) -> None:
        """A connection that was being made is there, or has failed."""

    # From other threads.

    def launch(self) -> None:
        """Start the thread; returns when `open` has.  Raises what it raised."""
        self._thread.start()
        if not self._started.wait(_START_TIMEOUT):
            self.stopping = True
            raise KvhubError(f"{self.name}: the data lanes did not start within {_START_TIMEOUT:g} s")
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
        """Run `command` on the loop's thread, soon; False when the thread has ended and never will."""
        with self._gate:
            if self._ended:
                return False
            self._commands.append(command)
            if self._asleep:
                os.eventfd_write(self._wake_fd, 1)
        return True

    # Descriptors.

    def watch_fd(self, fd: int) -> None:
        self._epoll.register(fd, select.EPOLLIN)

    def watch_lane(self, link: Link, lane: Lane) -> None:
        if lane.efd >= 0:
            self._lanes[lane.efd] = link
            self._epoll.register(lane.efd, select.EPOLLIN)
        self.heat(link)

    def unwatch_lane(self, lane: Lane) -> None:
        if lane.efd in self._lanes:
            del self._lanes[lane.efd]
            self._epoll.unregister(lane.efd)

    def heat(self, link: Link) -> None:
        """Something is to be done for this link: it wants progress before the thread may sleep."""
        self._hot[link] = None

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

    def forget_descriptor(self, link: Link) -> None:
        """The connection is about to be closed or given away; its number may be another's at once."""
        fd = link.channel.fd
        if self._links.get(fd) is link:
            del self._links[fd]
            if self._watched.pop(fd, None) is not None:
                self._epoll.unregister(fd)

    def quarantine(self, link: Link) -> None:
        """Wait for the peer's end of this connection, however long that takes."""
        self._hot.pop(link, None)
        self._quarantined[link] = None
        self._links[link.channel.fd] = link
        self.watch(link)

    def gone(self, link: Link) -> None:
        self._hot.pop(link, None)
        self._quarantined.pop(link, None)

    # The thread.

    def _main(self) -> None:
        try:
            self.open()
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
            if moved or self._commands or (now < spin_until and any(link.waiting for link in self._hot)):
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
        """Arm the lanes that were at work; False when one of them must not wait."""
        for link in list(self._hot):
            if link.state is State.CLOSING or (link.lane is not None and not link.lane.arm()):
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

        A lane's descriptor stays readable until the lane is armed again, so it says nothing while a link is hot.
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
            elif (link := self._links.get(fd)) is None:
                self.on_descriptor(fd)
            elif link.state is State.DIALLING:
                self.dialled(link)
            else:
                link.on_events(bool(mask & ~select.EPOLLOUT), bool(mask & select.EPOLLOUT))
        return handled

    def _tick(self, now: float) -> float:
        """Look at every clock; returns when to look again."""
        due = self.clocks(now)
        for link in list(self._links.values()):
            if link.due() <= now:
                link.tick(now)
            due = min(due, link.due())
        return due

    # The end.

    def _close_all(self) -> None:
        with self._gate:
            self._ended = True
        self._run_commands()
        self.shut()
        for link in list(self._links.values()):
            link.close("closed")
        deadline = time.monotonic() + _END_TIMEOUT
        while self._hot and time.monotonic() < deadline:
            for link in list(self._hot):
                link.progress()
                if link.state is not State.CLOSING:
                    self._hot.pop(link, None)
        self._wait_for_quarantined()
        self.let_go()
        self._epoll.close()
        os.close(self._wake_fd)

    def _wait_for_quarantined(self) -> None:
        deadline = time.monotonic() + _QUARANTINE_TIMEOUT
        while self._quarantined and time.monotonic() < deadline:
            self._events(0.05)
        for link in self._quarantined:
            self.log.error(
                "wire.not_fenced",
                peer=link.label,
                text="the peer's process hangs in a write to this arena; it must end before this memory is used again",
            )

    @abc.abstractmethod
    def let_go(self) -> None:
        """Very last: give back what is left of the fabric and the listener."""

    def abandon(self) -> None:
        """The thread was never started."""
        self.let_go()
        self._epoll.close()
        os.close(self._wake_fd)
