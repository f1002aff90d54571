"""Members that hang, fail, raise, tear or fill up: a request costs at most its bound, and then nothing at all."""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hub.rig import (
    PATIENCE,
    Rig,
    chain_of,
    flushed,
    forget_all,
    hit,
    load,
    look,
    prompt,
    spy,
    store,
    wait,
)
from kvhub import orders
from kvhub.breaker import TRIP_AFTER
from kvhub.hub import Hub
from kvhub.member import Member
from kvhub.testing.faults import Dropping, Faulty, Full, Hanging, Raising, Slow, Torn
from kvhub.types import Completion, Op, Outcome

LOOKUP = 0.05
DEADLINE = 0.15
ROLES = {"both": {"store": ["host", "pool"], "retrieve": ["host", {"from": "pool", "deadline": f"{DEADLINE}s"}]}}


class Refusing(Faulty):
    """Ends what it takes at once, with FAILED and a reason: a closed port, a 403, a stale handle."""

    reason = "ESTALE"

    def _submit(self, batch: Any) -> None:
        del self._hit[batch.id]
        lengths = (0,) * len(batch.keys) if batch.op is Op.LOAD else ()
        self._ends.append(Completion(batch.id, (Outcome.FAILED,) * len(batch.keys), lengths, reason=self.reason))
        self._wake()

    def __init__(self, inner: Member, **more: Any) -> None:
        super().__init__(inner, **more)
        self._ends: list[Completion] = []

    def poll(self) -> list[Completion]:
        ends, self._ends = self._ends, []
        return super().poll() + ends


def stocked(rig: Rig, wrap: Callable[[Member], Member], *, bounded: bool = False, lookup: str = "2s") -> Hub:
    """A hub whose pool holds six prompts of two chunks and whose host tier is empty; then the pool goes bad.

    `bounded` is for tests of loads that hang; elsewhere a busy machine must not make a load late.
    """
    rig.wraps["pool"] = wrap
    hub = rig.open(ROLES if bounded else None, limits={"lookup": lookup})
    pool = rig.member(hub)
    pool.broken = False
    for seed in range(6):
        store(hub, chain_of(prompt(2, seed)))
    flushed(hub)
    forget_all(hub)
    pool.broken = True
    return hub


def timed_lookup(hub: Hub, seed: int) -> tuple[float, int]:
    """Seconds until a lookup is answered, and the tokens that it found; the request then ends."""
    start = time.monotonic()
    found = look(hub, f"t{seed}", chain_of(prompt(2, seed)))
    took = time.monotonic() - start
    hub.release(f"t{seed}")
    return took, found.tokens


def up_again(hub: Hub, member: str, op: Op = Op.LOAD) -> None:
    """Let the pause until the next probe pass, and wait for what comes of the probe."""
    breaker = hub.jobs.breaker(member, op)
    assert not breaker.closed
    breaker._until = 0.0
    hub.wake()
    wait(lambda: hub.jobs.breaker(member, op).closed, "the probe's success")


HUNG: dict[str, Callable[[Member], Member]] = {
    "hangs": Hanging,
    "slow": lambda inner: Slow(inner, 1.0),
    "drops": Dropping,
}
REFUSING: dict[str, Callable[[Member], Member]] = {
    "refuses": Refusing,
    "raises": lambda inner: Raising(inner, OSError("down")),
}


@pytest.mark.parametrize("wrap", HUNG.values(), ids=HUNG)
def test_F07_D16_a_hung_store_costs_three_lookups_their_bound_and_the_others_nothing(
    rig: Rig, wrap: Callable[[Member], Member]
) -> None:
    rig.checks_baseline = wrap is not Dropping
    hub = stocked(rig, wrap, lookup=f"{LOOKUP}s")
    first = [timed_lookup(hub, seed) for seed in range(TRIP_AFTER)]
    assert {tokens for _, tokens in first} == {0}
    assert all(took >= LOOKUP for took, _ in first)
    assert statistics.median(took for took, _ in first) < LOOKUP + 0.25
    assert not hub.jobs.breaker("pool", Op.FIND).closed
    asked = len(rig.member(hub).batches)
    later = [timed_lookup(hub, seed)[0] for seed in range(TRIP_AFTER, 100)]
    assert statistics.median(later) < 0.005, "0.3 ms, the asking included, where little else runs"
    assert len(rig.member(hub).batches) - asked <= 4, "only probes reach it"


@pytest.mark.parametrize("wrap", REFUSING.values(), ids=REFUSING)
def test_F07_B20_C21_a_refusing_store_is_kept_out_and_comes_back_by_its_probe(
    rig: Rig, wrap: Callable[[Member], Member]
) -> None:
    """Misses while it is down; then the real data path is tried, and the same chunks hit again."""
    hub = stocked(rig, wrap)
    for seed in range(10):
        assert timed_lookup(hub, seed % 6)[1] == 0
    assert hub.reports.total("member_changes", member="pool", reason="down") == 1
    rig.member(hub).broken = False
    assert timed_lookup(hub, 0)[1] == 0, "nobody knows yet"
    up_again(hub, "pool")
    assert hit(hub, chain_of(prompt(2, 0))) == 32
    assert hub.reports.total("member_changes", member="pool", reason="up") == 1


def test_F07_a_probe_of_a_store_that_is_still_down_changes_nothing(rig: Rig) -> None:
    hub = stocked(rig, Refusing)
    for seed in range(TRIP_AFTER):
        timed_lookup(hub, seed)
    asked = len(rig.member(hub).batches)
    breaker = hub.jobs.breaker("pool", Op.LOAD)
    breaker._until = 0.0
    hub.wake()
    wait(lambda: breaker._until > 0.0, "the next pause")
    assert not breaker.closed
    probes = rig.member(hub).batches[asked:]
    assert [batch.op for batch in probes] == [Op.LOAD]
    assert timed_lookup(hub, 0)[1] == 0


def test_F07_finds_that_answer_do_not_hide_loads_that_hang(rig: Rig) -> None:
    """'Ping ok but get fails': three loads cost their deadline, and then nobody is promised anything of that store."""
    hub = stocked(rig, lambda inner: Hanging(inner, ops=(Op.LOAD,)), bounded=True)
    found = []
    for seed in range(6):
        found.append(look(hub, f"r{seed}", chain_of(prompt(2, seed))).tokens)
        assert load(hub, f"r{seed}") == 0 if found[-1] else True
        hub.release(f"r{seed}")
    assert found == [32] * TRIP_AFTER + [0] * (6 - TRIP_AFTER)
    rig.member(hub).release()
    up_again(hub, "pool")
    assert timed_lookup(hub, 5)[1] == 32


def test_C16_a_load_ends_at_its_deadline(rig: Rig) -> None:
    hub = stocked(rig, lambda inner: Hanging(inner, ops=(Op.LOAD,)), bounded=True)
    assert look(hub, "a", chain_of(prompt(2, 0))).tokens == 32
    start = time.monotonic()
    assert load(hub, "a") == 0
    assert DEADLINE <= time.monotonic() - start < DEADLINE + 1.0
    hub.release("a")


def test_C17_a_refusal_is_a_fault_and_no_miss(rig: Rig) -> None:
    hub = stocked(rig, Refusing)
    rig.member(hub).reason = "AccessDenied"
    timed_lookup(hub, 0)
    assert hub.reports.total("faults", member="pool", reason="AccessDenied") >= 1
    assert hub.reports.total("find_miss", member="pool") == 0
    assert hub.reports.total("find_failed", member="pool") >= 1


def test_C23_a_load_that_failed_is_a_miss_for_a_while(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orders, "DOUBT_SECONDS", 60.0)
    hub = stocked(rig, lambda inner: Hanging(inner, ops=(Op.LOAD,)), bounded=True)
    chain, waited = chain_of(prompt(2, 0)), 0
    for number in range(10):
        if look(hub, f"r{number}", chain).tokens:
            waited += 1
            assert load(hub, f"r{number}") == 0
        hub.release(f"r{number}")
    assert waited == 1
    rig.member(hub).release()
    wait(lambda: hub.jobs.pending() == 0)
    assert look(hub, "still", chain).tokens == 0
    hub.release("still")
    hub.orders._doubts = type(hub.orders._doubts)((key, 0.0) for key in hub.orders._doubts)
    assert hit(hub, chain) == 32, "after its time it is tried again"


def test_C23_a_save_ends_the_doubt(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orders, "DOUBT_SECONDS", 60.0)
    hub = stocked(rig, lambda inner: Refusing(inner, ops=(Op.LOAD,)))
    chain = chain_of(prompt(2, 0))
    look(hub, "a", chain)
    assert load(hub, "a") == 0
    hub.release("a")
    rig.member(hub).broken = False
    store(hub, chain)
    flushed(hub)
    wait(lambda: not hub.orders.doubted("pool", chain.keys[0]))
    forget_all(hub)
    assert hit(hub, chain) == 32


ERRORS = [OSError("x"), ValueError("x"), MemoryError(), asyncio.CancelledError(), SystemExit(2)]


@pytest.mark.parametrize("at", ["submit", "poll", "cancel"])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_C18_no_exception_of_a_store_reaches_the_engine(rig: Rig, at: str, error: BaseException) -> None:
    def wrap(inner: Member) -> Member:
        return Raising(Hanging(inner) if at == "cancel" else inner, error, at=(at,))

    rig.wraps["pool"] = wrap
    hub = rig.open(ROLES, limits={"lookup": "10ms"})
    for step in range(20):
        chain = chain_of(prompt(2, seed=step))
        if hub.lookup(f"r{step}", chain) is None and step % 2:
            look(hub, f"r{step}", chain)
        elif at == "cancel" and step < 4:
            wait(lambda: rig.member(hub).inner.held, "the question, so that the release has something to cancel")
        assert len(store(hub, chain)) == 2
        hub.release(f"r{step}")
    assert rig.member(hub).raised > 0
    assert look(hub, "host", chain).tokens == 32, "the host tier goes on"
    assert load(hub, "host") == 32
    hub.release("host")
    if at == "cancel":
        rig.member(hub).inner.release()


def test_C19_a_stale_mount_is_misses_and_then_hits_without_a_restart(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = stocked(rig, spy)
    store_class = type(rig.member(hub).inner)
    good = store_class.has

    def stale(self: Any, name: str) -> bool:
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(store_class, "has", stale)
    assert [timed_lookup(hub, seed)[1] for seed in range(5)] == [0] * 5
    assert hub.reports.total("faults", member="pool", reason="ESTALE") >= 3
    monkeypatch.setattr(store_class, "has", good)
    up_again(hub, "pool")
    assert hit(hub, chain_of(prompt(2, 0))) == 32


def test_C19_one_read_that_hangs_holds_up_nobody_else(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = stocked(rig, spy)
    store_class, go = type(rig.member(hub).inner), threading.Event()
    read, stuck = store_class.read, chain_of(prompt(2, 0)).keys[0].hex()

    def hang(self: Any, name: str, *more: Any) -> Any:
        if name == stuck:
            go.wait(PATIENCE)
        return read(self, name, *more)

    monkeypatch.setattr(store_class, "read", hang)
    look(hub, "stuck", chain_of(prompt(2, 0)))
    fetch = hub.fetch("stuck", computed=0, tokens=32)
    assert [hit(hub, chain_of(prompt(2, seed))) for seed in range(1, 6)] == [32] * 5
    wait(lambda: fetch.over is not None)
    assert fetch.over == 0
    hub.release("stuck")
    go.set()


def test_D16_a_full_store_sheds_and_goes_on_serving(rig: Rig) -> None:
    rig.wraps["pool"] = Full
    hub = rig.open(ROLES)
    for seed in range(10):
        store(hub, chain_of(prompt(2, seed)))
        flushed(hub)
    assert hub.reports.total("faults", member="pool", reason="ENOSPC") >= 2 * TRIP_AFTER
    assert not hub.jobs.breaker("pool", Op.SAVE).closed
    assert hub.jobs.breaker("pool", Op.LOAD).closed
    assert not list(Path(rig.root / "pool").rglob("*.kv"))
    rig.member(hub).broken = False
    up_again(hub, "pool", Op.SAVE)
    store(hub, chain_of(prompt(2, seed=0)))
    flushed(hub)
    forget_all(hub)
    assert hit(hub, chain_of(prompt(2, seed=0))) == 32


def test_the_rig_itself_can_fail(rig: Rig) -> None:
    """The negative control: bytes that are wrong behind a checksum are seen by `hit`, which every test here uses."""
    hub = stocked(rig, lambda inner: Torn(inner, "flip"))
    with pytest.raises(AssertionError, match="wrong bytes under a key"):
        hit(hub, chain_of(prompt(2, 0)), "torn")
    hub.release("torn")
