"""Jobs with members of the test's own: every order ends once, whatever a member does; slots come back after it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import attrs
import pytest

from kvhub.breaker import TRIP_AFTER
from kvhub.jobs import Jobs
from kvhub.member import Member
from kvhub.observe import Reports
from kvhub.types import Batch, Capabilities, Completion, Op, Outcome, Peer

FOUR = [bytes([number]) * 32 for number in range(4)]


class Told(Member):
    """Does what the test tells it to."""

    Config = object
    capabilities = property(lambda self: Capabilities())  # type: ignore[assignment]

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.cancelled: list[int] = []
        self.ends: list[Any] = []
        self.error: BaseException | None = None
        self.raises = ""

    def attach(self, region: Any, wake: Any) -> None: ...

    def close(self) -> None: ...

    def _maybe(self, verb: str) -> None:
        if self.error is not None and verb in self.raises.split():
            raise self.error

    def submit(self, batch: Batch) -> None:
        self.batches.append(batch)
        self._maybe("submit")

    def poll(self) -> list[Completion]:
        self._maybe("poll")
        ends, self.ends = self.ends, []
        return ends

    def cancel(self, batch_id: int) -> None:
        self.cancelled.append(batch_id)
        self._maybe("cancel")

    def end(self, outcome: Outcome = Outcome.DONE, **more: Any) -> None:
        """Complete the oldest batch."""
        batch = self.batches.pop(0)
        lengths = batch.lengths if batch.op is Op.LOAD else ()
        self.ends.append(attrs.evolve(Completion(batch.id, (outcome,) * len(batch.keys), lengths), **more))


class Stage:
    def __init__(self) -> None:
        self.member = Told()
        self.reports = Reports()
        self.changes: list[tuple[str, str, str]] = []
        self.probes: list[tuple[str, Op]] = []
        self.jobs = Jobs(
            {"pool": self.member, "other": Told()},
            self.reports,
            queue_bytes=1000,
            changed=lambda *change: self.changes.append(change),
            probe=lambda member, op: self.probes.append((member, op)),
        )
        self.done: list[Completion] = []
        self.settled = 0

    def send(self, op: Op = Op.FIND, *, count: int = 1, seconds: float = 60.0, size: int = 100, **more: Any) -> int:
        def settled() -> None:
            self.settled += 1

        moves = op in (Op.LOAD, Op.SAVE)
        return self.jobs.send(
            "pool", op, FOUR[:count], slots=tuple(range(count)) if moves else (), seconds=seconds,
            lengths=(size,) * count if moves else (), done=self.done.append, settled=settled, **more,
        )  # fmt: skip

    def fail(self, op: Op = Op.FIND, times: int = TRIP_AFTER, reason: str = "EIO", **more: Any) -> None:
        for _ in range(times):
            self.send(op, **more)
            self.member.end(Outcome.FAILED, reason=reason)
            self.jobs.turn()


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage()
    yield made
    made.reports.close()


def test_an_order_ends_once_and_settles_once(stage: Stage) -> None:
    stage.send(Op.LOAD, count=2)
    assert stage.jobs.pending() == 1
    stage.jobs.turn()
    assert (stage.done, stage.settled) == ([], 0)
    stage.member.end(moved=200)
    stage.jobs.turn()
    stage.jobs.turn()
    assert [done.outcomes for done in stage.done] == [(Outcome.DONE,) * 2]
    assert stage.settled == 1
    assert stage.jobs.pending() == 0
    assert stage.reports.total("load_done", member="pool") == 2
    assert stage.reports.total("bytes", member="pool", reason="load") == 200


def test_B10_B11_a_deadline_ends_the_wait_and_the_member_s_end_gives_the_slots_back(stage: Stage) -> None:
    number = stage.send(Op.LOAD, seconds=0.01)
    assert stage.jobs.turn() <= time.monotonic() + 0.01
    time.sleep(0.02)
    stage.jobs.turn()
    assert [done.outcomes for done in stage.done] == [(Outcome.LATE,)]
    assert stage.member.cancelled == [number]
    assert stage.settled == 0, "the member may still write into the slot"
    assert stage.jobs.pending() == 1
    stage.member.end()
    stage.jobs.turn()
    assert (len(stage.done), stage.settled, stage.jobs.pending()) == (1, 1, 0)


@pytest.mark.parametrize("twice", [False, True])
def test_B13_completions_of_unknown_and_ended_orders_are_counted_and_no_more(stage: Stage, twice: bool) -> None:
    if twice:
        stage.send()
        stage.member.end()
        stage.member.ends *= 2
    else:
        stage.member.ends.append(Completion(4711, (Outcome.DONE,)))
    stage.jobs.turn()
    assert stage.reports.total("unknown_completions") == 1
    assert (len(stage.done), stage.settled) == ((1, 1) if twice else (0, 0))


def test_a_cancelled_order_tells_nobody_and_still_settles(stage: Stage) -> None:
    number = stage.send(Op.LOAD)
    stage.jobs.cancel(number)
    stage.jobs.cancel(number)
    stage.jobs.cancel(99)
    assert set(stage.member.cancelled) == {number}
    stage.member.end(Outcome.LATE)
    stage.jobs.turn()
    assert (stage.done, stage.settled) == ([], 1)
    assert not stage.jobs.breaker("pool", Op.LOAD)._failures, "giving up is not the member's fault"


@pytest.mark.parametrize("verb", ["submit", "poll", "cancel"])
@pytest.mark.parametrize(
    "error", [OSError("x"), ValueError("x"), MemoryError(), asyncio.CancelledError(), SystemExit(3), GeneratorExit()]
)
def test_C18_whatever_a_member_raises_costs_that_order_only(stage: Stage, verb: str, error: BaseException) -> None:
    stage.member.error, stage.member.raises = error, verb
    number = stage.send(seconds=0.01 if verb == "poll" else 60.0)
    if verb == "cancel":
        stage.jobs.cancel(number)
    time.sleep(0.02)
    stage.jobs.turn()
    stage.jobs.turn()
    if verb == "submit":
        assert [(done.outcomes, done.reason) for done in stage.done] == [((Outcome.FAILED,), type(error).__name__)]
        assert (stage.settled, stage.jobs.pending()) == (1, 0)
    elif verb == "poll":
        assert [done.outcomes for done in stage.done] == [(Outcome.LATE,)]
    name = {"submit": "faults"}.get(verb, f"{verb}_errors")
    assert stage.reports.total(name, member="pool", reason=type(error).__name__) >= 1
    stage.member.error = None
    stage.send()
    stage.member.batches = stage.member.batches[-1:]
    stage.member.end()
    stage.jobs.turn()
    assert stage.done[-1].outcomes == (Outcome.DONE,)


@pytest.mark.parametrize("verb", ["submit", "poll", "cancel"])
def test_C18_an_interrupt_is_the_operator_s_and_goes_through(stage: Stage, verb: str) -> None:
    number = 0
    with pytest.raises(KeyboardInterrupt):
        if verb != "submit":
            number = stage.send()
        stage.member.error, stage.member.raises = KeyboardInterrupt(), verb
        {"submit": stage.send, "poll": stage.jobs.turn, "cancel": lambda: stage.jobs.cancel(number)}[verb]()
    stage.member.error = None
    if verb == "submit":
        stage.jobs.turn()
        assert stage.jobs.pending() == 0


@pytest.mark.parametrize("raising", ["done", "settled"])
def test_an_end_that_raises_does_not_keep_others_from_theirs(stage: Stage, raising: str) -> None:
    def bad(*_: Any) -> None:
        raise ValueError("mine")

    stage.jobs.send("pool", Op.FIND, FOUR[:1], seconds=60.0, **{"done": stage.done.append, raising: bad})
    stage.send()
    stage.member.end()
    stage.member.end()
    stage.jobs.turn()
    assert len(stage.done) == (1 if raising == "done" else 2)
    assert stage.settled == 1
    assert stage.reports.total(f"{raising}_errors", reason="ValueError") == 1


WRONG = {
    "fewer outcomes": {"outcomes": (Outcome.DONE,)},
    "more outcomes": {"outcomes": (Outcome.DONE,) * 3},
    "no lengths": {"lengths": ()},
    "more than the slot takes": {"lengths": (100, 101)},
    "less than nothing": {"lengths": (-1, 100)},
    "one layout for two": {"layouts": ("x",)},
    "one count for two": {"generated": (1,)},
}


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG)
def test_C18_a_completion_that_answers_for_something_else_is_a_failure(stage: Stage, change: dict[str, Any]) -> None:
    stage.send(Op.LOAD, count=2)
    stage.member.end(**change)
    stage.jobs.turn()
    assert [(done.outcomes, done.reason) for done in stage.done] == [((Outcome.FAILED,) * 2, "malformed")]
    assert stage.done[0].lengths == (0, 0)
    assert stage.reports.total("faults", reason="malformed") == 2


@pytest.mark.parametrize("nonsense", [None, 7, object()])
def test_C18_what_is_no_completion_is_counted(stage: Stage, nonsense: Any) -> None:
    stage.send()
    stage.member.ends = [nonsense]
    stage.member.end()
    stage.jobs.turn()
    assert len(stage.done) == 1
    assert stage.reports.total("poll_errors", reason="AttributeError") == 1


def test_B21_queued_bytes_are_bounded_and_what_is_shed_is_counted(stage: Stage) -> None:
    for _ in range(3):
        stage.send(Op.SAVE, count=4)
    assert len(stage.member.batches) == 2, "800 of 1000 bytes; the third order would make 1200"
    stage.jobs.turn()
    assert [done.outcomes for done in stage.done] == [(Outcome.FULL,) * 4]
    assert stage.settled == 1
    assert stage.reports.total("faults", member="pool", reason="queue") == 4
    assert stage.jobs.breaker("pool", Op.SAVE).closed, "our own bound is not the member's fault"
    stage.member.end()
    stage.jobs.turn()
    stage.send(Op.SAVE, count=4)
    assert len(stage.member.batches) == 2


def test_B21_one_order_larger_than_the_bound_goes_alone(stage: Stage) -> None:
    for _ in range(2):
        stage.send(Op.SAVE, size=5000)
    assert len(stage.member.batches) == 1
    stage.send(Op.LOAD, size=5000)
    assert len(stage.member.batches) == 2, "loads bring bytes, they do not queue them"


def test_F07_three_failures_keep_a_member_out_until_a_probe(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.fail()
    assert stage.changes == [("pool", "down", "read: EIO")]
    stage.send()
    assert stage.member.batches == [], "it is not asked any more"
    assert stage.jobs.turn() <= time.monotonic() + 1.0
    assert stage.done[-1].outcomes == (Outcome.FAILED,)
    assert stage.reports.total("faults", member="pool", reason="kept-out") == 1
    stage.jobs.breaker("pool", Op.FIND)._until = 0.0
    stage.jobs.turn()
    assert stage.probes == [("pool", Op.LOAD)]
    stage.send(Op.LOAD, probe=True)
    stage.member.end(Outcome.MISS)
    stage.jobs.turn()
    assert stage.changes[-1] == ("pool", "up", "read: probe")
    stage.send()
    assert len(stage.member.batches) == 1


def test_reads_and_writes_are_kept_out_apart(stage: Stage) -> None:
    stage.fail(Op.SAVE)
    stage.send(Op.SAVE)
    stage.send(Op.LOAD)
    stage.send(Op.FIND)
    assert [batch.op for batch in stage.member.batches] == [Op.LOAD, Op.FIND]
    assert stage.changes == [("pool", "down", "write: EIO")]
    stage.jobs.breaker("pool", Op.SAVE)._until = 0.0
    stage.jobs.turn()
    assert stage.probes == [("pool", Op.SAVE)]


@pytest.mark.parametrize("outcome", [Outcome.MISS, Outcome.CORRUPT, Outcome.KEPT])
def test_what_is_no_fault_of_the_medium_opens_nothing(stage: Stage, outcome: Outcome) -> None:
    for _ in range(2 * TRIP_AFTER):
        stage.send(Op.LOAD)
        stage.member.end(outcome)
        stage.jobs.turn()
    assert stage.jobs.breaker("pool", Op.LOAD).closed


def test_C06_a_full_medium_keeps_writes_out(stage: Stage) -> None:
    for _ in range(TRIP_AFTER):
        stage.send(Op.SAVE)
        stage.member.end(Outcome.FULL, reason="ENOSPC")
        stage.jobs.turn()
    assert not stage.jobs.breaker("pool", Op.SAVE).closed
    assert stage.changes == [("pool", "down", "write: ENOSPC")]


def test_B18_a_full_queue_is_a_burst_and_no_reason_to_keep_the_member_out(stage: Stage) -> None:
    for _ in range(3 * TRIP_AFTER):
        stage.send(Op.SAVE)
        stage.member.end(Outcome.FULL, reason="queue")
        stage.jobs.turn()
    assert stage.jobs.breaker("pool", Op.SAVE).closed
    assert stage.reports.total("faults", member="pool", reason="queue") == 3 * TRIP_AFTER


def test_D12_one_peer_of_a_transport_fails_for_itself(stage: Stage) -> None:
    bad, good = Peer("10.0.0.1:7", "i1"), Peer("10.0.0.2:7", "i2")
    stage.fail(Op.LOAD, peer=bad)
    stage.send(Op.LOAD, peer=bad)
    stage.send(Op.LOAD, peer=good)
    assert [batch.peer for batch in stage.member.batches] == [good]
    stage.jobs.breaker("pool", Op.LOAD, bad.address)._until = 0.0
    stage.jobs.turn()
    assert stage.probes == []
    stage.send(Op.LOAD, peer=bad)
    assert len(stage.member.batches) == 2, "the next request that names it is its probe"
    stage.member.batches.pop(0)
    stage.member.end()
    stage.jobs.turn()
    assert [state for _, state, _ in stage.changes] == ["down", "up"]


def test_numbers_are_never_used_again(stage: Stage) -> None:
    numbers = [stage.send() for _ in range(5)]
    assert numbers == sorted(set(numbers))


FAULTS = {
    "EIO": (Outcome.FAILED, "EIO"), "ESTALE": (Outcome.FAILED, "ESTALE"), "throttled": (Outcome.FAILED, "SlowDown"),
    "forbidden": (Outcome.FAILED, "AccessDenied"), "reset": (Outcome.FAILED, "ECONNRESET"),
    "no reason": (Outcome.FAILED, ""), "checksum": (Outcome.CORRUPT, "checksum"), "length": (Outcome.CORRUPT, "length"),
    "ENOSPC": (Outcome.FULL, "ENOSPC"), "EDQUOT": (Outcome.FULL, "EDQUOT"), "queue": (Outcome.FULL, "queue"),
    "late": (Outcome.LATE, "deadline"),
}  # fmt: skip


@pytest.mark.parametrize(("outcome", "reason"), FAULTS.values(), ids=FAULTS)
def test_F09_each_kind_of_fault_moves_its_own_counter(stage: Stage, outcome: Outcome, reason: str) -> None:
    stage.send(Op.SAVE, count=3)
    stage.member.end(outcome, reason=reason)
    stage.jobs.turn()
    faults = {label: count for label, count in stage.reports.counts().items() if label[0] == "faults"}
    assert faults == {("faults", "pool", reason or outcome.name.lower()): 3}
    assert stage.reports.total(f"save_{outcome.name.lower()}", member="pool") == 3


@pytest.mark.parametrize("reason", [FOUR[0].hex(), "x" * 41, "a\nb", "tenant={t1}"])
def test_F09_a_reason_that_is_no_label_does_not_become_one(stage: Stage, reason: str) -> None:
    stage.send(Op.SAVE)
    stage.member.end(Outcome.FAILED, reason=reason)
    stage.jobs.turn()
    assert stage.reports.total("faults", reason="failed") == 1
    assert reason not in {word for label in stage.reports.counts() for word in label}
