"""The wire: kvhub's transports beside ucx_perftest, NIXL, plain sockets and memcpy, on four media, in one run.

    python tests/benchmarks/wire.py [--rounds 5] [--media tcp shm cma veth] [--sizes 1MiB ...] [--quick] [--floor]

Each row has processes of its own, which take turns: in every round each case is measured by all rows, in a new order,
before the next case begins.  Ratios are medians over the rounds.  The first pull of each case is compared byte for
byte; wrong bytes, or a kvhub-ucx that fails, end with 1.  Goals only speak; with --floor the run ends with 3 when a
figure is below the floor that only a broken wire is below.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from wire_rows import media
from wire_rows.cases import ARENA, ARENA_BYTES, MIB, NAMES, SCATTER, SINGLE, SMALL_ARENA, Case
from wire_rows.goals import CHECKED, DEFAULT, OURS, SOCKETS, Goal, goals
from wire_rows.load import Watch, wait_for_quiet
from wire_rows.media import LARGE_SEGMENTS, UCX_DEFAULTS, Medium
from wire_rows.netns import Namespaces, NoNamespaces
from wire_rows.peers import Nixl, Sockets
from wire_rows.process import RowFailed
from wire_rows.rows import Amount, Memory, Ours, Perftest, Row, WrongBytes
from wire_rows.table import notes, table

Figures = dict[tuple[str, str, str], list[float]]
MEDIA = ("tcp", "shm", "cma", "veth")
IDLE_SECONDS = 3.0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", nargs="+", choices=NAMES, default=list(NAMES), metavar="SIZE", help=", ".join(NAMES))
    parser.add_argument(
        "--media", nargs="+", choices=("tcp", "shm", "cma", "veth"), default=["tcp", "shm", "cma", "veth"]
    )
    parser.add_argument("--quick", action="store_true", help="one pull per figure: to try it, not to believe it")
    parser.add_argument("--nixl-python", type=Path, help="python of the environment that nixl_env.sh built")
    parser.add_argument("--only", nargs="+", metavar="WORD", help="only rows with one of these words in their name")
    parser.add_argument("--quiet", type=float, default=20, help="seconds that a round waits for others to rest")
    parser.add_argument("--json", type=Path, help="write every figure there")
    parser.add_argument("--floor", action="store_true", help="exit with 3 if a figure is below its floor")
    return parser.parse_args()


def say(text: str) -> None:
    print(text, flush=True)


def wanted(medium: Medium, nixl_python: Path | None) -> dict[str, Callable[[], Row]]:
    """The rows of a medium, by name, in the order of the table."""
    found: dict[str, Callable[[], Row]] = {}

    def ours(name: str, package: str = "kvhub_ucx", **more: Any) -> None:
        found[name] = partial(Ours, medium, package, name, **more)

    ours(OURS, mapped=medium.name == "shm")
    if medium.name == "shm":
        ours("kvhub-ucx checked", mapped=True, checksum="always")
        ours("kvhub-ucx unmapped", require="posix")
    if medium.name in ("tcp", "shm"):
        ours(DEFAULT, environment=UCX_DEFAULTS, require="")
    if medium.network:
        if importlib.util.find_spec("kvhub_tcp"):
            ours("kvhub-tcp", "kvhub_tcp")
        found[SOCKETS] = partial(Sockets, medium)
        found[CHECKED] = partial(Sockets, medium, checked=True)
    if nixl_python is not None:
        for operation in ("WRITE", "READ"):
            found[f"NIXL {operation}"] = partial(Nixl, medium, nixl_python, operation)
    for label, test in (("perftest put", "ucp_put_bw"), ("perftest tag", "tag_bw")):
        found[label] = partial(Perftest, medium, test, label)
    if medium.network:
        label = "perftest put 256K"
        found[label] = partial(Perftest, medium, "ucp_put_bw", label, LARGE_SEGMENTS)
    found[Memory.name] = Memory
    return found


class Bench:
    """What was measured, what was left out and why."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.figures: Figures = {}
        self.idle: dict[str, float] = {}
        self.problems: list[str] = []
        self.amount = Amount(64 * MIB, 20) if args.quick else Amount(256 * MIB, 100)
        self.busy = 0.0

    def _lose(self, medium: Medium, name: str, why: Exception) -> None:
        """A competitor that cannot do it is left out; our own may not fail."""
        say(f"  {name} is left out: {why}")
        if name == OURS or (isinstance(why, WrongBytes) and name.startswith("kvhub")):
            self.problems.append(f"{medium.name}, {name}: {why}")
        for key in [key for key in self.figures if key[:2] == (medium.name, name)]:
            del self.figures[key]

    def run(self, medium: Medium) -> None:
        """All rounds of a medium, then its table."""
        builders = wanted(medium, self.args.nixl_python)
        if self.args.only:
            builders = {name: make for name, make in builders.items() if any(word in name for word in self.args.only)}
        rows: dict[str, Row] = {}
        with ExitStack() as undo:
            for name, make in builders.items():
                try:
                    rows[name] = make()
                    undo.callback(rows[name].close)
                    if name == OURS and medium.name in ("tcp", "shm"):
                        self._idle(medium, rows[name])
                except RowFailed as why:
                    self._lose(medium, name, why)
            for number in range(self.args.rounds):
                wait_for_quiet(0 if self.args.quick else self.args.quiet)
                watch = Watch()
                self._round(medium, rows, number)
                others = watch.others()
                self.busy = max(self.busy, others)
                turn = f"round {number + 1} of {self.args.rounds}"
                say(f"  {medium.name}: {turn}, {watch.seconds:.0f} s, others used {others:.1f} cores")
            for row in rows.values():
                for option in getattr(row, "missing", ()):
                    say(f"  {row.name} has no option {option!r}: measured without it")
        for line in table(medium.name, medium.title, self.figures, list(builders), self.args.sizes):
            say(line)

    def _round(self, medium: Medium, rows: dict[str, Row], number: int) -> None:
        for size in self.args.sizes:
            case, order = Case(size), list(rows)
            random.Random(f"{number} {size}").shuffle(order)
            for name in order:
                try:
                    figure = rows[name].measure(case, self.amount, first=number == 0)
                except RowFailed as why:
                    rows.pop(name).close()
                    self._lose(medium, name, why)
                    continue
                if figure is not None:
                    self.figures.setdefault((medium.name, name, size), []).append(figure)

    def _idle(self, medium: Medium, row: Row) -> None:
        """Before anything else: one transport at each end, paired by a pull, then left alone."""
        assert isinstance(row, Ours)
        row.measure(Case(SINGLE), Amount(0, 1), first=False)
        rest, watched = (0.3, 0.5) if self.args.quick else (1.0, IDLE_SECONDS)
        time.sleep(rest)
        self.idle[medium.name] = row.idle(watched)


def tell(bench: Bench) -> list[Goal]:
    found = goals(bench.figures, bench.idle)
    say(notes(int(os.environ[ARENA])))
    say("goals")
    for goal in found:
        say(goal.line())
    if doubtful := sum(goal.doubtful for goal in found):
        say(
            f"DOUBT {doubtful} of {len(found)} ratios differ by more than 1.5 times between rounds; "
            f"others used up to {bench.busy:.1f} cores: run this again on an idle machine"
        )
    return found


@contextmanager
def ending() -> Iterator[None]:
    """A SIGTERM unwinds like an interrupt, so that processes and namespaces go whatever ends this."""

    def leave(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGHUP, leave)
    yield


def main() -> int:
    args = arguments()
    if len(os.sched_getaffinity(0) & {0, 1}) < 2:
        say("wire: needs cores 0 and 1, one for each end of the wire; found fewer")
        return 2
    if args.nixl_python and not args.nixl_python.is_file():
        say(f"  NIXL is left out: no python at {args.nixl_python}; build it with tests/benchmarks/nixl_env.sh")
        args.nixl_python = None
    small = args.quick and SCATTER not in args.sizes
    os.environ[ARENA] = str(SMALL_ARENA if small else ARENA_BYTES // MIB)
    bench = Bench(args)
    with ending():
        for name in args.media:
            if name != "veth":
                bench.run(getattr(media, name)())
                continue
            try:
                with Namespaces() as spaces:
                    bench.run(media.veth(spaces))
            except NoNamespaces as why:
                say(f"  veth is left out: {why}")
    found = tell(bench)
    if args.json:
        args.json.write_text(json.dumps({" | ".join(key): values for key, values in bench.figures.items()}))
    for problem in bench.problems:
        say(f"PROBLEM {problem}")
    if bench.problems:
        return 1
    return 3 if args.floor and not all(goal.above_floor for goal in found) else 0


if __name__ == "__main__":
    sys.exit(main())
