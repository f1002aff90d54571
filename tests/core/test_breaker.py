"""The breaker on a clock of the test's own."""

from __future__ import annotations

import pytest

from kvhub.breaker import FIRST_PAUSE, LONGEST_PAUSE, TRIP_AFTER, Breaker


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def told() -> list[tuple[str, str]]:
    return []


@pytest.fixture
def breaker(clock: Clock, told: list[tuple[str, str]]) -> Breaker:
    return Breaker(lambda state, why: told.append((state, why)), clock=clock)


def trip(breaker: Breaker) -> None:
    for _ in range(TRIP_AFTER):
        breaker.bad("EIO")


def test_F07_failures_in_a_row_open_it_and_others_do_not(breaker: Breaker, told: list[tuple[str, str]]) -> None:
    for _ in range(5):
        for _ in range(TRIP_AFTER - 1):
            breaker.bad("EIO")
        breaker.good()
    assert breaker.closed
    assert told == []
    trip(breaker)
    assert not breaker.closed
    assert told == [("down", "EIO")]
    assert breaker.reason == "EIO"


def test_F07_a_probe_is_due_after_a_pause_and_its_success_closes_it(
    breaker: Breaker, clock: Clock, told: list[tuple[str, str]]
) -> None:
    trip(breaker)
    assert not breaker.due()
    assert breaker.next_due() == clock.now + FIRST_PAUSE
    clock.now += FIRST_PAUSE
    assert breaker.due()
    breaker.trying()
    assert not breaker.due(), "one probe at a time"
    assert not breaker.closed, "and nothing else passes meanwhile"
    breaker.good()
    assert breaker.closed
    assert told == [("down", "EIO"), ("up", "probe")]


def test_a_failed_probe_doubles_the_pause_up_to_a_bound_and_tells_nobody(
    breaker: Breaker, clock: Clock, told: list[tuple[str, str]]
) -> None:
    trip(breaker)
    pauses = []
    for _ in range(8):
        clock.now = breaker.next_due()
        breaker.trying()
        breaker.bad("EIO")
        pauses.append(breaker.next_due() - clock.now)
    assert pauses == [2.0, 4.0, 8.0, 16.0, *[LONGEST_PAUSE] * 4]
    assert told == [("down", "EIO")]


def test_after_it_was_well_again_the_pause_is_short_again(breaker: Breaker, clock: Clock) -> None:
    trip(breaker)
    for _ in range(3):
        clock.now = breaker.next_due()
        breaker.trying()
        breaker.bad("EIO")
    breaker.trying()
    breaker.good()
    trip(breaker)
    assert breaker.next_due() - clock.now == FIRST_PAUSE


def test_what_was_under_way_when_it_opened_changes_nothing_for_the_worse(breaker: Breaker, clock: Clock) -> None:
    trip(breaker)
    due = breaker.next_due()
    clock.now += 0.5
    breaker.bad("late")
    assert breaker.next_due() == due


def test_F07_kinds_fail_apart_so_that_a_ping_that_answers_hides_nothing(breaker: Breaker) -> None:
    for _ in range(TRIP_AFTER):
        assert breaker.closed
        breaker.good("FIND")
        breaker.bad("late", "LOAD")
    assert not breaker.closed
    breaker.good("FIND")
    assert not breaker.closed, "what was under way does not close it"


def test_failures_of_different_kinds_are_not_added_up(breaker: Breaker) -> None:
    for _ in range(TRIP_AFTER - 1):
        breaker.bad("EIO", "FIND")
        breaker.bad("EIO", "LOAD")
    assert breaker.closed


def test_where_nothing_can_probe_the_next_batch_does(
    breaker: Breaker, clock: Clock, told: list[tuple[str, str]]
) -> None:
    trip(breaker)
    clock.now = breaker.next_due()
    breaker.let_in()
    assert breaker.closed
    breaker.bad("EIO")
    assert not breaker.closed, "one failure is enough now"
    assert breaker.next_due() - clock.now == 2 * FIRST_PAUSE
    clock.now = breaker.next_due()
    breaker.let_in()
    breaker.good()
    assert told == [("down", "EIO"), ("up", "probe")]
    breaker.bad("EIO")
    assert breaker.closed


def test_a_closed_breaker_is_never_due(breaker: Breaker, clock: Clock) -> None:
    clock.now += 1e9
    assert not breaker.due()
    assert breaker.next_due() == float("inf")
