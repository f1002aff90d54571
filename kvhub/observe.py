"""Reports: counters that are cheap to move from any thread, and events for observers on a thread of their own."""

from __future__ import annotations

import abc
import queue
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import structlog


class Observer(abc.ABC):
    """Someone who wants to know.  Called on the report thread; what it raises is logged and goes no further."""

    @abc.abstractmethod
    def on_event(self, event: str, fields: Mapping[str, Any]) -> None:
        """One life event as `noun.verb` (`member.retired`) with bound names; never one per block."""


class LogObserver(Observer):
    """Writes events with structlog, the way that the process has configured it."""

    def __init__(self) -> None:
        self._log = structlog.get_logger("kvhub")

    def on_event(self, event: str, fields: Mapping[str, Any]) -> None:
        level = str(fields.get("level", "info"))
        getattr(self._log, level)(event, **{name: value for name, value in fields.items() if name != "level"})


class Reports:
    """Takes counts and events off the engine's thread.

    Counters are keyed by (name, member, reason): few distinct values, never a key, a prompt or a tenant.  The event
    queue is bounded; what does not fit is counted as `events_dropped`.
    """

    def __init__(self, observers: Iterable[Observer] = (), *, most_queued: int = 1024) -> None:
        self._observers = tuple(observers)
        self._counts: Counter[tuple[str, str, str]] = Counter()
        self._lock = threading.Lock()
        self._over = False
        self._queue: queue.Queue[tuple[str, dict[str, Any]] | None] = queue.Queue(most_queued)
        self._thread = threading.Thread(target=self._run, name="kvhub-reports", daemon=True)
        self._thread.start()

    def count(self, name: str, amount: int = 1, *, member: str = "", reason: str = "") -> None:
        """Add to a counter; well under a microsecond, from any thread."""
        with self._lock:
            self._counts[name, member, reason] += amount

    def event(self, event: str, **fields: Any) -> None:
        """Tell the observers; never blocks."""
        try:
            self._queue.put_nowait((event, fields))
        except queue.Full:
            self.count("events_dropped")

    def counts(self) -> dict[tuple[str, str, str], int]:
        """A copy of all counters since the start."""
        with self._lock:
            return dict(self._counts)

    def total(self, name: str, *, member: str | None = None, reason: str | None = None) -> int:
        """Sum of one counter over the labels that are not given."""
        return sum(
            amount
            for (which, whose, why), amount in self.counts().items()
            if which == name and member in (None, whose) and reason in (None, why)
        )

    def close(self) -> None:
        """Deliver what is queued and end the thread; idempotent."""
        if self._thread.is_alive():
            try:
                self._queue.put(None, timeout=1.0)
            except queue.Full:
                # An observer hangs; nobody waits for it for ever.
                self._over = True
            self._thread.join(2.0)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None and not self._over:
            event, fields = item
            for observer in self._observers:
                try:
                    observer.on_event(event, fields)
                except BaseException:  # also what is no Exception: this thread has nobody to hand it to
                    self.count("observer_errors")
