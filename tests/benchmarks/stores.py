"""What stores cost, as ratios to the raw limit of the same run: host tier, directory store, S3 if its rows are there.

    stores.py [--folder DIR] [--rounds 5] [--total 256] [--sizes 1 8 32] [--json FILE] [--strict]

One line per goal: name, ratio (median of the rounds; 1 is as fast as the raw limit), goal, met or short; then the ratio
of the fastest rounds, that by processor time, and the rates.  Each round measures a store and its limit one after the
other, so that other load of the machine falls on both.  Where a store hashes and its limit does not, the last ratio is
to a limit that hashes, too; what reaches its goal only beside that one is `apart`: met with the checksum taken apart.
Exits with 1 when the first two ratios are below the floor,
`FLOOR` of the goal: far enough below for a machine that does other things, near enough that a store which has slowed
down does not pass.  With --strict it exits with 3 when a goal is short.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from statistics import median

import attrs
import stores_raw as raw
import xxhash

from kvhub.arena import Arena
from kvhub.builtin.host import HostConfig, HostStore
from kvhub.evict import POLICIES
from kvhub.store import Store
from kvhub.testing.driver import Driver
from kvhub.testing.region import make_context, make_key
from kvhub.types import Held, Key, Op, Outcome
from kvhub_nfs import DirectoryStore, LocalStore

MIB = raw.MIB
FLOOR = 0.6
THREADS = 4
S3 = Path(__file__).with_name("stores_s3.py")


@attrs.define
class Row:
    """A goal, and the ratios of the rounds."""

    name: str
    goal: float
    ours: list[float] = attrs.Factory(list)
    limit: list[float] = attrs.Factory(list)
    ours_cpu: list[float] = attrs.Factory(list)
    limit_cpu: list[float] = attrs.Factory(list)
    hashing: list[float] = attrs.Factory(list)
    """Seconds of the limit that hashes, too; empty where there is none."""

    @property
    def ratio(self) -> float:
        return median(limit / ours for ours, limit in zip(self.ours, self.limit, strict=True))

    @property
    def apart(self) -> float:
        """The ratio to the limit that hashes, too."""
        return median(limit / ours for ours, limit in zip(self.ours, self.hashing, strict=True)) if self.hashing else 0

    @property
    def best(self) -> float:
        """The fastest rounds of both: what is left of the ratio when nothing else runs."""
        return min(self.limit) / min(self.ours)

    @property
    def by_cpu(self) -> str:
        """The same by processor time, which other load hardly touches; not where the limit is another process."""
        return f"{min(self.limit_cpu) / min(self.ours_cpu):5.2f}" if min(self.limit_cpu) else "    -"

    @property
    def below(self) -> bool:
        return max(self.ratio, self.best) < self.goal * FLOOR

    def line(self, total: int) -> str:
        rates = [total / median(values) / 1e9 for values in (self.ours, self.limit)]
        verdict = "met" if self.ratio >= self.goal else "apart" if self.apart >= self.goal else "short"
        verdict = verdict if self.goal else ""
        hashing = f"  hashing {self.apart:5.2f}" if self.hashing else ""
        goal = f"goal {self.goal:.2f}" if self.goal else "no goal"
        return (
            f"{self.name:<44} {self.ratio:6.2f}  {goal:<9} {verdict:<5}  best {self.best:5.2f}  by CPU {self.by_cpu}  "
            f"{rates[0]:6.2f} of {rates[1]:6.2f} GB/s{hashing}"
        )


Sample = tuple[float, float]
"""Seconds by the clock, and of this process's processor time."""


def sample(call: Callable[[], float]) -> Sample:
    before = time.process_time()
    wall = call()
    return wall, time.process_time() - before


class Bench:
    """Chunks of one size in a region of their own, and stores that take them."""

    def __init__(self, folder: Path, total: int, size: int) -> None:
        self.folder, self.total, self.size = folder, total, size
        self.count = total // size
        self.other = raw.memory(total)
        self.rows: dict[str, Row] = {}
        self.loads: list[float] = []
        self.turn = 0
        self.rounds = 0

    def keys(self) -> list[Key]:
        """Keys that no round has used yet."""
        self.turn += 1
        return [make_key(f"{self.size} {self.turn} {n}") for n in range(self.count)]

    @contextmanager
    def hub(self, store: Store) -> Iterator[Driver]:
        hub = Driver(store, slots=self.count, slot_bytes=self.size, patience=300.0)
        hub.region.view[:] = self.other
        hub.attach()
        try:
            yield hub
        finally:
            hub.close()

    @contextmanager
    def place(self, name: str) -> Iterator[Path]:
        path = self.folder / name
        path.mkdir()
        try:
            yield path
        finally:
            shutil.rmtree(path)

    def timed(self, hub: Driver, op: Op, keys: Sequence[Key], batch: int = 8) -> float:
        """Seconds of all chunks, in batches as a hub sends them."""
        start = time.perf_counter()
        sent = [
            hub.submit(op, keys[at : at + batch], range(at, min(at + batch, self.count)))
            for at in range(0, self.count, batch)
        ]
        outcomes = {outcome for number in sent for outcome in hub.wait(number).outcomes}
        took = time.perf_counter() - start
        if outcomes != {Outcome.DONE}:
            raise SystemExit(f"stores: {op.name} ended with {outcomes}; the figures would mean nothing")
        return took

    def add(self, name: str, goal: float, ours: Sample, limit: Sample, hashing: float | None = None) -> None:
        row = self.rows.setdefault(name, Row(f"{name}, {self.size // MIB} MiB", goal))
        row.ours.append(ours[0])
        row.ours_cpu.append(ours[1])
        row.limit.append(limit[0])
        row.limit_cpu.append(limit[1])
        row.hashing += [] if hashing is None else [hashing]

    # -- one round of each

    def host(self) -> None:
        """Between somebody's region and the tier's own memory; inside a hub nothing is copied at all."""
        keys = self.keys()
        tier = HostStore(HostConfig(capacity=self.total), make_context("host"))
        with self.hub(tier) as hub:
            target = raw.memory(self.total)
            # Both targets are touched memory: a page that is seen for the first time costs more than the copy into it.
            assert tier._arena is not None
            tier._arena._warmer.join()
            copied = sample(lambda: raw.copies(hub.region.view, target, self.size))
            self.add("host tier, save", 0.9, sample(lambda: self.timed(hub, Op.SAVE, keys)), copied)
            copied = sample(lambda: raw.copies(target, hub.region.view, self.size))
            self.add("host tier, load", 0.9, sample(lambda: self.timed(hub, Op.LOAD, keys)), copied)

    def warm(self) -> None:
        """Out of the page cache, verified, with one worker against one thread's memcpy."""
        with self.place("warm") as root:
            config = DirectoryStore.Config(root=root, workers=1)
            with self.hub(DirectoryStore(config, make_context("pool"))) as hub:
                keys = self.keys()
                self.timed(hub, Op.SAVE, keys)
                self.timed(hub, Op.LOAD, keys)
                copied = sample(lambda: raw.copies(self.other, hub.region.view, self.size))
                loaded = sample(lambda: self.timed(hub, Op.LOAD, keys))
                self.add("directory, load from the page cache", 0.6, loaded, copied)
                self.add("  the checksum alone, beside memcpy", 0.0, sample(lambda: self.hashed(hub)), copied)

    def hashed(self, hub: Driver) -> float:
        start = time.perf_counter()
        for slot in range(self.count):
            xxhash.xxh3_128_digest(hub.region.slot(slot))
        return time.perf_counter() - start

    def made(self, hub: Driver) -> list[Key]:
        """Keys whose directories are there, as they are in a pool that is in use."""
        keys = self.keys()
        self.timed(hub, Op.SAVE, keys)
        hub.remove(keys)
        return keys

    def in_turns(
        self,
        name: str,
        goal: float,
        ours: Callable[[], float],
        limit: Callable[[], float],
        hashing: Callable[[], float],
        *,
        own: bool = True,
    ) -> None:
        """Measure all three, in another order each round: who comes second may meet the first one's writeback."""
        calls = [ours, limit, hashing]
        first = self.rounds % len(calls)
        told = {call: sample(call) for call in calls[first:] + calls[:first]}
        # The processor time of a limit that is another program (fio) is not known here.
        beside = told[limit] if own else (told[limit][0], 0.0)
        self.add(name, goal, told[ours], beside, told[hashing][0])

    def buffered(self) -> None:
        with self.place("buffered") as root, self.place("raw") as beside, self.place("hashing") as third:
            config = DirectoryStore.Config(root=root, workers=THREADS)
            with self.hub(DirectoryStore(config, make_context("pool"))) as hub:
                keys = self.made(hub)
                self.in_turns(
                    "directory, save to the page cache",
                    0.8,
                    lambda: self.timed(hub, Op.SAVE, keys),
                    lambda: raw.writes(beside, self.other, self.size, THREADS),
                    lambda: raw.writes(third, self.other, self.size, THREADS, hashing=True),
                )
                self.loads.append(self.timed(hub, Op.LOAD, keys))

    def direct(self) -> None:
        with self.place("direct") as root, self.place("fio") as beside, self.place("hashing") as third:
            config = LocalStore.Config(root=root, workers=THREADS, io="direct")
            with self.hub(LocalStore(config, make_context("pool"))) as hub:
                keys = self.made(hub)
                for op, rw in ((Op.SAVE, "write"), (Op.LOAD, "read")):
                    self.in_turns(
                        f"directory, direct {rw}",
                        0.85,
                        lambda op=op: self.timed(hub, op, keys),
                        lambda rw=rw: self.raw_direct(beside, rw),
                        lambda rw=rw: raw.direct(third, rw, self.other, self.size, THREADS, hashing=True),
                        own=not raw.has_fio(),
                    )

    def raw_direct(self, folder: Path, rw: str) -> float:
        if raw.has_fio():
            return raw.fio(folder, rw, self.total, self.size, THREADS)
        return raw.direct(folder, rw, self.other, self.size, THREADS)

    def round(self) -> None:
        self.rounds += 1
        self.host()
        self.warm()
        self.buffered()
        self.direct()


def peers(bench: Bench, python: Path, rounds: int) -> None:
    """Other projects' file tiers after ours, as many rounds; none of them has a checksum, which ours always takes."""
    program = Path(__file__).with_name("stores_peers.py")
    words = [bench.folder, bench.total, bench.size, rounds, THREADS]
    ended = subprocess.run([python, program, *map(str, words)], capture_output=True, text=True, check=False)
    if ended.returncode:
        print(f"  peers: not measured, {ended.stderr.strip().splitlines()[-1:]}")
        return
    ours = {
        "save, the page cache": bench.rows["directory, save to the page cache"].ours,
        "load, the page cache": bench.loads,
        "save, direct": bench.rows["directory, direct write"].ours,
        "load, direct": bench.rows["directory, direct read"].ours,
    }
    for name, theirs in json.loads(ended.stdout.splitlines()[-1]).items():
        own = ours[name.partition(", ")[2]]
        print(
            f"  {name + f', {bench.size // MIB} MiB':<42} ours to theirs {median(theirs) / median(own):5.2f}, fastest "
            f"rounds {min(theirs) / min(own):5.2f}   {bench.total / median(own) / 1e9:6.2f} and "
            f"{bench.total / median(theirs) / 1e9:6.2f} GB/s"
        )


# -- the host tier's policies


def policy_costs(slots: int = 16384, calls: int = 64) -> None:
    """Nanoseconds per chunk of a lookup with its release, and of a claim that evicts."""
    for name in POLICIES:
        arena = Arena(slots * 4096, 4096, policy=name)
        keys = [make_key(n) for n in range(slots)]
        fill(arena, keys)
        found = []
        for at in range(0, slots - 256, slots // calls):
            start = time.perf_counter()
            arena.release(arena.lease_run(keys[at : at + 256]))
            found.append((time.perf_counter() - start) / 256)
        evicts = []
        for _ in range(calls):
            start = time.perf_counter()
            slots_in = arena.claim(64)
            evicts.append((time.perf_counter() - start) / 64)
            for slot in slots_in:
                arena.publish(random.randbytes(32), Held(slot, 1))
            arena.release(slots_in)
        arena.close()
        lease, evict = (f"{median(values) * 1e9:5.0f} ns" for values in (found, evicts))
        print(f"policy {name:<8} lease and release {lease}, evict {evict} a chunk")


def fill(arena: Arena, keys: Sequence[Key]) -> None:
    for key in keys:
        (slot,) = arena.claim(1)
        arena.publish(key, Held(slot, 1))
        arena.release([slot])


def hit_ratios(slots: int = 1600, requests: int = 8000) -> None:
    """A trace of prompts by a Zipf law (0.9, 300 prompts of 4 to 32 chunks), alone and with scans between."""
    weights = list(accumulate(1 / (rank + 1) ** 0.9 for rank in range(300)))
    for what, every in (("Zipf", 0), ("Zipf and scans", 25)):
        ratios = []
        for name in POLICIES:
            draw, arena = random.Random(7), Arena(slots * 4096, 4096, policy=name)
            hits = asked = 0
            for number in range(requests):
                if every and number % every == every - 1:
                    prompt = [make_key(f"scan {number} {n}") for n in range(800)]
                else:
                    rank = bisect_left(weights, draw.random() * weights[-1])
                    prompt = [make_key(f"{rank} {n}") for n in range(4 + rank * 7919 % 29)]
                found = arena.lease_run(prompt)
                fill(arena, [key for key in prompt[len(found) :] if key not in arena])
                arena.release(found)
                if len(prompt) < 800:
                    hits, asked = hits + len(found), asked + len(prompt)
            arena.close()
            ratios.append(f"{name} {hits / asked:.3f}")
        print(f"hit ratio, {what:<15} {', '.join(ratios)}   ({slots} slots; hits of the prompts that repeat)")


def s3_rows() -> int:
    """The rows of the S3 store, by its own script where it is there."""
    if not S3.exists():
        print("S3: no rows, tests/benchmarks/stores_s3.py is not there")
        return 0
    return subprocess.run([sys.executable, str(S3)], check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", type=Path, help="on the disk to be measured; default: the temporary folder")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--total", type=int, default=256, help="MiB of chunks in a round")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 8, 32], help="MiB of a chunk")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--no-s3", action="store_true")
    parser.add_argument("--peer-python", type=Path, help="of an environment with vLLM and LMCache (lmcache_env.sh)")
    parser.add_argument("--strict", action="store_true", help="exit with 3 if a goal is short")
    args = parser.parse_args()
    rows: list[Row] = []
    limit = "fio psync" if raw.has_fio() else "a loop of our own, there is no fio"
    print(
        f"{args.rounds} rounds of {args.total} MiB; {THREADS} workers where not said otherwise; direct limit: {limit}"
    )
    with tempfile.TemporaryDirectory(prefix="kvhub-bench-", dir=args.folder) as folder:
        for size in args.sizes:
            bench = Bench(Path(folder), args.total * MIB, size * MIB)
            for _ in range(args.rounds):
                bench.round()
            rows += bench.rows.values()
            for row in bench.rows.values():
                print(row.line(bench.total), flush=True)
            if args.peer_python:
                peers(bench, args.peer_python, args.rounds)
    policy_costs()
    hit_ratios()
    if not args.peer_python:
        print("not measured: vLLM's file tier and LMCache's disk backends; give --peer-python (see lmcache_env.sh)")
    if args.json:
        args.json.write_text(json.dumps({row.name: attrs.asdict(row) for row in rows}))
    below = [row.name for row in rows if row.below]
    short = [row.name for row in rows if max(row.ratio, row.apart) < row.goal]
    if below:
        print(f"below the floor: {', '.join(below)}")
    s3 = 0 if args.no_s3 else s3_rows()
    return 1 if below or s3 else 3 if args.strict and short else 0


if __name__ == "__main__":
    sys.exit(main())
