"""A hub on one machine of a network: `python net_hub.py '{"use": "tcp", "options": {...}}'`, then lines of JSON.

It serves `CHUNKS` chunks.  {"peers": [[address, incarnation], ...], "seconds": s} lets it pull from all of them at
once, one batch after another from each, and say how many bytes came from each, and whether any was wrong.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import structlog

from kvhub.testing import Driver, FakeSource, make_context, make_key, make_payload
from kvhub.testing.wire_peer import make_member
from kvhub.types import Op, Outcome, Peer

CHUNKS, LENGTH = 8, 1 << 20
PATIENCE = 60.0


class Lanes:
    """One batch under way from each peer."""

    def __init__(self, driver: Driver, peers: list[list[str]], data: list[bytes]) -> None:
        self.driver, self.data = driver, data
        self.peers = [Peer(*peer) for peer in peers]
        self.moved, self.bad = [0] * len(peers), 0
        self.under_way: dict[int, int] = {}

    def start(self, number: int) -> None:
        base = CHUNKS * (1 + number)
        keys = [make_key(n) for n in range(CHUNKS)]
        end = time.monotonic() + PATIENCE
        batch = self.driver.submit(Op.LOAD, keys, range(base, base + CHUNKS), deadline=end, peer=self.peers[number])
        self.under_way[batch] = number

    def take(self) -> list[int]:
        """Numbers of the peers whose batch has ended."""
        ended = []
        for batch, number in list(self.under_way.items()):
            done = self.driver.ended.get(batch)
            if done is None:
                continue
            del self.under_way[batch]
            ended.append(number)
            self.moved[number] += sum(done.lengths)
            for place, outcome in enumerate(done.outcomes):
                slot = CHUNKS * (1 + number) + place
                right = outcome is Outcome.DONE and self.driver.bytes_of(slot, LENGTH) == self.data[place]
                self.bad += not right
        return ended


def pull(driver: Driver, data: list[bytes], peers: list[list[str]], seconds: float) -> dict[str, Any]:
    lanes, began = Lanes(driver, peers, data), time.monotonic()
    for number in range(len(peers)):
        lanes.start(number)
    while lanes.under_way:
        driver.woken.wait(0.05)
        driver.woken.clear()
        driver.poll()
        for number in lanes.take():
            if time.monotonic() < began + seconds:
                lanes.start(number)
    return {"moved": lanes.moved, "took": time.monotonic() - began, "bad": lanes.bad}


def main() -> None:
    what = json.loads(sys.argv[1])
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    member = make_member(what["use"], what["options"], make_context("hub"))
    driver = Driver(member, slots=3 * CHUNKS, slot_bytes=LENGTH, patience=PATIENCE)
    driver.attach()
    source, data = FakeSource(driver.region), [bytes(make_payload(n, LENGTH)) for n in range(CHUNKS)]
    for n in range(CHUNKS):
        source.put(make_key(n), data[n])
    member.serve(source)
    print(json.dumps([member.address(), member.context.incarnation]), flush=True)
    for line in sys.stdin:
        print(json.dumps(pull(driver, data, **json.loads(line))), flush=True)
    driver.close()
    source.close()


if __name__ == "__main__":
    main()
