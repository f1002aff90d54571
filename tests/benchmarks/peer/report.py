"""From samples to the table, the ratios and the goals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median

import attrs
from peer.rows import KVHUB_HOST, KVHUB_POOL, OWN, PEER_DRAM, PEER_FILES, PLAIN, Sample

WARM_LIMIT = 1.5
COLD_LIMIT = 1.03
QUEUED_LIMIT = 0.02
"""Below the smallest difference that a goal is about."""


@attrs.frozen
class Round:
    """One prompt, as one row answered it."""

    cold: Sample
    warm: tuple[Sample, ...]

    @property
    def warm_seconds(self) -> float:
        return median(sample.seconds for sample in self.warm)


Results = Mapping[str, Sequence[Round]]


@attrs.frozen
class Goal:
    """A figure and what it should be."""

    name: str
    value: float
    limit: float
    at_most: bool

    @property
    def met(self) -> bool:
        return self.value <= self.limit if self.at_most else self.value >= self.limit

    def line(self) -> str:
        sign = "<=" if self.at_most else ">="
        return f"  {self.name:<60} {self.value:7.3f}   goal {sign} {self.limit:<5g} {'met' if self.met else 'short'}"


def ratio(results: Results, row: str, other: str, seconds: Callable[[Round], float]) -> float:
    """Median over the rounds of row / other: both measured the same prompt within the same seconds."""
    return median(seconds(mine) / seconds(theirs) for mine, theirs in zip(results[row], results[other], strict=True))


def rate(rounds: Sequence[Round], pick: Callable[[Round], Sequence[Sample]]) -> float | None:
    """Median GB/s of the samples that moved anything."""
    found = [sample.moved.rate for each in rounds for sample in pick(each)]
    known = [value for value in found if value is not None]
    return median(known) if known else None


def cold_samples(each: Round) -> Sequence[Sample]:
    return (each.cold,)


def warm_samples(each: Round) -> Sequence[Sample]:
    return each.warm


def cold_seconds(each: Round) -> float:
    return each.cold.seconds


def warm_seconds(each: Round) -> float:
    return each.warm_seconds


def table(results: Results) -> list[str]:
    """Medians; in brackets the least and the most of all rounds."""
    head = f"{'':<20}{'cold TTFT s':>22}{'/none':>7}{'warm TTFT ms':>24}{'/own':>7}"
    lines = [head + f"{'store GB/s':>12}{'retrieve GB/s':>15}{'queued':>8}"]
    for name, rounds in results.items():
        cold = _spread([each.cold.seconds for each in rounds], 1, 2)
        warm = _spread([sample.seconds for each in rounds for sample in each.warm], 1000, 1)
        over_none = _number(ratio(results, name, PLAIN, cold_seconds) if PLAIN in results else None, 3)
        has_warm = bool(rounds[0].warm)
        over_own = _number(ratio(results, name, OWN, warm_seconds) if OWN in results and has_warm else None, 2)
        stored, loaded = rate(rounds, cold_samples), rate(rounds, warm_samples)
        rates = f"{_number(stored, 2):>12}{_number(loaded, 2):>15}"
        queued = f"{queued_share(rounds) * 100:.1f} %"
        lines.append(f"{name:<20}{cold:>22}{over_none:>7}{warm:>24}{over_own:>7}{rates}{queued:>8}")
    return lines


def queued_share(rounds: Sequence[Round]) -> float:
    """Median part of a cold request that the engine's thread spent waiting for a core."""
    return median(each.cold.queued / each.cold.seconds for each in rounds)


def doubt(results: Results) -> str | None:
    """Why the ratios of this run should not be believed; None on a machine that had a core to spare."""
    share = queued_share(results[PLAIN])
    if share <= QUEUED_LIMIT:
        return None
    return (
        f"the engine without any connector spent {share * 100:.0f} % of its cold time waiting for a core, more than "
        f"{QUEUED_LIMIT * 100:.0f} %: other work was measured too; run this again on an idle machine"
    )


def goals(results: Results) -> list[Goal]:
    """Every goal that the rows at hand can answer."""
    found = []
    for row in (KVHUB_HOST, KVHUB_POOL):
        if row in results and PLAIN in results:
            value = ratio(results, row, PLAIN, cold_seconds)
            found.append(Goal(f"{row}: cold / no connector cold", value, COLD_LIMIT, True))
    if KVHUB_HOST in results and OWN in results:
        value = ratio(results, KVHUB_HOST, OWN, warm_seconds)
        found.append(Goal(f"{KVHUB_HOST}: warm / {OWN} warm", value, WARM_LIMIT, True))
    for row, peer in ((KVHUB_HOST, PEER_DRAM), (KVHUB_POOL, PEER_FILES)):
        if row not in results or peer not in results:
            continue
        found.append(Goal(f"{row}: cold / {peer} cold", ratio(results, row, peer, cold_seconds), 1, True))
        found.append(Goal(f"{row}: warm / {peer} warm", ratio(results, row, peer, warm_seconds), 1, True))
        for what, pick in (("store", cold_samples), ("retrieve", warm_samples)):
            mine, theirs = rate(results[row], pick), rate(results[peer], pick)
            if mine and theirs:
                found.append(Goal(f"{row}: {what} rate / {peer} {what} rate", mine / theirs, 1, False))
    return found


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _spread(values: Sequence[float], scale: float, digits: int) -> str:
    if not values:
        return "-"
    low, middle, high = (f"{value * scale:.{digits}f}" for value in (min(values), median(values), max(values)))
    return f"{middle} ({low}-{high})"
