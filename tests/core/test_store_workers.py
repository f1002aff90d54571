"""Workers under a medium that hangs: bounded queues, deadlines, cancelling and closing."""

from __future__ import annotations

import mmap
import threading
import time
from collections import Counter
from collections.abc import Iterator

import attrs
import pytest

from kvhub import store as store_module
from kvhub import workers as workers_module
from kvhub.errors import KvhubError, MisuseError
from kvhub.store import BlockingStore
from kvhub.testing.driver import Driver
from kvhub.testing.region import make_context, make_key
from kvhub.testing.stage import until
from kvhub.types import Batch, Op, Outcome, Region
from kvhub.workers import End, Workers

DONE, MISS, LATE, FULL = Outcome.DONE, Outcome.MISS, Outcome.LATE, Outcome.FULL
STICKY = [make_key(f"sticky {n}") for n in range(8)]
PLAIN = [make_key(f"plain {n}") for n in range(8)]


@attrs.frozen
class GateConfig:
    workers: int = 4


class Gate(BlockingStore):
    """An empty store whose calls hang for the sticky keys until the gate is opened."""

    Config = GateConfig
    most_queued = 16

    def __init__(self, config: GateConfig, context) -> None:
        super().__init__(config, context)
        self.workers = config.workers
        self.gate = threading.Event()
        self.inside: list[str] = []

    def _pass(self, name: str) -> None:
        self.inside.append(name)
        if name in {key.hex() for key in STICKY}:
            self.gate.wait(30)

    def has(self, name: str) -> bool:
        self._pass(name)
        return False

    def read(self, name: str, header: memoryview, payload: memoryview) -> int | None:
        self._pass(name)
        payload[:1] = b"!"
        return None

    def write(self, name: str, header: bytes, payload: memoryview) -> bool:
        return True

    def drop(self, name: str) -> None:
        self._pass(name)


class Hub(Driver):
    member: Gate

    def __init__(self, workers: int = 4, **more) -> None:
        super().__init__(Gate(GateConfig(workers), make_context("gate", **more)))
        self.attach()

    def stick(self, count: int, op: Op = Op.LOAD, **more) -> list[int]:
        """Hang `count` workers, each in a batch of its own."""
        slots = range(32, 32 + count) if op in (Op.LOAD, Op.SAVE) else ()
        before = len(self.member.inside)
        batches = [self.submit(op, [key], [slots[n]] if slots else (), **more) for n, key in enumerate(STICKY[:count])]
        until(lambda: len(self.member.inside) == before + count, 2.0, "workers are stuck")
        return batches


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub()
    yield hub
    hub.member.gate.set()
    hub.close()


@pytest.mark.parametrize("op", [Op.FIND, Op.LOAD, Op.SAVE, Op.REMOVE])
def test_B18_all_workers_hang_and_submit_does_not(hub: Hub, op: Op) -> None:
    """4 workers blocked, a queue of 16: of 200 more batches 184 are dropped, each at once."""
    hub.stick(4, op)
    slowest, batches = 0.0, []
    for n in range(200):
        before = time.perf_counter()
        slots = [n % 30] if op in (Op.LOAD, Op.SAVE) else []
        batches.append(hub.submit(op, [PLAIN[n % 8]], slots, [8] * len(slots)))
        slowest = max(slowest, time.perf_counter() - before)
    assert slowest < 0.25
    hub.poll()
    full = [hub.ended[batch] for batch in batches if batch in hub.ended]
    assert len(full) == 184
    assert {(done.outcomes, done.reason) for done in full} == {((FULL,), "queue")}
    hub.member.gate.set()
    assert FULL not in {outcome for done in hub.wait_all() if done not in full for outcome in done.outcomes}


def test_one_hung_call_costs_one_worker(hub: Hub) -> None:
    hub.stick(3)
    assert hub.find(PLAIN * 20) == (MISS,) * 160
    assert hub.load(PLAIN).outcomes == (MISS,) * 8


def test_a_hung_chunk_does_not_hold_the_rest_of_its_batch(hub: Hub) -> None:
    """Its neighbours are done by the other workers; the batch waits for the one whose slot may still be written."""
    batch = hub.submit(Op.LOAD, [STICKY[0], *PLAIN], range(32, 41), deadline=time.monotonic() + 0.1)
    until(lambda: len(hub.member.inside) == 9, 2.0, "the neighbours are read")
    hub.settle(0.2)
    assert batch in hub.under_way
    hub.member.gate.set()
    assert hub.wait(batch).outcomes == (MISS,) * 9


def test_what_is_waited_for_goes_before_the_background() -> None:
    single = Hub(workers=1)
    try:
        single.stick(1)
        background = single.submit(Op.REMOVE, PLAIN[:4])
        urgent = single.submit(Op.FIND, PLAIN[4:])
        single.member.gate.set()
        single.wait(background)
        assert urgent in single.ended
        assert single.member.inside == [key.hex() for key in [STICKY[0], *PLAIN[4:], *PLAIN[:4]]]
    finally:
        single.close()


@pytest.mark.parametrize("op", [Op.FIND, Op.REMOVE])
def test_a_deadline_ends_what_lends_no_slots_even_when_hung(hub: Hub, op: Op) -> None:
    start = time.monotonic()
    (batch,) = hub.stick(1, op, deadline=start + 0.15)
    done = hub.wait(batch, 2.0)
    assert (done.outcomes, done.reason) == ((LATE,), "deadline")
    assert 0.15 <= time.monotonic() - start < 1.0


def test_a_deadline_ends_what_is_queued_when_all_hang(hub: Hub) -> None:
    hub.stick(4)
    start = time.monotonic()
    late = [hub.submit(Op.LOAD, PLAIN, range(8), deadline=start + 0.3 - n / 10) for n in range(3)]
    for batch in reversed(late):
        assert hub.wait(batch, 2.0).outcomes == (LATE,) * 8
    assert 0.3 <= time.monotonic() - start < 1.0


def test_B11_a_deadline_does_not_end_a_load_that_may_still_write(hub: Hub) -> None:
    (batch,) = hub.stick(1, deadline=time.monotonic() + 0.05)
    hub.member.cancel(batch)
    hub.settle(0.3)
    assert batch in hub.under_way
    hub.member.gate.set()
    assert hub.wait(batch).outcomes == (MISS,)
    assert hub.bytes_of(32, 1) == b"!"


def test_chunks_not_started_at_the_deadline_are_late() -> None:
    single = Hub(workers=1)
    try:
        keys = [PLAIN[0], STICKY[0], *PLAIN[1:4]]
        batch = single.submit(Op.LOAD, keys, range(32, 37), deadline=time.monotonic() + 0.1)
        time.sleep(0.15)
        single.member.gate.set()
        done = single.wait(batch)
        assert (done.outcomes, done.reason) == ((MISS, MISS, LATE, LATE, LATE), "deadline")
    finally:
        single.close()


def test_cancel(hub: Hub) -> None:
    hub.stick(4)
    batches = [hub.submit(Op.LOAD, PLAIN, range(8)), hub.submit(Op.FIND, PLAIN), hub.submit(Op.SAVE, PLAIN, range(8))]
    for batch in batches:
        hub.member.cancel(batch)
        hub.member.cancel(batch)
        done = hub.wait(batch, 1.0)
        assert (done.outcomes, done.reason) == ((LATE,) * 8, "cancelled")
    hub.settle()


def test_recovery_after_a_hang(hub: Hub) -> None:
    hub.stick(4)
    hub.member.gate.set()
    hub.wait_all()
    assert hub.load(PLAIN).outcomes == (MISS,) * 8
    assert hub.member.healthy() == ""


def test_F06_healthy_tells_of_stuck_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers_module, "STUCK_SECONDS", 0.05)
    hub = Hub()
    try:
        assert hub.member.healthy() == ""
        hub.stick(2)
        until(lambda: hub.member.healthy() == "2 calls have not returned for more than 5 s", 2.0, "said")
        hub.member.gate.set()
        until(lambda: hub.member.healthy() == "", 2.0, "well again")
    finally:
        hub.close()


def threads_of(hub: Hub) -> int:
    return sum(thread.name.startswith("kvhub-gate-") for thread in threading.enumerate()) - 1


def test_C19_workers_that_hang_are_replaced_up_to_a_cap_and_then_batches_fail_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Half of the pool may hang for nothing; beyond, as many again are started; when all hang, nothing is queued."""
    monkeypatch.setattr(workers_module, "STUCK_SECONDS", 0.05)
    reports: Counter[str] = Counter()
    hub = Hub(2, report=lambda name, count: reports.update({name: count}))
    before = threads_of(hub)
    try:
        first = hub.stick(1)
        until(lambda: reports["stuck_calls"] == 1, 2.0, "one is written off")
        assert threads_of(hub) == before, "half of the pool still works"
        first += hub.stick(2)[1:]
        until(lambda: threads_of(hub) == before + 2, 2.0, "others stand in their places")
        assert hub.load(PLAIN).outcomes == (MISS,) * 8
        first += [hub.submit(Op.LOAD, [key], [36 + n]) for n, key in enumerate(STICKY[2:4])]
        until(lambda: reports["stuck_calls"] == 4, 2.0, "those hang as well")
        assert threads_of(hub) == before + 2, "never more than twice the pool"
        for _ in range(200):
            done = hub.run(Op.FIND, PLAIN)
            assert (done.outcomes, done.reason) == ((Outcome.FAILED,) * 8, "stuck")
        assert set(first) <= set(hub.under_way), "slots of a call that hangs stay lent"
        hub.member.gate.set()
        assert {hub.wait(batch).outcomes for batch in first} == {(MISS,)}
        until(lambda: threads_of(hub) == before, 2.0, "back to the pool's size")
        assert hub.load(PLAIN).outcomes == (MISS,) * 8
    finally:
        hub.close()
    assert threads_of(hub) == -1


def test_close_is_bounded_and_writes_hung_workers_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "CLOSE_SECONDS", 1.3)
    hub = Hub()
    hub.stick(2)
    queued = hub.submit(Op.FIND, STICKY)
    assert 0.2 < hub.close() < 1.5
    assert hub.close() < 0.1
    done = hub.wait(queued, 0.5)
    assert set(done.outcomes) == {LATE} and done.reason == "closed"
    with pytest.raises(MisuseError, match="closed member"):
        hub.submit(Op.FIND, PLAIN)
    with pytest.raises(BufferError):
        # A worker that was written off may still write: its slot cannot be unmapped under it.
        memory = hub.region.view.obj
        assert isinstance(memory, mmap.mmap)
        hub.region.view.release()
        memory.close()
    hub.member.gate.set()
    hub.settle(0.05)


@pytest.mark.timeout(30)
def test_close_bound_as_shipped() -> None:
    hub = Hub()
    hub.stick(4)
    hub.member.shut = lambda: hub.member.gate.wait(30)  # type: ignore[method-assign,assignment]
    assert hub.close() < 5.0
    hub.member.gate.set()


def test_open_that_hangs_refuses_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "OPEN_SECONDS", 0.1)
    gate = Gate(GateConfig(), make_context("pool"))
    gate.open = lambda: gate.gate.wait(30)  # type: ignore[method-assign,assignment,return-value]
    with pytest.raises(KvhubError, match=r"^pool: the store did not answer within .* check that its server is up"):
        Driver(gate).attach()
    gate.gate.set()
    gate.close()


@pytest.mark.parametrize(
    ("raised", "words"),
    [
        (ValueError("no such bucket"), "^pool: the store cannot start: ValueError: no such bucket"),
        (KvhubError("x"), "^x$"),
    ],
)
def test_open_that_raises_refuses_the_start(raised: Exception, words: str) -> None:
    def broken() -> None:
        raise raised

    gate = Gate(GateConfig(), make_context("pool"))
    gate.open = broken  # type: ignore[method-assign]
    with pytest.raises(KvhubError, match=words):
        Driver(gate).attach()
    with pytest.raises(MisuseError, match="not attached"):
        gate.submit(Batch(1, Op.FIND, ()))
    gate.close()


def test_attach_once(hub: Hub) -> None:
    with pytest.raises(MisuseError, match="attach is called once"):
        hub.attach()


def test_ids_under_way_are_unique(hub: Hub) -> None:
    (batch,) = hub.stick(1, Op.FIND)
    with pytest.raises(MisuseError, match="under way already"):
        hub.member.submit(Batch(batch, Op.FIND, (PLAIN[0],)))


def test_exactly_one_completion_under_storm() -> None:
    """Cancels, deadlines and workers race for the end of the same batches; each ends once."""
    ended: list[int] = []
    workers = Workers("storm", 4, lambda batch, index: End(MISS), lambda: None, most_queued=1000)
    try:
        for number in range(600):
            deadline = time.monotonic() + (0.0005 if number % 3 else 60)
            workers.submit(Batch(number, Op.LOAD, tuple(PLAIN[: number % 9]), deadline=deadline))
            if number % 2:
                workers.cancel(number)
            ended += [done.id for done in workers.poll()]
        until(lambda: ended.extend(done.id for done in workers.poll()) or len(ended) >= 600, 5.0, "all ended")
    finally:
        assert workers.close(2.0) == 0
    assert sorted(ended) == list(range(600))
    assert workers.poll() == []


def test_wake_comes_after_the_completion_and_outside_the_lock() -> None:
    polled: list[int] = []
    workers: Workers

    def wake() -> None:
        polled.extend(done.id for done in workers.poll())

    workers = Workers("wake", 2, lambda batch, index: End(MISS), wake)
    for number in range(50):
        workers.submit(Batch(number, Op.FIND, tuple(PLAIN[: number % 3]), deadline=0.0 if number % 5 == 0 else 1e9))
    until(lambda: len(polled) == 50, 2.0, "every completion was polled from inside wake")
    workers.close(2.0)


def test_region_is_not_needed_for_finding() -> None:
    gate = Gate(GateConfig(), make_context("gate"))
    gate.attach(Region(memoryview(b""), 0, 4096, 0), lambda: None)
    gate.submit(Batch(1, Op.FIND, (PLAIN[0],)))
    until(lambda: [done.outcomes for done in gate.poll()] == [(MISS,)], 2.0, "found")
    gate.close()
