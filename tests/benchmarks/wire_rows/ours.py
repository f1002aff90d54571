"""A kvhub transport at work: `python -m wire_rows.ours PACKAGE CORE`, a hub's arena and one transport per chunk size.

What is timed is what a hub sees: from `submit` of a LOAD until its completion has been polled after `wake`.  So a
chunk's lease, its checksum at both ends and the word that it is whole are all in it.
"""

from __future__ import annotations

import importlib
import logging
import sys
import threading
import time
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import structlog

from kvhub.arena import Arena
from kvhub.testing import make_context
from kvhub.transport import Transport
from kvhub.types import Batch, Held, Key, Op, Outcome, Peer
from wire_rows import worker
from wire_rows.cases import ARENA_BYTES, MIB, Case, clear, fill, wrong

CLASSES = {"kvhub_ucx": "UcxTransport", "kvhub_tcp": "TcpTransport"}
PATIENCE = 60.0


def key_of(case: str, slot: int) -> Key:
    return sha256(f"{case} {slot}".encode()).digest()


class Shelf:
    """The hub as the serving transport sees it: every slot holds a chunk, and each ticket counts as a lease."""

    def __init__(self, case: Case) -> None:
        self._chunks = {key_of(case.name, slot): Held(slot, case.bytes) for slot in range(case.slots)}
        self._lent: dict[int, list[Held | None]] = {}
        self._number, self._lock = 0, threading.Lock()

    def take(self, keys: Sequence[Key], deadline: float, ready: Callable[[int, list[Held | None]], None]) -> int:
        found = [self._chunks.get(key) for key in keys]
        with self._lock:
            self._number += 1
            ticket = self._number
            self._lent[ticket] = found
        ready(ticket, found)
        return ticket

    def give_back(self, ticket: int) -> None:
        with self._lock:
            self._lent.pop(ticket, None)

    def fulfilled(self, promise: str) -> None:
        pass


def build(package: str, options: dict[str, Any], name: str) -> tuple[Transport, list[str]]:
    """The transport, and the options that this version of it does not have."""
    module = importlib.import_module(package)
    known = attrs.fields_dict(module.Config)
    config = module.Config(**{key: value for key, value in options.items() if key in known})
    return getattr(module, CLASSES[package])(config, make_context(name)), sorted(options.keys() - known.keys())


@attrs.define
class _Open:
    case: Case
    transport: Transport
    woken: threading.Event
    pulls: int = 0


class Hub:
    """One process's arena, shared by the transports of all cases, each with slots of its own size."""

    def __init__(self, package: str) -> None:
        self.package = package
        self.arena = Arena(ARENA_BYTES, MIB, name="bench")
        self.opened: dict[str, _Open] = {}
        self.numbers = 0

    def prepare(self, filled: bool) -> dict[str, Any]:
        """Every page there, before anything is timed; the server's hold the pattern."""
        view = self.arena.region.view
        if filled:
            fill(view)
        else:
            np.frombuffer(view, np.uint8)[:] = 1
        return {}

    def open(self, case: str, serves: bool, mapped: bool, options: dict[str, Any]) -> dict[str, Any]:
        """Attach a transport; unless `mapped` it cannot tell its peer where the arena is, as if on another machine."""
        what, own = Case(case), self.arena.region
        name = own.name if mapped else ""
        region = attrs.evolve(own, slot_bytes=what.bytes, slots=what.slots, name=name)
        transport, missing = build(self.package, options, "server" if serves else "puller")
        opened = _Open(what, transport, threading.Event())
        transport.attach(region, opened.woken.set)
        if serves:
            transport.serve(Shelf(what))
        self.opened[case] = opened
        return {"peer": [transport.address(), transport.context.incarnation], "missing": missing}

    def pull(self, case: str, peer: list[str], count: int, check: bool) -> dict[str, Any]:
        """`count` pulls, one after another; seconds of each.  With `check` one more before, compared byte for byte."""
        opened, bad, seconds = self.opened[case], 0, []
        for turn in range(count + check):
            source, target = opened.case.slots_of(opened.pulls)
            opened.pulls += 1
            keys = [key_of(case, slot) for slot in source]
            if check and not turn:
                clear(self.arena.region.view, opened.case, target)
                self._pull(opened, keys, target, Peer(*peer))
                bad = wrong(self.arena.region.view, opened.case, source, target)
            else:
                seconds.append(self._pull(opened, keys, target, Peer(*peer)))
        return {"seconds": seconds, "bytes": opened.case.total, "wrong": bad}

    def _pull(self, opened: _Open, keys: list[Key], target: list[int], peer: Peer) -> float:
        self.numbers += 1
        lengths = (opened.case.bytes,) * len(keys)
        end = time.monotonic() + PATIENCE
        batch = Batch(self.numbers, Op.LOAD, tuple(keys), tuple(target), lengths, end, peer=peer)
        opened.woken.clear()
        start = time.perf_counter()
        opened.transport.submit(batch)
        while not (done := opened.transport.poll()):
            if not opened.woken.wait(PATIENCE):
                raise TimeoutError(f"no completion of a pull of {len(keys)} chunks within {PATIENCE:g} s")
            opened.woken.clear()
        took = time.perf_counter() - start
        good = sum(outcome is Outcome.DONE for outcome in done[0].outcomes)
        if good != len(keys):
            raise RuntimeError(f"{len(keys) - good} of {len(keys)} chunks were not delivered ({done[0].reason})")
        return took

    def close(self) -> dict[str, Any]:
        for opened in self.opened.values():
            opened.transport.close()
        self.opened.clear()
        return {}


def cpu() -> dict[str, Any]:
    """Seconds of CPU of this process's threads so far, to the nanosecond where the kernel counts them."""
    total = 0.0
    for task in Path("/proc/self/task").iterdir():
        total += int((task / "schedstat").read_text().split()[0]) / 1e9
    return {"cpu": total, "at": time.monotonic()}


def main() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    hub = Hub(sys.argv[1])
    commands = {"prepare": hub.prepare, "open": hub.open, "pull": hub.pull, "close": hub.close, "cpu": cpu}
    worker.run(commands)


if __name__ == "__main__":
    main()
