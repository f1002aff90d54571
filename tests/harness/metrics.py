"""Prometheus text as numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

_LINE = re.compile(r"^([A-Za-z_:][A-Za-z0-9_:]*)(?:\{(.*)\})?\s+(\S+)")
_LABEL = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"')


class Metrics:
    """A snapshot of an engine's metrics; `after - before` is what happened in between."""

    def __init__(self, samples: Mapping[tuple[str, frozenset[tuple[str, str]]], float]) -> None:
        self._samples = dict(samples)

    @classmethod
    def parse(cls, text: str) -> Metrics:
        samples = {}
        for line in text.splitlines():
            if not line.startswith("#") and (match := _LINE.match(line)):
                samples[match[1], frozenset(_LABEL.findall(match[2] or ""))] = float(match[3])
        return cls(samples)

    def of(self, name: str) -> Iterator[tuple[dict[str, str], float]]:
        """Labels and value of every sample of `name`."""
        for (which, labels), value in self._samples.items():
            if which == name:
                yield dict(labels), value

    def total(self, name: str, **labels: str) -> float:
        """Sum of `name` over the samples that carry all of `labels`; 0 when there is none."""
        return sum(value for has, value in self.of(name) if labels.items() <= has.items())

    def by(self, name: str, label: str) -> dict[str, float]:
        """Sums of `name` by the values of one label."""
        sums: dict[str, float] = {}
        for labels, value in self.of(name):
            sums[labels.get(label, "")] = sums.get(labels.get(label, ""), 0.0) + value
        return sums

    def names(self) -> set[str]:
        return {name for name, _ in self._samples}

    def __sub__(self, before: Metrics) -> Metrics:
        return Metrics({key: value - before._samples.get(key, 0.0) for key, value in self._samples.items()})
