"""The hub's counters beside SGLang's own on its /metrics (`--enable-metrics`).

SGLang's storage metrics have room for pages and bandwidth only.  Its processes share Prometheus' directory for several
processes (`PROMETHEUS_MULTIPROC_DIR`), and its /metrics sums up whatever any of them counts there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from kvhub.exported import EXPORTED

EVERY = 0.5
"""Seconds between two looks at the counters; the engine asks at every step."""
Counts = Mapping[tuple[str, str, str], int]


@cache
def _families() -> dict[str, Any]:
    """One counter per exported one.  A process can register a name once, and a backend may be attached again."""
    from prometheus_client import Counter  # reads the directory's name as it is imported: SGLang has set it by now

    return {name: Counter(metric, text, labels) for name, (metric, text, labels) in EXPORTED.items()}


class Export:
    """Adds what a hub's counters gained to the process's counters.  Called by one thread."""

    def __init__(self, counts: Callable[[], Counts]) -> None:
        self._counts, self._families = counts, _families()
        self._seen: Counts = {}
        self._next = 0.0

    def step(self) -> None:
        """Look again, if it is time."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + EVERY
            self.flush()

    def flush(self) -> None:
        """Look now."""
        counts = self._counts()
        for (name, *labels), amount in counts.items():
            gained = amount - self._seen.get((name, labels[0], labels[1]), 0)
            if gained and name in self._families:
                family, values = self._families[name], labels[: len(EXPORTED[name][2])]
                (family.labels(*values) if values else family).inc(gained)
        self._seen = counts
