"""What other processes do to a pool: `deeds.py DEED ROOT WORDS ...`; each prints its answer as JSON lines."""

from __future__ import annotations

import json
import os
import random
import re
import sys
import time
from hashlib import sha256
from pathlib import Path
from typing import Any

import attrs

from kvhub.cli import main
from kvhub.pool import walk
from kvhub.pool.gc import Limits, collect
from kvhub.pool.pace import Pace
from kvhub.testing.driver import Driver
from kvhub.testing.region import make_context, make_key
from kvhub.types import Outcome
from kvhub_nfs import DirectoryStore

KEYS = 60
LENGTH = 20_000


def say(plain: Any) -> None:
    print(json.dumps(plain), flush=True)


def payload_of(number: int | str) -> bytes:
    return (sha256(f"payload {number}".encode()).digest() * (LENGTH // 32 + 1))[:LENGTH]


def open_hub(root: str) -> Driver:
    hub = Driver(DirectoryStore(DirectoryStore.Config(root=root), make_context("hub")), slots=16, slot_bytes=32768)
    hub.attach()
    return hub


def mix(root: str, seed: str, turns: str) -> None:
    """Put, get, find and remove chunks of one small set of keys, and collect now and then."""
    rng, hub = random.Random(int(seed)), open_hub(root)
    counts = {"wrong": 0, "bad": 0, "hits": 0, "collected": 0}
    medium = DirectoryStore.medium(DirectoryStore.Config(root=root))
    say("ready")
    sys.stdin.readline()
    for turn in range(int(turns)):
        numbers = rng.sample(range(KEYS), 4)
        keys, deed = [make_key(number) for number in numbers], rng.random()
        if deed < 0.4:
            done = hub.save({make_key(number): payload_of(number) for number in numbers}, replace=rng.random() < 0.3)
            counts["bad"] += sum(not outcome.good for outcome in done.outcomes)
        elif deed < 0.8:
            done = hub.load(keys)
            counts["bad"] += sum(outcome not in (Outcome.DONE, Outcome.MISS) for outcome in done.outcomes)
            for at, number in enumerate(numbers):
                if done.outcomes[at] is Outcome.DONE:
                    counts["hits"] += 1
                    counts["wrong"] += hub.bytes_of(hub.half + at, LENGTH) != payload_of(number)
        elif deed < 0.9:
            hub.remove(keys)
        else:
            hub.find(keys)
        if turn % 100 == 50:
            most = KEYS * (LENGTH + 4096)
            counts["collected"] += collect(
                medium, Limits(most=most, high=0.5, low=0.3, grace=0.0), Pace()
            ).removed.chunks
    hub.close()
    medium.close()
    say(counts)


def lives(root: str) -> None:
    """For every number that is read: a forked child that saves and removes for ever, to be killed."""
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            hub, rng = open_hub(root), random.Random(int(line))
            say(os.getpid())
            while True:
                numbers = rng.sample(range(KEYS), 8)
                hub.save({make_key(number): payload_of(number) for number in numbers}, replace=True)
                hub.remove([make_key(number) for number in numbers[:2]])
        os.waitpid(child, 0)
        say("killed")


def sweep(root: str, lease: str, rate: str) -> None:
    """Collect everything, with leases of so many seconds."""
    walk.LEASE_SECONDS = float(lease)
    with DirectoryStore.medium(DirectoryStore.Config(root=root)) as medium:
        done = collect(medium, Limits(unused_for=60.0), Pace(rate=float(rate)))
    say({"removed": done.removed.chunks, "left": done.left_chunks})


def command(*words: str) -> None:
    """`kvhub` with these words; then how long it took and how much memory the process had at most."""
    before = time.monotonic()
    status = main(words)
    took = time.monotonic() - before
    # Not ru_maxrss, which a process takes over from its parent.
    most = int(re.findall(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())[0]) / 1024
    print(json.dumps({"status": status, "seconds": took, "mib": most}), file=sys.stderr, flush=True)


def lookups(root: str, count: str) -> None:
    """Find and miss keys of a pool of `count` sparse objects; per second, and how often a directory was listed."""
    listed = 0

    def count_listings(event: str, _: tuple[Any, ...]) -> None:
        nonlocal listed
        listed += event in ("os.listdir", "os.scandir")

    names = [sha256(f"pool {number}".encode()).digest() for number in range(0, int(count), max(1, int(count) // 4000))]
    [space] = [path for path in Path(root).iterdir() if len(path.name) == 32]
    context = make_context("hub")
    digest = bytes.fromhex(space.name) + bytes(16)
    context = attrs.evolve(context, namespace=digest, namespace_json=(space / "namespace.json").read_text())
    hub = Driver(DirectoryStore(DirectoryStore.Config(root=root), context), slots=16, slot_bytes=32768)
    hub.attach()
    sys.addaudithook(count_listings)
    answers = {}
    for kind, keys in (("hits", names), ("misses", [sha256(name).digest() for name in names])):
        before, found = time.monotonic(), 0
        for at in range(0, len(keys), 64):
            found += sum(outcome is Outcome.DONE for outcome in hub.find(keys[at : at + 64]))
        answers[kind] = found
        answers[f"{kind}_per_second"] = round(len(keys) / (time.monotonic() - before))
    say(answers | {"asked": len(names), "listed": listed})
    hub.close()


DEEDS = {deed.__name__: deed for deed in (mix, lives, sweep, command, lookups)}

if __name__ == "__main__":
    DEEDS[sys.argv[1]](*sys.argv[2:])
