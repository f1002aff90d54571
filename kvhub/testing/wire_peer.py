"""A hub in a process of its own, which can be told what to do and stop or kill itself at any moment of the protocol.

    python -m kvhub.testing.wire_peer '{"use": "tcp", "options": {"path": "message"}, "chunks": 16}'

It serves chunks 0 to `chunks` (`make_key(n)`, `make_payload(n, length)`), says one line of JSON about itself and then
obeys one line of JSON at a time, see `Hub`.  `python -m kvhub.testing.wire_peer --nursery SOCKET` makes such hubs by
fork, one for each connection to that Unix socket, which is much faster than one interpreter after the other.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib
import json
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path
from typing import Any, TextIO

import structlog

from kvhub.plugins import Registry
from kvhub.testing.driver import Driver
from kvhub.testing.region import make_context, make_key, make_payload
from kvhub.testing.source import FakeSource
from kvhub.testing.wire_moments import arm
from kvhub.transport import Transport
from kvhub.types import MemberContext, Op, Outcome, Peer

PATTERN = b"\x5a"
payload = functools.lru_cache(maxsize=128)(make_payload)
"""`make_payload`, made once."""
_PR_SET_PDEATHSIG = 1


@functools.cache
def transport_class(use: str) -> type[Transport]:
    """The class of `tcp`, as a hub would find it, or of `package:Class`.  Raises PluginError and ImportError."""
    module, _, name = use.partition(":")
    return getattr(importlib.import_module(module), name) if name else Registry().transport(use)


def make_member(use: str, options: dict[str, Any], context: MemberContext) -> Transport:
    """A new transport, not attached."""
    found: Any = transport_class(use)
    return found(found.Config(**options), context)  # type: ignore[no-any-return]


def listening(pid: int | str = "self") -> list[tuple[str, int]]:
    """(host, port) of every TCP port that a process listens on."""
    inodes = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        try:
            inodes.add(str(fd.readlink()))
        except OSError:
            continue
    found = []
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                digits, _, port = fields[1].partition(":")
                words = [bytes.fromhex(digits[at : at + 8])[::-1] for at in range(0, len(digits), 8)]
                found.append((socket.inet_ntop(family, b"".join(words)), int(port, 16)))
    return found


class Hub:
    """What the process is, and the commands that it obeys: the methods without an underscore."""

    def __init__(
        self,
        use: str,
        options: dict[str, Any],
        chunks: int = 0,
        length: int = 1 << 18,
        slots: int = 0,
        incarnation: str = "first",
        begin: tuple[int, ...] = (),
        fault: dict[str, Any] | None = None,
        clock: float = 0.0,
        environment: dict[str, str] | None = None,
    ) -> None:
        os.environ.update(environment or {})
        if clock:
            # No two machines' clocks start at the same time.
            real = time.monotonic
            time.monotonic = lambda: real() + clock
        self._events: list[dict[str, Any]] = []
        structlog.configure(processors=[self._heard], cache_logger_on_first_use=False)
        self._counts: dict[str, int] = {}
        context = make_context("peer", incarnation=incarnation, report=self._report)
        self._member: Any = make_member(use, options, context)
        slots = slots or max(2 * chunks, 2)
        self._driver = Driver(self._member, slots=slots, slot_bytes=length, patience=60.0)
        self._driver.attach()
        self._source = FakeSource(self._driver.region)
        for n in range(chunks):
            self._source.put(make_key(n), payload(n, length))
        self._source.begin(*(make_key(n) for n in begin))
        self._member.serve(self._source)
        if fault:
            arm(**fault)
        self._used: list[int] = []

    def _report(self, name: str, count: int) -> None:
        self._counts[name] = self._counts.get(name, 0) + count

    def _heard(self, _logger: object, level: str, event: MutableMapping[str, Any]) -> Any:
        told = {key: str(value) for key, value in event.items() if key not in ("exc_info", "member")}
        if event.get("exc_info"):
            print(structlog.processors.format_exc_info(None, level, event), file=sys.stderr, flush=True)
        self._events.append(told)
        raise structlog.DropEvent

    def facts(self) -> dict[str, Any]:
        """Address and incarnation, for `Peer`."""
        return {
            "address": self._member.address(),
            "incarnation": self._member.context.incarnation,
            "pid": os.getpid(),
        }

    def fault(self, **fault: Any) -> dict[str, Any]:
        """Stop or kill this process at a moment, see `wire_moments.arm`."""
        arm(**fault)
        return {}

    def pull(self, peer: list[str], count: int, seconds: float = 20.0, first: int = 0) -> dict[str, Any]:
        """Load chunks into the upper half, look at every byte, and hand the slots to somebody else: a pattern.

        `wrong` counts chunks that were called DONE and are not what they should be.
        """
        driver, began = self._driver, time.monotonic()
        # Backwards, so that no two neighbours can be moved as one.
        numbers = range(first, first + count)[::-1]
        keys = [make_key(n) for n in numbers]
        slots = range(driver.half, driver.half + count)
        batch = driver.submit(Op.LOAD, keys, slots, deadline=began + seconds, peer=Peer(*peer))
        done = driver.wait(batch)
        took, wrong = time.monotonic() - began, 0
        for place, outcome in enumerate(done.outcomes):
            if outcome is Outcome.DONE:
                length = done.lengths[place]
                wrong += driver.bytes_of(slots[place], length) != payload(numbers[place], length)
        self._used = list(slots)
        for slot in slots:
            driver.fill(slot, PATTERN * driver.region.slot_bytes)
        return {"outcomes": [one.name for one in done.outcomes], "reason": done.reason, "wrong": wrong, "took": took}

    def state(self) -> dict[str, Any]:
        """What is held, what was said, and `spoilt`: slots that changed since they were handed on."""
        wire, pattern = self._member._wire, PATTERN * self._driver.region.slot_bytes
        return {
            "links": len(wire._links) + len(wire._quarantined) + len(wire._hot),
            "lanes": len(wire._lanes),
            "lent": self._source.lent,
            "asked": len(self._source.taken),
            "faults": self._source.faults,
            "counts": self._counts,
            "events": [event["event"] for event in self._events],
            "refused": [[e["peer"], e["reason"]] for e in self._events if e["event"] == "wire.refused"],
            "spoilt": sum(self._driver.bytes_of(slot) != pattern for slot in self._used),
            "ports": listening(),
            "threads": threading.active_count(),
            "descriptors": sum(1 for _ in Path("/proc/self/fd").iterdir()),
            "healthy": self._member.healthy(),
        }

    def arena(self) -> dict[str, Any]:
        """What its memory holds, in short."""
        return {"arena": hashlib.sha256(self._driver.region.view).hexdigest()}

    def close(self) -> dict[str, Any]:
        took = self._driver.close()
        self._source.close()
        return {"took": took, "lent": self._source.lent, "threads": threading.active_count()}

    def _obey(self, lines: Iterator[str], say: Callable[[dict[str, Any]], None]) -> None:
        say(self.facts())
        for line in lines:
            command = json.loads(line)
            name = command.pop("do")
            if name.startswith("_"):
                raise ValueError(f"no command is called {name!r}")
            say(getattr(self, name)(**command))
            if name == "close":
                return
        self.close()


def _run(text: str, lines: Iterator[str], out: TextIO) -> None:
    def say(facts: dict[str, Any]) -> None:
        out.write(json.dumps(facts) + "\n")
        out.flush()

    Hub(**json.loads(text))._obey(lines, say)


def nursery(path: str) -> None:
    """Fork one hub for each connection, whose first line says what it should be.  Ends with its standard input."""
    libc = ctypes.CDLL(None)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(16)
        print("ready", flush=True)
        while True:
            sock, _ = listener.accept()
            if os.fork():
                sock.close()
                continue
            # Nothing that a test started outlives it, whatever becomes of the test.
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listener.close()
            code = 1
            try:
                with sock, sock.makefile("r") as lines, sock.makefile("w") as out:
                    _run(lines.readline(), iter(lines.readline, ""), out)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)


def main() -> None:
    # The parent reads what is said here; an import that takes its time is logged.
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    if sys.argv[1] == "--nursery":
        # Found and imported once, before the first fork.
        for use in sys.argv[3:]:
            transport_class(use)
        nursery(sys.argv[2])
    else:
        _run(sys.argv[1], iter(sys.stdin.readline, ""), sys.stdout)


if __name__ == "__main__":
    main()
