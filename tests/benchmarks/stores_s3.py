"""What the S3 store costs beside bare sockets, on a server that costs next to nothing and on a real one.

    stores_s3.py [--rounds 5] [--total 128] [--sizes 1 4 16 32] [--no-server] [--json FILE] [--strict]

One line per goal: the ratio to a socket client of the same requests (median of the rounds; 1 is as good), the goal,
the verdict (met, apart or short) and the figures: CPU seconds per GiB, or MB/s.  CPU is this process's alone, so it
means the client's whatever else the machine does; MB/s mean something only on a quiet machine, and on the real server
they are the server's.  Exits with 1 when a ratio on the stub at 4 MiB or more is below the floor, 3 with --strict when
a goal there is short; other rows are told.

The store does more than the sockets: it asks first whether a chunk is there, and hashes what it saves and loads.
The ratio to sockets that hash, too, ends each line; where only that one reaches the goal, the verdict is `apart`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

import attrs
import stores_s3_raw as raw

from kvhub.testing.driver import Driver
from kvhub.testing.region import make_context, make_key
from kvhub.types import Key, Op, Outcome
from kvhub_s3 import BucketStore
from kvhub_s3.config import BucketConfig, Credentials, Secrets
from kvhub_s3.rest import Rest

sys.path.insert(0, str(Path(__file__).parents[1]))
from s3server import ACCESS, SECRET, NoServer, running

MIB, GIB = 1 << 20, 1 << 30
CONCURRENCY = 8
FLOOR = 0.6
GOALS = {("PUT", "CPU"): 1 / 1.5, ("GET", "CPU"): 1 / 2.5, ("PUT", "rate"): 0.8, ("GET", "rate"): 0.8}
BUCKET = "kvhub-bench"
JUDGED_FROM = 4 * MIB


@attrs.define
class Row:
    """One goal at one size: seconds, of CPU or of the clock, of the store and of its limit in each round."""

    where: str
    method: str
    kind: str
    size: int
    ours: list[float] = attrs.Factory(list)
    limit: list[float] = attrs.Factory(list)
    hashing: list[float] = attrs.Factory(list)
    """The same of sockets that hash, too: what the checksum costs, told apart."""

    @property
    def ratio(self) -> float:
        return median(limit / ours for ours, limit in zip(self.ours, self.limit, strict=True))

    @property
    def apart(self) -> float:
        """The ratio to sockets that hash, too: the checksum's cost taken apart."""
        return median(limit / ours for ours, limit in zip(self.ours, self.hashing, strict=True))

    @property
    def goal(self) -> float:
        return GOALS[self.method, self.kind]

    @property
    def judged(self) -> bool:
        """On a real server the rate is the server's; goals are set for chunks of 4 MiB and more."""
        return self.where == "stub" and self.size >= JUDGED_FROM

    def line(self, total: int) -> str:
        ours, limit = median(self.ours), median(self.limit)
        if self.kind == "CPU":
            figures = f"{ours * GIB / total:5.2f} beside {limit * GIB / total:5.2f} s/GiB"
        else:
            figures = f"{total / ours / 1e6:5.0f} beside {total / limit / 1e6:5.0f} MB/s"
        figures += f" (hashing: {self.apart:.2f})"
        # Sockets that check nothing are the harder limit; what is short of those only is met with the checksum apart.
        verdict = "met" if self.ratio >= self.goal else "apart" if self.apart >= self.goal else "short"
        verdict = verdict if self.judged else "told"
        name = f"s3 {self.where}, {self.method} {self.kind}, {self.size // MIB} MiB"
        floor = self.goal * FLOOR
        return f"{name:<34} {self.ratio:6.2f}   goal {self.goal:.2f} {verdict:<6} floor {floor:.2f}   {figures}"


def measure(endpoint: str, where: str, sizes: Sequence[int], total: int, rounds: int) -> Iterator[Row]:
    """The rows of one server, whose bucket exists."""
    rest = Rest(f"{endpoint}/{BUCKET}", "us-east-1", Secrets(ACCESS, SECRET))
    config = BucketConfig(
        bucket=BUCKET, prefix=where, endpoint=endpoint, credentials=Credentials("BENCH"), workers=CONCURRENCY
    )
    for size in sizes:
        hub = Driver(BucketStore(config, make_context("pool")), slots=total // size, slot_bytes=size, patience=300.0)
        hub.region.view[:] = bytes(total)  # zeros, which is what the stub answers; and touched
        hub.attach()
        rows = {key: Row(where, *key, size) for key in GOALS}
        try:
            for turn in range(rounds + 1):
                keys = [make_key(f"{where} {size} {turn} {number}") for number in range(total // size)]
                names = [f"{where}/raw/{size}/{turn}/{number}" for number in range(total // size)]
                again = [f"{name}/again" for name in names]
                for method, op in (("PUT", Op.SAVE), ("GET", Op.LOAD)):
                    limit = raw.moved(rest, method, names, hub.region.view, size, CONCURRENCY)
                    ours = through(hub, op, keys)
                    hashing = raw.moved(rest, method, again, hub.region.view, size, CONCURRENCY, hashing=True)
                    if turn:  # the first opens connections and allocates
                        for kind, index in (("rate", 0), ("CPU", 1)):
                            rows[method, kind].ours.append(ours[index])
                            rows[method, kind].limit.append(limit[index])
                            rows[method, kind].hashing.append(hashing[index])
        finally:
            hub.close()
        yield from rows.values()


def through(hub: Driver, op: Op, keys: list[Key], batch: int = 8) -> tuple[float, float]:
    """Seconds, and CPU seconds, of all chunks, in batches as a hub sends them."""
    start, before = perf_counter(), process_time()
    sent = [
        hub.submit(op, keys[at : at + batch], range(at, min(at + batch, len(keys))))
        for at in range(0, len(keys), batch)
    ]
    outcomes = {outcome for number in sent for outcome in hub.wait(number).outcomes}
    took = perf_counter() - start, process_time() - before
    if outcomes != {Outcome.DONE}:
        raise SystemExit(f"stores_s3: {op.name} ended with {outcomes}; the figures would mean nothing")
    return took


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--total", type=int, default=128, help="MiB of chunks in a round")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 4, 16, 32], help="MiB of a chunk")
    parser.add_argument("--no-server", action="store_true", help="the stub only")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--strict", action="store_true", help="exit with 3 if a goal is short")
    args = parser.parse_args()
    os.environ |= {"BENCH_ACCESS_KEY_ID": ACCESS, "BENCH_SECRET_ACCESS_KEY": SECRET}
    sizes, total = [size * MIB for size in args.sizes], args.total * MIB
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as servers:
        try:
            endpoint = servers.enter_context(raw.stub(Path(folder)))
            rows += told(measure(endpoint, "stub", sizes, total, args.rounds), total)
        except raw.NoStub as why:
            print(f"s3 stub: no rows, {why}")
        if not args.no_server:
            home = Path(folder, "server")
            home.mkdir()
            try:
                server = servers.enter_context(running(home))
            except NoServer as why:
                print(f"s3 server: no rows, {why}")
            else:
                server.make_bucket(BUCKET)
                rows += told(measure(server.endpoint, "server", sizes, total, min(args.rounds, 2)), total)
    if args.json:
        args.json.write_text(json.dumps([attrs.asdict(row) | {"ratio": row.ratio, "goal": row.goal} for row in rows]))
    judged = [row for row in rows if row.judged]
    if any(row.ratio < row.goal * FLOOR for row in judged):
        return 1
    return 3 if args.strict and any(max(row.ratio, row.apart) < row.goal for row in judged) else 0


def told(rows: Iterator[Row], total: int) -> list[Row]:
    """The rows, each printed when it is there."""
    found = []
    for row in rows:
        print(row.line(total), flush=True)
        found.append(row)
    return found


if __name__ == "__main__":
    sys.exit(main())
