"""From samples to ratios, goals and doubts.

Every ratio is taken within a round, where both rows moved the same bytes within the same seconds; its figure is the
median over the rounds.  Where a goal is about several sizes, the size that is furthest from it speaks for all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

import attrs

from wire_rows.cases import SCATTER, SIZES

OURS, DEFAULT, SOCKETS, CHECKED = "kvhub-ucx", "kvhub-ucx default", "plain sockets", "plain sockets checked"
MEMCPY, PUT, NIXL = "memcpy cold", "perftest put", ("NIXL WRITE", "NIXL READ")
SCATTER_LIMIT = 1.5
"""Rounds whose ratios differ by more than this say little."""

Samples = Mapping[tuple[str, str, str], Sequence[float]]
"""(medium, row, case): a figure per round."""


@attrs.frozen
class Goal:
    """A figure, what it should be, and the floor below which something is broken rather than slow."""

    name: str
    rounds: tuple[float, ...]
    goal: float
    floor: float | None = None
    at_most: bool = False

    @property
    def judged(self) -> bool:
        return bool(self.rounds)

    @property
    def value(self) -> float:
        return median(self.rounds)

    def reaches(self, limit: float) -> bool:
        return self.value <= limit if self.at_most else self.value >= limit

    @property
    def met(self) -> bool:
        return self.reaches(self.goal)

    @property
    def above_floor(self) -> bool:
        return self.floor is None or not self.judged or self.reaches(self.floor)

    @property
    def doubtful(self) -> bool:
        return len(self.rounds) > 1 and max(self.rounds) > SCATTER_LIMIT * min(self.rounds)

    def line(self) -> str:
        if not self.judged:
            return f"  {self.name:<70}   not judged: no figures for it in this run"
        sign = "<=" if self.at_most else ">="
        floor = f"floor {self.floor:<5g}" if self.floor is not None else " " * 11
        verdict = "met  " if self.met else "SHORT"
        words = f"  {self.name:<70} {self.value:7.3f}   goal {sign} {self.goal:<5g} {verdict} {floor}"
        if not self.above_floor:
            words += " BELOW THE FLOOR"
        if self.doubtful:
            words += f" DOUBT {min(self.rounds):.2f}-{max(self.rounds):.2f}"
        return words.rstrip()


class _Ratios:
    def __init__(self, samples: Samples) -> None:
        self.samples = samples

    def of(self, medium: str, case: str, row: str, others: Sequence[str], other_case: str = "") -> tuple[float, ...]:
        """Per round: `row` over the best of `others`; empty where one has no figures."""
        mine = self.samples.get((medium, row, case), ())
        theirs = [found for other in others if (found := self.samples.get((medium, other, other_case or case)))]
        if not mine or not theirs:
            return ()
        best = [max(each) for each in zip(*theirs, strict=True)]
        return tuple(a / b for a, b in zip(mine, best, strict=True))

    def worst(self, medium: str, least: str, others: Sequence[str]) -> tuple[str, tuple[float, ...]]:
        """The size from `least` on whose median ratio is the lowest, and its ratios."""
        names = list(SIZES)
        found = {case: self.of(medium, case, OURS, others) for case in names[names.index(least) :]}
        known = {case: ratios for case, ratios in found.items() if ratios}
        if not known:
            return "", ()
        case = min(known, key=lambda name: median(known[name]))
        return case, known[case]


_SIZED = (
    # medium, from this size on, beside whom, in words, goal, floor
    ("tcp", "1MiB", (PUT,), "ucx_perftest put", 0.85, 0.6),
    ("veth", "1MiB", (PUT,), "ucx_perftest put", 0.8, 0.55),
    ("shm", "4MiB", (MEMCPY,), "cold memcpy", 0.85, 0.6),
    ("cma", "4MiB", (MEMCPY,), "cold memcpy", 0.5, 0.35),
    ("tcp", "1MiB", (DEFAULT,), "itself with UCX's default settings", 2.0, 1.5),
    ("shm", "1MiB", (DEFAULT,), "itself with UCX's default settings", 2.0, 1.5),
    ("tcp", "1MiB", NIXL, "the better of NIXL WRITE and READ", 1.0, None),
    ("shm", "1MiB", NIXL, "the better of NIXL WRITE and READ", 1.0, None),
    ("cma", "1MiB", NIXL, "the better of NIXL WRITE and READ", 1.0, None),
    ("veth", "1MiB", NIXL, "the better of NIXL WRITE and READ", 1.0, None),
    ("tcp", "1MiB", (SOCKETS,), SOCKETS, 1.0, None),
    ("veth", "1MiB", (SOCKETS,), SOCKETS, 1.0, None),
    ("tcp", "1MiB", (CHECKED,), CHECKED, 1.0, None),
    ("veth", "1MiB", (CHECKED,), CHECKED, 1.0, None),
)


def goals(samples: Samples, idle: Mapping[str, float]) -> list[Goal]:
    """Every goal about the media that were measured; those that the rows at hand cannot answer have no rounds."""
    ratios, found = _Ratios(samples), []
    measured = {medium for medium, row, _ in samples if row == OURS}

    def add(name: str, rounds: tuple[float, ...], goal: float, floor: float | None) -> None:
        if name.split(",")[0] in measured:
            found.append(Goal(name, rounds, goal, floor))

    for medium, least, others, words, goal, floor in _SIZED:
        case, rounds = ratios.worst(medium, least, others)
        which = f" (least: {case})" if case else ""
        add(f"{medium}, {least} and more{which} / {words}", rounds, goal, floor)
    add("tcp, 64KiB / ucx_perftest put", ratios.of("tcp", "64KiB", OURS, (PUT,)), 0.45, 0.3)
    own = ratios.of("tcp", SCATTER, OURS, (OURS,), "16MiB")
    add(f"tcp, {SCATTER} scattered / own contiguous 16MiB", own, 0.75, 0.5)
    copied = ratios.of("shm", SCATTER, OURS, (MEMCPY,))
    add(f"shm, {SCATTER} scattered / cold memcpy of the same pieces", copied, 0.6, 0.45)
    for medium, share in idle.items():
        found.append(Goal(f"{medium}, % of a core of a paired idle hub", (share * 100,), 1.0, 5.0, at_most=True))
    return found
