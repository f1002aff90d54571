"""Counters and events: cheap, bounded, and safe from observers."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping
from typing import Any

import pytest
import structlog

from kvhub.observe import LogObserver, Observer, Reports


class Notes(Observer):
    def __init__(self, error: BaseException | None = None) -> None:
        self.events: list[tuple[str, Mapping[str, Any]]] = []
        self.threads: set[str] = set()
        self.error = error

    def on_event(self, event: str, fields: Mapping[str, Any]) -> None:
        self.events.append((event, fields))
        self.threads.add(threading.current_thread().name)
        if self.error is not None:
            raise self.error


class Stuck(Observer):
    def __init__(self) -> None:
        self.go = threading.Event()

    def on_event(self, event: str, fields: Mapping[str, Any]) -> None:
        self.go.wait(30.0)


def test_events_come_in_order_on_a_thread_of_their_own() -> None:
    notes = Notes()
    reports = Reports([notes])
    for number in range(5):
        reports.event("test.told", number=number)
    reports.close()
    assert notes.events == [("test.told", {"number": number}) for number in range(5)]
    assert notes.threads == {"kvhub-reports"}


def test_close_ends_the_thread_and_may_be_called_again() -> None:
    before = threading.active_count()
    reports = Reports()
    reports.close()
    reports.close()
    assert threading.active_count() == before


@pytest.mark.parametrize("error", [ValueError(), asyncio.CancelledError(), SystemExit(1), MemoryError()])
def test_C18_what_an_observer_raises_is_counted_and_others_are_told(error: BaseException) -> None:
    notes = Notes()
    reports = Reports([Notes(error), notes])
    reports.event("a.b")
    reports.event("c.d")
    reports.close()
    assert [event for event, _ in notes.events] == ["a.b", "c.d"]
    assert reports.total("observer_errors") == 2


def test_B18_an_observer_that_hangs_blocks_nobody() -> None:
    stuck = Stuck()
    reports = Reports([stuck], most_queued=8)
    start = time.thread_time()
    for _ in range(1000):
        reports.event("a.b")
    assert time.thread_time() - start < 0.5
    assert reports.total("events_dropped") >= 991
    begun = time.monotonic()
    reports.close()
    assert time.monotonic() - begun < 10.0
    stuck.go.set()
    reports._thread.join(10.0)
    assert not reports._thread.is_alive(), "and when it comes back, its thread ends"


def test_counts_are_kept_by_name_member_and_reason_from_any_thread() -> None:
    reports = Reports()

    def count() -> None:
        for _ in range(500):
            reports.count("faults", 2, member="pool", reason="EIO")
            reports.count("faults", member="cold")

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    reports.close()
    assert reports.counts() == {("faults", "pool", "EIO"): 4000, ("faults", "cold", ""): 2000}
    assert reports.total("faults") == 6000
    assert reports.total("faults", member="pool") == 4000
    assert reports.total("faults", reason="") == 2000
    assert reports.total("nothing") == 0


def test_a_copy_of_the_counts_does_not_change_with_them() -> None:
    reports = Reports()
    reports.count("a")
    copy = reports.counts()
    reports.count("a")
    reports.close()
    assert copy == {("a", "", ""): 1}


def test_events_are_logged_by_name_at_their_level() -> None:
    with structlog.testing.capture_logs() as logs:
        observer = LogObserver()
        observer.on_event("member.down", {"level": "warning", "member": "pool", "reason": "read: EIO"})
        observer.on_event("hub.opened", {"role": "both"})
    assert logs == [
        {"event": "member.down", "log_level": "warning", "member": "pool", "reason": "read: EIO"},
        {"event": "hub.opened", "log_level": "info", "role": "both"},
    ]
