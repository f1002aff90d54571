"""The session by itself: what an adapter may say twice, late or never."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from kvhub.engine import EngineFacts
from kvhub.hub import Hub
from kvhub.keys import Context, Namespace
from kvhub.plan import Report, StepPlan
from kvhub.plugins import Registry
from kvhub.session import Session
from kvhub.testing.fake_engine import LAYOUT
from kvhub.testing.stage import until

TOKENS = list(range(40))
BLOCKS = list(range(10))
_numbers = itertools.count()


@pytest.fixture
def session(registry: Registry) -> Iterator[Session]:
    config = {
        "kvhub": 1,
        "chunk_tokens": 16,
        "stores": {
            "host": {"use": "host", "capacity": "1MiB"},
            "pool": {"use": "memory", "name": f"session-{next(_numbers)}"},
        },
        "transports": {"wire": {"use": "direct"}},
        "roles": {
            "prefill": {"store": ["host", "wire"], "retrieve": ["host"]},
            "decode": {"store": ["host", "pool"], "retrieve": ["host", "pool", "wire"]},
        },
    }
    facts = EngineFacts("test", "prefill", Namespace("m", "r", "uint8", "g", chunk_tokens=16), LAYOUT, 4)
    made = Session(Hub.open(config, facts, registry=registry))
    yield made
    made.close()


def begin(session: Session, name: str, params: dict[str, object] | None = None) -> None:
    session.begin(name, list(TOKENS), Context(), params)
    until(lambda: session.lookup(name, 0) is not None, 2.0, "an answer")
    session.allocated(name, BLOCKS, 0)


def ended(plan: StepPlan) -> Report:
    return Report(tuple(copy.id for copy in plan.gathers) + tuple(load.copy.id for load in plan.loads))


def zero(session: Session) -> bool:
    return not any({**session.counts(), **session.hub.counts()}.values())


def test_B16_a_prefill_that_ends_without_blocks_promises_nothing(session: Session) -> None:
    begin(session, "r", {"do_remote_decode": True})
    assert session.finish("r", 40, [], aborted=False).params is None
    assert zero(session)


def test_B16_a_prefill_with_too_few_blocks_promises_nothing(session: Session) -> None:
    begin(session, "r", {"do_remote_decode": True})
    assert session.finish("r", 40, BLOCKS[:9], aborted=False).params is None


def test_a_prefill_promises_what_it_stores_the_part_included(session: Session) -> None:
    begin(session, "r", {"do_remote_decode": True})
    end = session.finish("r", 40, BLOCKS, aborted=False)
    assert end.hold and end.params is not None and end.params["kvhub"]["tokens"] == 40
    plan = session.plan()
    assert [copy.last for copy in plan.gathers] == [(16, 16), (8,)]
    assert plan.closing == {"r": tuple(copy.id for copy in plan.gathers)}
    session.done(ended(plan))
    assert session.hub.counts()["promises"] == 1 and session.counts()["fills"] == 0
    session.hub.offers.fulfilled(end.params["kvhub"]["promise"])
    assert zero(session)


def test_B16_a_full_arena_promises_the_leading_part_only(session: Session) -> None:
    slots = session.hub.arena.claim(10_000)
    session.hub.arena.release(slots[:1])
    begin(session, "r", {"do_remote_decode": True})
    end = session.finish("r", 40, BLOCKS, aborted=False)
    assert end.params is not None and end.params["kvhub"]["tokens"] == 16
    session.done(ended(session.plan()))
    session.hub.arena.release(slots[1:])


def test_B13_numbers_that_nobody_knows_are_ignored(session: Session) -> None:
    begin(session, "r")
    session.advance("r", 32, BLOCKS)
    report = ended(session.plan())
    session.done(Report((10**6,), (10**7,)))
    session.done(report)
    session.done(report)
    session.done(Report((), report.done))
    session.finish("r", 32, BLOCKS, aborted=False)
    session.done(ended(session.plan()))
    until(lambda: zero(session), 2.0, "the baseline")


def test_a_copy_that_failed_is_not_stored(session: Session) -> None:
    begin(session, "r")
    session.advance("r", 32, BLOCKS)
    plan = session.plan()
    session.done(Report((), ended(plan).done))
    assert session.hub.arena.keys() == [] and session.counts()["fills"] == 0
    session.finish("r", 32, BLOCKS, aborted=True)
    assert zero(session)


def test_calls_for_unknown_requests_do_nothing(session: Session) -> None:
    assert session.lookup("nobody", 0) == 0
    session.allocated("nobody", BLOCKS, 0)
    session.advance("nobody", 40, BLOCKS)
    session.preempted("nobody")
    end = session.finish("nobody", 40, BLOCKS, aborted=False)
    assert not end.hold and end.params is None
    session.decline(None)
    session.decline({"kvhub": {"address": "nowhere:1", "incarnation": "x", "promise": "y", "tokens": 3}})
    session.decline({"kvhub": {"address": "nowhere:1"}})
    assert zero(session) and not session.busy()


def test_B03_ending_twice_is_ending_once(session: Session) -> None:
    begin(session, "r")
    session.advance("r", 16, BLOCKS)
    assert session.finish("r", 16, BLOCKS, aborted=False).hold
    assert not session.finish("r", 16, BLOCKS, aborted=True).hold
    session.done(ended(session.plan()))
    assert zero(session)


def test_A12_a_preemption_fences_what_is_being_read_once(session: Session) -> None:
    begin(session, "r")
    session.advance("r", 32, BLOCKS)
    first = session.plan()
    session.preempted("r")
    session.preempted("r")
    second = session.plan()
    assert second.fences == tuple(copy.id for copy in first.gathers)
    session.preempted("r")
    assert session.plan().fences == ()


def test_A12_a_gather_of_the_same_step_is_handed_out_before_its_fence(session: Session) -> None:
    """Engines tell of preemptions before they tell of progress; whoever does not still gets a fence with the copy."""
    begin(session, "r")
    session.advance("r", 32, BLOCKS)
    session.preempted("r")
    plan = session.plan()
    assert set(plan.fences) == {copy.id for copy in plan.gathers}


def test_a_resumed_request_does_not_store_twice(session: Session) -> None:
    begin(session, "r")
    session.advance("r", 32, BLOCKS)
    session.done(ended(session.plan()))
    session.preempted("r")
    assert session.lookup("r", 0) == 32
    session.allocated("r", BLOCKS[::-1], 32)
    plan = session.plan()
    (load,) = plan.loads
    assert load.copy.blocks == ((9, 8, 7, 6), (5, 4, 3, 2)) and load.failed == ()
    session.done(ended(plan))
    session.advance("r", 40, BLOCKS[::-1])
    assert session.plan().gathers == ()
    session.finish("r", 40, BLOCKS[::-1], aborted=True)
    assert zero(session)


def test_closing_drops_what_was_not_reported(session: Session) -> None:
    begin(session, "r")
    session.advance("r", 32, BLOCKS)
    session.plan()
    session.close()
    session.close()
