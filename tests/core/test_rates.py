"""What is known of time, and what is made of it: nothing is declined unmeasured, and nothing for ever."""

from __future__ import annotations

import pytest

from kvhub.pace import Prefill
from kvhub.rates import AGAIN_AFTER, HALF_LIFE, Rate, Rates


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_rate_is_units_per_second_of_work_and_forgets() -> None:
    rate = Rate()
    assert rate.value == 0
    rate.add(100, 1)
    assert rate.value == pytest.approx(100)
    for _ in range(40):
        rate.add(10, HALF_LIFE / 4)
    assert 4 <= rate.value <= 8, "by then it does 4 per second"
    rate.add(0, 5)
    rate.add(5, 0)
    assert rate.value <= 8, "what took no time, or did nothing, tells nothing"


def test_a_prefill_is_timed_from_plan_to_plan(clock: Clock) -> None:
    prefill = Prefill(clock=clock)
    prefill.scheduled(500)
    assert prefill.stepped() == 0
    clock.now += 0.5
    prefill.scheduled(1)
    assert prefill.stepped() == pytest.approx(1000)
    clock.now += 60
    assert prefill.stepped() == pytest.approx(1000), "one token of a decode is no prefill"


def test_an_engine_that_rests_is_not_believed_to_be_slow(clock: Clock) -> None:
    prefill = Prefill(clock=clock)
    prefill.scheduled(1000)
    prefill.stepped()
    clock.now += 1
    prefill.scheduled(1000)
    prefill.stepped()
    clock.now += 100
    assert 900 <= prefill.stepped() <= 1000
    prefill.scheduled(-50)
    assert prefill.stepped() >= 900, "a request that came back counts nothing twice"


def test_nothing_is_declined_that_was_not_measured(clock: Clock) -> None:
    rates = Rates(clock=clock)
    assert not rates.slower("pool", 10**9, 1)
    rates.prefill = 1e6
    assert not rates.slower("pool", 10**9, 1)
    rates.loaded("other", 1, 100.0)
    assert not rates.slower("pool", 10**9, 1)


def test_a_source_slower_than_computing_is_declined_and_tried_again(clock: Clock) -> None:
    rates = Rates(clock=clock)
    rates.prefill = 1000
    rates.loaded("pool", 1_000_000, 1.0)
    assert not rates.slower("pool", 1_000_000, 2000), "2 s of computing, 1 s of loading"
    assert not rates.slower("pool", 1_000_000, 2000, 2.0)
    assert rates.slower("pool", 1_000_000, 2000, 2.5), "not so many times as fast"
    assert not rates.slower("pool", 1_000_000, 2000)
    assert rates.slower("pool", 1_000_000, 500) == (1.0, 0.5, True)
    clock.now += AGAIN_AFTER / 2
    assert rates.slower("pool", 1_000_000, 500)
    clock.now += AGAIN_AFTER / 2
    assert not rates.slower("pool", 1_000_000, 500), "one is let through to measure it"
    assert rates.slower("pool", 1_000_000, 500)
    for _ in range(10):
        rates.loaded("pool", 100_000_000, 1.0)
    assert not rates.slower("pool", 1_000_000, 500), "fast by now"
