"""`Pace`: how fast housekeeping goes, how it tells how far it is, and how it is told to stop."""

from __future__ import annotations

import sys
import threading
import time

SHOW_SECONDS = 0.5


class Stopped(Exception):
    """Somebody asked to stop; what was begun has been ended cleanly."""


class Pace:
    """At most `rate` objects and `bandwidth` bytes a second (0: as fast as it goes).  Used from several threads."""

    def __init__(self, rate: float = 0.0, bandwidth: float = 0.0, *, show: bool = False) -> None:
        self.rate = rate
        self._per_second = {"objects": rate, "bytes": bandwidth}
        self._lock = threading.Lock()
        self._free_at = {"objects": 0.0, "bytes": 0.0}
        self._stop = threading.Event()
        self._show = show
        self._shown = 0.0

    def stop(self) -> None:
        """From any thread or signal handler."""
        self._stop.set()

    @property
    def stopped(self) -> bool:
        return self._stop.is_set()

    def check(self) -> None:
        """Raises Stopped."""
        if self._stop.is_set():
            raise Stopped

    def take(self, objects: int = 0, size: int = 0) -> None:
        """Wait until so much more may be done.  Raises Stopped."""
        self.check()
        wait = max(self._after("objects", objects), self._after("bytes", size))
        if wait > 0:
            self.sleep(wait)

    def sleep(self, seconds: float) -> None:
        """Raises Stopped, at once when told so."""
        if self._stop.wait(seconds):
            raise Stopped

    def show(self, text: str) -> None:
        """One line of progress, for people who look."""
        if self._show and (text == "" or time.monotonic() - self._shown > SHOW_SECONDS):
            self._shown = time.monotonic()
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)

    def _after(self, kind: str, count: int) -> float:
        """Seconds until `count` more are due; a pause is not made up for by a burst of more than a second's worth."""
        rate = self._per_second[kind]
        if not rate or not count:
            return 0.0
        with self._lock:
            now = time.monotonic()
            start = max(self._free_at[kind], now - 1.0)
            self._free_at[kind] = start + count / rate
            return self._free_at[kind] - now
