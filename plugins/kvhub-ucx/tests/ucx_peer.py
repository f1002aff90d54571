"""A hub in a process of its own, for tests: `python ucx_peer.py '{"chunks": 16, ...}'`.

It serves chunks 0 to `chunks` and says its address in one line of JSON.  With `pull` it pulls from there instead.
`fault` at its `after`-th checksum is what happens to it in the middle of a transfer: "stop" or "kill".
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any

import structlog

import kvhub.wire.arrivals
import kvhub.wire.departures
from kvhub.testing import Driver, FakeSource, make_context, make_key, make_payload
from kvhub.types import Op, Peer
from kvhub_ucx import Config, UcxTransport, _libucp


def _say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def _arrange(fault: str, after: int) -> None:
    """Let this process stop or kill itself, from within the wire's thread."""
    number = {"stop": signal.SIGSTOP, "kill": signal.SIGKILL}[fault]
    real, count = kvhub.wire.departures.check, 0

    def check(key: bytes, payload: memoryview) -> bytes:
        nonlocal count
        count += 1
        if count == after:
            os.kill(os.getpid(), number)
        return real(key, payload)

    kvhub.wire.departures.check = kvhub.wire.arrivals.check = check


def main() -> None:
    # The first to ask decides for the process.
    _libucp.load(os.environ.get("KVHUB_TEST_UCX_PROVIDER", "auto"))
    options = json.loads(sys.argv[1])
    chunks, length = options.pop("chunks", 0), options.pop("length", 1 << 20)
    incarnation, pull = options.pop("incarnation", "first"), options.pop("pull", None)
    fault, after, begin = options.pop("fault", ""), options.pop("after", 1), options.pop("begin", [])
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    transport = UcxTransport(Config(**options), make_context("peer", incarnation=incarnation))
    driver = Driver(transport, slots=2 * max(chunks, 1), slot_bytes=length, patience=30.0)
    driver.attach()
    source = FakeSource(driver.region)
    transport.serve(source)
    source.begin(*(make_key(n) for n in begin))
    if fault:
        _arrange(fault, after)
    if pull is None:
        for n in range(chunks):
            source.put(make_key(n), make_payload(n, length))
        _say(address=transport.address(), incarnation=incarnation)
    else:
        _say(address=transport.address(), incarnation=incarnation)
        keys = [make_key(n) for n in range(chunks)]
        batch = driver.submit(Op.LOAD, keys, range(chunks), deadline=time.monotonic() + 20, peer=Peer(*pull))
        done = driver.wait(batch, 25.0)
        _say(outcomes=[one.name for one in done.outcomes], reason=done.reason)
    sys.stdin.read()
    transport.close()


if __name__ == "__main__":
    main()
