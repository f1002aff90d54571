"""Hubs for the laws of the wire: in this process, and in others that can be stopped and killed."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol

import attrs
import pytest
import structlog

from kvhub.testing.driver import Driver
from kvhub.testing.guard import Guarded
from kvhub.testing.region import make_context, make_key
from kvhub.testing.source import FakeSource
from kvhub.testing.stage import Traces, until
from kvhub.testing.wire_peer import PATTERN, make_member, payload
from kvhub.types import Completion, Key, Op, Outcome, Peer

START_WITHIN_S = 30.0
SECRET_ENV = "KVHUB_TEST_WIRE_SECRET"
SECRET = "correct horse battery"


@attrs.define
class Hub:
    """A transport in this process, with a region and a source."""

    driver: Driver
    source: FakeSource
    counts: dict[str, int]

    @property
    def transport(self) -> Any:
        return self.driver.member

    @property
    def wire(self) -> Any:
        return self.transport._wire

    @property
    def links(self) -> int:
        """Links in any state, the quarantined included."""
        return len({*self.wire._links.values(), *self.wire._quarantined, *self.wire._hot})

    def peer(self, promise: str = "", incarnation: str | None = None) -> Peer:
        own = self.transport.context.incarnation
        return Peer(self.transport.address(), own if incarnation is None else incarnation, promise)

    def offer(self, count: int, length: int, first: int = 0) -> None:
        for n in range(first, first + count):
            self.source.put(make_key(n), payload(n, length))

    def start(self, peer: Peer, count: int, seconds: float = 20.0, *, first: int = 0, slot: int | None = None) -> int:
        """Ask for chunks, backwards so that no neighbours are joined, into the upper half, which gets a pattern."""
        base = self.driver.half if slot is None else slot
        slots = range(base, base + count)
        for one in slots:
            self.driver.fill(one, PATTERN * self.driver.region.slot_bytes)
        keys = [make_key(n) for n in range(first, first + count)[::-1]]
        return self.driver.submit(Op.LOAD, keys, slots, deadline=time.monotonic() + seconds, peer=peer)

    def end(
        self, batch: int, count: int, seconds: float | None = None, *, first: int = 0, slot: int | None = None
    ) -> Completion:
        """Wait for what `start` began; what is called DONE has the right bytes."""
        base = self.driver.half if slot is None else slot
        done = self.driver.wait(batch, seconds)
        for place, outcome in enumerate(done.outcomes):
            if outcome is Outcome.DONE:
                data = payload(range(first, first + count)[::-1][place], done.lengths[place])
                assert self.driver.bytes_of(base + place, len(data)) == data, f"chunk {place} is DONE with wrong bytes"
        return done

    def pull(self, peer: Peer, count: int, seconds: float = 20.0, *, first: int = 0) -> Completion:
        return self.end(self.start(peer, count, seconds, first=first), count, seconds + 5.0, first=first)

    def hand_on(self, count: int) -> None:
        """The slots of an ended pull are somebody else's now."""
        for slot in range(self.driver.half, self.driver.half + count):
            self.driver.fill(slot, PATTERN * self.driver.region.slot_bytes)

    def spoilt(self, count: int) -> list[int]:
        """Slots that were written to since."""
        pattern, half = PATTERN * self.driver.region.slot_bytes, self.driver.half
        return [slot for slot in range(half, half + count) if self.driver.bytes_of(slot) != pattern]

    def close(self) -> float:
        took = self.driver.close()
        self.source.close()
        return took


class Process:
    """A hub in a process of its own (`wire_peer`)."""

    def __init__(self, nursery: Nursery, options: Mapping[str, Any]) -> None:
        self._sock = socket.socket(socket.AF_UNIX)
        self._sock.settimeout(START_WITHIN_S)
        self._sock.connect(str(nursery.path))
        self._lines = self._sock.makefile("r")
        self._sock.sendall(json.dumps(options).encode() + b"\n")
        self.facts = self.read()
        self.pid: int = self.facts["pid"]
        self._pidfd = os.pidfd_open(self.pid)
        self.peer = Peer(self.facts["address"], self.facts["incarnation"])

    def read(self, seconds: float = START_WITHIN_S) -> dict[str, Any]:
        """The next line that it says."""
        self._sock.settimeout(seconds)
        line = self._lines.readline()
        assert line, "the peer's process has ended; what it said is on this one's error output"
        return dict(json.loads(line))

    def tell(self, do: str, **more: Any) -> None:
        """A command, not waited for."""
        self._sock.sendall(json.dumps({"do": do, **more}).encode() + b"\n")

    def ask(self, do: str, **more: Any) -> dict[str, Any]:
        self.tell(do, **more)
        return self.read()

    def until(self, so: Callable[[dict[str, Any]], object], seconds: float, what: str) -> dict[str, Any]:
        """Ask for its state until that is so."""
        end = time.monotonic() + seconds
        while not so(state := self.ask("state")):
            assert time.monotonic() < end, f"{what}: not so within {seconds:g} s, the peer's state is {state}"
            time.sleep(0.01)
        return state

    def until_idle(self, seconds: float, links: int = 0) -> dict[str, Any]:
        """Until nothing that was begun there goes on: no lease is held, and no link beyond those that are wanted."""
        return self.until(lambda now: not now["lent"] and now["links"] <= links, seconds, "the peer has settled")

    @property
    def stopped(self) -> bool:
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    @property
    def dead(self) -> bool:
        return bool(select.select([self._pidfd], [], [], 0)[0])

    def wait_lost(self, fault: str, seconds: float = 15.0) -> float:
        """Until it has stopped or killed itself; when that was seen."""
        until(lambda: self.dead if fault == "kill" else self.stopped, seconds, f"the peer does `{fault}` to itself")
        return time.monotonic()

    def stop(self) -> None:
        signal.pidfd_send_signal(self._pidfd, signal.SIGSTOP)
        self.wait_lost("stop")

    def resume(self) -> None:
        signal.pidfd_send_signal(self._pidfd, signal.SIGCONT)

    def kill(self) -> None:
        if not self.dead:
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        self.wait_lost("kill")

    def close(self) -> None:
        self.kill()
        self._lines.close()
        self._sock.close()
        os.close(self._pidfd)


class Nursery:
    """One interpreter that forks hubs; owns its process and its folder."""

    def __init__(self, use: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="kvhub-nursery-")
        self.path = Path(self._folder.name) / "socket"
        command = [sys.executable, "-m", "kvhub.testing.wire_peer", "--nursery", str(self.path), use]
        self._run = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._run.stdout is not None
        said = self._run.stdout.readline()
        assert said == b"ready\n", f"the nursery said {said!r}, exit status {self._run.poll()}"

    def close(self) -> None:
        self._run.kill()
        self._run.wait()
        for pipe in (self._run.stdin, self._run.stdout):
            if pipe is not None:
                pipe.close()
        self._folder.cleanup()


class OpensHub(Protocol):
    """The fixture `open_hub`: a hub of this process, attached and serving, closed behind the law."""

    def __call__(
        self,
        name: str = "hub",
        *,
        slots: int = 64,
        slot_bytes: int = 32768,
        namespace: str = "tests",
        incarnation: str = "",
        poison: bool = False,
        **options: Any,
    ) -> Hub: ...


class StartsPeer(Protocol):
    """The fixture `start_peer`: a hub of another process, see `wire_peer.Hub`; killed behind the law."""

    def __call__(self, *, options: Mapping[str, Any] | None = None, **more: Any) -> Process: ...


class Wired(Guarded):
    """Settings and fixtures of the laws of the wire; a third party's class sets the first three."""

    use: ClassVar[str] = ""
    """The transport, as in `use:`, or `package:Class`."""
    path: ClassVar[str] = "message"
    """How payloads are to move: message, put or mapped."""
    options: ClassVar[Mapping[str, Any]] = {}
    """More options of every hub."""
    tls: ClassVar[bool] = False
    """Whether every hub has a certificate and wants one of its peers; needs `openssl` to make them."""
    patience: ClassVar[float] = 10.0
    """Seconds that a loaded machine may take for what takes none."""

    @pytest.fixture(scope="class")
    @classmethod
    def nursery(cls) -> Iterator[Nursery]:
        made = Nursery(cls.use)
        yield made
        made.close()

    @pytest.fixture(scope="class")
    @classmethod
    def wire_options(cls, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
        """What every hub is made with."""
        options = {"path": cls.path, **cls.options}
        if cls.tls:
            from kvhub.testing.wire_certs import make

            options |= make(tmp_path_factory.mktemp("certificates"))
        return options

    @pytest.fixture(autouse=True)
    def wire_log(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
        """What hubs of this process say; no law may make them meet something that they did not foresee."""
        monkeypatch.setenv(SECRET_ENV, SECRET)
        with structlog.testing.capture_logs() as said:
            yield said
        bugs = [one for one in said if one["event"] in ("wire.bug", "wire.broken", "wire.stuck", "wire.source_failed")]
        assert not bugs, f"the wire did not foresee: {bugs}"

    @pytest.fixture
    def open_hub(self, wire_options: dict[str, Any], wire_log: list[Any]) -> Iterator[OpensHub]:
        hubs: list[Hub] = []
        traces = Traces()

        def open_hub(
            name: str = "hub",
            *,
            slots: int = 64,
            slot_bytes: int = 32768,
            namespace: str = "tests",
            incarnation: str = "",
            poison: bool = False,
            **options: Any,
        ) -> Hub:
            counts: dict[str, int] = {}

            def report(what: str, count: int) -> None:
                counts[what] = counts.get(what, 0) + count

            context = make_context(name, namespace=namespace, incarnation=incarnation, report=report)
            member = make_member(self.use, {**wire_options, **options}, context)
            driver = Driver(member, slots=slots, slot_bytes=slot_bytes, patience=self.patience)
            driver.attach()
            hub = Hub(driver, FakeSource(driver.region, poison=poison), counts)
            hubs.append(hub)
            hub.transport.serve(hub.source)
            return hub

        yield open_hub
        took = [hub.close() for hub in hubs]
        assert max(took, default=0.0) < 5.0, f"closing took {max(took):.1f} s"
        held = {hub.transport.context.name: (hub.source.lent, hub.source.faults) for hub in hubs}
        assert not any(lent or faults for lent, faults in held.values()), f"leases after the end: {held}"
        traces.gone(self.patience)

    @pytest.fixture
    def start_peer(self, nursery: Nursery, wire_options: dict[str, Any]) -> Iterator[StartsPeer]:
        started: list[Process] = []

        def start(*, options: Mapping[str, Any] | None = None, **more: Any) -> Process:
            told = {"use": self.use, "options": {**wire_options, **(options or {})}, **more}
            started.append(Process(nursery, told))
            return started[-1]

        yield start
        for process in started:
            process.close()


def keys_of(count: int) -> list[Key]:
    """The keys of the chunks that peers serve."""
    return [make_key(n) for n in range(count)]
