"""Pages and bandwidth in the words of SGLang's own storage metrics (`--enable-metrics`)."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

MOST = 4096
"""Calls that are remembered until the engine asks; it asks at every step."""


class Meter:
    """Thread-safe.  Costs nothing until it is enabled."""

    def __init__(self) -> None:
        self._page_bytes = 0
        self._lock = threading.Lock()
        self._calls: list[tuple[bool, int, float]] = []

    def enable(self, page_bytes: int) -> None:
        """Begin to measure."""
        self._page_bytes = page_bytes

    @contextmanager
    def prefetch(self, pages: int) -> Iterator[None]:
        """Around a get of so many pages."""
        with self._timed(False, pages):
            yield

    @contextmanager
    def backup(self, pages: int) -> Iterator[None]:
        """Around a set of so many pages."""
        with self._timed(True, pages):
            yield

    @contextmanager
    def _timed(self, backup: bool, pages: int) -> Iterator[None]:
        start = time.perf_counter()
        yield
        if self._page_bytes and pages:
            with self._lock:
                if len(self._calls) < MOST:
                    self._calls.append((backup, pages, time.perf_counter() - start))

    def take(self) -> Any:
        """What happened since the last call as SGLang's `StorageMetrics`, bandwidth in GiB/s; None when nothing did.

        Called at every step of the scheduler: without news it looks at an empty list and no more.
        """
        if not self._calls:
            return None
        from sglang.srt.observability.metrics_collector import StorageMetrics

        with self._lock:
            calls, self._calls = self._calls, []
        told = StorageMetrics()
        for backup, pages, seconds in calls:
            (told.backup_pgs if backup else told.prefetch_pgs).append(pages)
            speed = pages * self._page_bytes / 2**30 / max(seconds, 1e-9)
            (told.backup_bandwidth if backup else told.prefetch_bandwidth).append(speed)
        return told
