"""Transports of this plugin for tests: in this process, and in others that can be killed and stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from kvhub.testing import Driver, FakeSource, make_context, make_key, make_payload
from kvhub.types import Key, Peer

PROVIDER = os.environ.get("KVHUB_TEST_UCX_PROVIDER", "auto")
"""A process has one libucp, so what the tests are to run on is said from outside; peer processes hear it too."""


def ucx_problem() -> str:
    """Why UCX cannot be used here; empty when it can."""
    try:
        from kvhub_ucx import _libucp

        _libucp.load(PROVIDER)
    except Exception as error:
        return str(error)
    return ""


@pytest.fixture(scope="session")
def ucx() -> None:
    """A test that asks for this is skipped where there is no UCX, unless a provider was named."""
    if problem := ucx_problem():
        (pytest.skip if PROVIDER == "auto" else pytest.fail)(f"no UCX here: {problem}")


@attrs.define
class Hub:
    """A transport in this process, with a region and a source."""

    driver: Driver
    source: FakeSource
    counts: dict[str, int]

    @property
    def transport(self) -> Any:
        return self.driver.member

    def peer(self, promise: str = "", incarnation: str | None = None) -> Peer:
        own = self.transport.context.incarnation
        return Peer(self.transport.address(), own if incarnation is None else incarnation, promise)

    def close(self) -> None:
        self.driver.close()
        self.source.close()


@pytest.fixture
def open_hub(ucx: None) -> Iterator[Callable[..., Hub]]:
    """`open_hub(name, slots=, slot_bytes=, namespace=, incarnation=, **options)`: attached, serving; closed later."""
    from kvhub_ucx import Config, UcxTransport

    hubs: list[Hub] = []

    def open_hub(
        name: str = "hub",
        *,
        slots: int = 64,
        slot_bytes: int = 32768,
        namespace: str = "tests",
        incarnation: str = "",
        **options: Any,
    ) -> Hub:
        counts: dict[str, int] = {}

        def report(what: str, count: int) -> None:
            counts[what] = counts.get(what, 0) + count

        context = make_context(name, namespace=namespace, incarnation=incarnation, report=report)
        driver = Driver(UcxTransport(Config(**options), context), slots=slots, slot_bytes=slot_bytes)
        driver.attach()
        hub = Hub(driver, FakeSource(driver.region), counts)
        hubs.append(hub)
        hub.transport.serve(hub.source)
        return hub

    yield open_hub
    for hub in hubs:
        hub.close()


class Process:
    """A hub in a process of its own (`ucx_peer.py`), which tells its address and does what it is told."""

    def __init__(self, **options: Any) -> None:
        self.options = options
        command = [sys.executable, str(Path(__file__).with_name("ucx_peer.py")), json.dumps(options)]
        self._run = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self._run.pid
        self.facts: dict[str, Any] = self.read()
        self.peer = Peer(self.facts["address"], self.facts["incarnation"])

    def read(self) -> dict[str, Any]:
        """The next line that it says."""
        assert self._run.stdout is not None
        line = self._run.stdout.readline()
        assert line, f"the peer process ended with {self._run.wait(5)}"
        return dict(json.loads(line))

    def wait_stopped(self, seconds: float = 10.0) -> None:
        """Until the process has stopped itself."""
        end = time.monotonic() + seconds
        while Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            assert time.monotonic() < end, "the peer process did not stop itself"
            time.sleep(0.002)

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait_ended(self, seconds: float = 10.0) -> int:
        return self._run.wait(seconds)

    def close(self) -> None:
        if self._run.poll() is None:
            self._run.kill()
        self._run.wait(5)
        for pipe in (self._run.stdin, self._run.stdout):
            if pipe is not None:
                pipe.close()

    def continue_(self) -> None:
        self.signal(signal.SIGCONT)


@pytest.fixture
def start_peer(ucx: None) -> Iterator[Callable[..., Process]]:
    """`start_peer(**options of ucx_peer.py)`; killed at the end."""
    started: list[Process] = []

    def start(**options: Any) -> Process:
        process = Process(**options)
        started.append(process)
        return process

    yield start
    for process in started:
        process.close()


@pytest.fixture
def chunks() -> Callable[..., dict[Key, bytes]]:
    """`chunks(count, length)`: the same keys and payloads as a peer process makes."""
    return lambda count, length: {make_key(n): make_payload(n, length) for n in range(count)}
