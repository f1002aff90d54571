"""Pump: the hub's one thread; it makes calls that were put off and turns what brings results back."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from kvhub.observe import Reports

T = TypeVar("T")
LONGEST_REST = 1.0


class Pump(threading.Thread):
    """`turn` is called whenever there is news, and at the time that its last call returned.

    Calls are made in the order in which they were put off, each before the next turn.
    """

    def __init__(self, turn: Callable[[], float], reports: Reports) -> None:
        super().__init__(name="kvhub-pump", daemon=True)
        self._turn = turn
        self._reports = reports
        self._calls: deque[Callable[[], None]] = deque()
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._timing = threading.Lock()
        self._news = threading.Event()
        self._over = False

    def wake(self) -> None:
        """There is news; from any thread."""
        self._news.set()

    def call(self, *calls: Callable[[], None]) -> None:
        """Make these calls soon; from any thread."""
        self._calls.extend(calls)
        self._news.set()

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Make this call after a while; from any thread."""
        with self._timing:
            heapq.heappush(self._later, (time.monotonic() + seconds, next(self._numbers), call))
        self._news.set()

    def end(self, seconds: float) -> None:
        """Stop after the call under way and wait for that; what was put off is dropped."""
        self._over = True
        self._news.set()
        if self.is_alive():
            self.join(seconds)

    def run(self) -> None:
        while not self._over:
            self._news.clear()
            due = self._due()
            while self._calls:
                self._guarded(self._calls.popleft())
            turned = self._guarded(self._turn)
            until = min(time.monotonic() + 0.01 if turned is None else turned, due)
            if not self._calls:
                self._news.wait(min(max(until - time.monotonic(), 0.0), LONGEST_REST))

    def _due(self) -> float:
        """Take over what is due; when the next is."""
        with self._timing:
            while self._later and self._later[0][0] <= time.monotonic():
                self._calls.append(heapq.heappop(self._later)[2])
            return self._later[0][0] if self._later else float("inf")

    def _guarded(self, call: Callable[[], T]) -> T | None:
        """Without its pump a hub would answer nobody any more, so nothing ends it."""
        try:
            return call()
        except BaseException as error:
            self._reports.count("pump_errors", reason=type(error).__name__)
            self._reports.event("pump.failed", level="error", error=repr(error))
            return None
