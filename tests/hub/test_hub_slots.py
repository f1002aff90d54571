"""Slots of loads that nobody waits for any more: nobody else's until the member lets go, then everyone's."""

from __future__ import annotations

import random
from typing import Any

import pytest

from hub.rig import Rig, chain_of, flushed, forget_all, hit, load, look, prompt, spy, store, wait
from kvhub import orders
from kvhub.breaker import TRIP_AFTER
from kvhub.hub import Hub
from kvhub.testing.faults import Dropping, Hanging
from kvhub.types import Op

ROLES = {"both": {"store": ["host", "pool"], "retrieve": ["host", {"from": "pool", "deadline": "50ms"}]}}


def hung(rig: Rig, slots: int = 8) -> tuple[Hub, Any]:
    """A hub whose pool holds four chunks, and a load of them that is past its deadline."""
    rig.wraps["pool"] = lambda inner: Hanging(inner, ops=(Op.LOAD,))
    hub = rig.open(ROLES, slots=slots)
    chain = chain_of(prompt(4))
    store(hub, chain)
    flushed(hub)
    forget_all(hub)
    assert look(hub, "a", chain).tokens == 64
    assert load(hub, "a") == 0
    hub.release("a")
    return hub, rig.member(hub)


def test_B11_slots_of_a_hung_load_are_nobody_s_until_the_member_returns(rig: Rig) -> None:
    hub, pool = hung(rig)
    (batch,) = pool.held
    assert hub.counts()["leased"] == 4
    assert hub.counts()["orders"] == 1
    others = chain_of(prompt(8, seed=1))
    assert len(store(hub, others)) == 4, "half of the slots are out of use"
    flushed(hub)
    taken = {slot for slot in range(8) if hub.arena._leases[slot]}
    assert taken == set(batch.slots)
    assert hit(hub, others) == 64

    pool.release()  # now the bytes come, late
    wait(lambda: not any(hub.counts().values()), "the slots")
    assert hit(hub, others) == 64, "the late bytes harmed nobody"
    assert len(store(hub, chain_of(prompt(8, seed=2)))) == 8, "and every slot is of use again"


def test_B11_what_came_late_is_under_no_key(rig: Rig) -> None:
    hub, pool = hung(rig)
    pool.release()
    wait(lambda: not any(hub.counts().values()))
    assert hub.arena.keys() == []
    assert hub.arena.usage()["free"] == 8


def test_B11_a_save_that_hangs_keeps_its_slots_unchanged(rig: Rig) -> None:
    """The member may read them at any time: no new chunk may be written there."""
    rig.wraps["pool"] = lambda inner: Hanging(inner, ops=(Op.SAVE,))
    roles = {"both": {"store": ["host", {"to": "pool", "deadline": "30ms"}], "retrieve": ["host", "pool"]}}
    hub = rig.open(roles, slots=4)
    first = chain_of(prompt(2))
    store(hub, first)
    wait(lambda: hub.jobs.waiting((Op.SAVE,)) == 0, "the deadline")
    rig.member(hub).broken = False
    for seed in range(1, 4):
        assert len(store(hub, chain_of(prompt(4, seed)))) == 2
        wait(lambda: hub.jobs.pending() == 1)
    rig.member(hub).release()
    wait(lambda: not any(hub.counts().values()))
    forget_all(hub)
    assert hit(hub, first) == 32, "the late save wrote what was promised under that key"


def test_a_load_that_ends_after_its_request_is_kept_for_the_next(rig: Rig) -> None:
    rig.wraps["pool"] = lambda inner: Hanging(inner, ops=(Op.LOAD,))
    hub = rig.open()
    chain = chain_of(prompt(4))
    store(hub, chain)
    flushed(hub)
    forget_all(hub)
    look(hub, "a", chain)
    hub.fetch("a", computed=0, tokens=64)
    hub.release("a")
    rig.member(hub).release()
    wait(lambda: not any(hub.counts().values()))
    assert look(hub, "b", chain).sources == (("host", 64),)
    hub.release("b")


def test_B11_a_store_that_loses_completions_does_not_take_the_arena_with_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its slots never come back; after three such loads it is kept out, and few probes are lost with it."""
    monkeypatch.setattr(orders, "PROBE_SECONDS", 0.005)
    rig.checks_baseline = False
    rig.wraps["pool"] = lambda inner: Dropping(inner, ops=(Op.LOAD,))
    hub = rig.open(ROLES, slots=32)
    for seed in range(8):
        store(hub, chain_of(prompt(1, seed)))
    flushed(hub)
    forget_all(hub)
    for seed in range(8):
        if look(hub, str(seed), chain_of(prompt(1, seed))).tokens:
            load(hub, str(seed))
        hub.release(str(seed))
    assert hub.counts()["leased"] == TRIP_AFTER
    for _ in range(20):
        breaker = hub.jobs.breaker("pool", Op.LOAD)
        breaker._until = 0.0
        hub.wake()
        wait(lambda breaker=breaker: breaker._until > 0.0, "the end of a probe")
    assert hub.counts()["leased"] == TRIP_AFTER + orders.MOST_PROBES


@pytest.mark.parametrize("state", ["asked", "found", "loading", "loaded", "late", "stored", "saving", "gone"])
def test_B08_a_request_that_ends_in_any_state_leaves_nothing(rig: Rig, state: str) -> None:
    ops = {"asked": (Op.FIND,), "loading": (Op.LOAD,), "late": (Op.LOAD,), "saving": (Op.SAVE,)}.get(state, ())
    rig.wraps["pool"] = lambda inner: Hanging(inner, ops=ops)
    hub = rig.open(ROLES, limits={"lookup": "10s"})
    pool = rig.member(hub)
    chain = chain_of(prompt(3))
    pool.broken = state == "saving"
    store(hub, chain)
    if state not in ("saving", "stored"):
        flushed(hub)
        forget_all(hub)
        pool.broken = True
        hub.lookup("a", chain)
    if state == "asked":
        wait(lambda: pool.held, "the question")
    if state in ("found", "loading", "loaded", "late"):
        look(hub, "a", chain)
    if state in ("loading", "loaded", "late"):
        fetch = hub.fetch("a", computed=0, tokens=48)
    if state in ("loaded", "late"):
        wait(lambda: fetch.over is not None)
    for _ in range(2):
        hub.release("a")
    pool.release()
    wait(lambda: not any(hub.counts().values()), state)
    assert hub.arena.usage()["leased"] == 0


def test_reserved_slots_go_back_when_nothing_is_written(rig: Rig) -> None:
    hub = rig.open()
    chain = chain_of(prompt(3))
    slots = hub.reserve(chain.keys)
    assert hub.counts()["filling"] == 3
    assert hub.run_with_filling(chain.keys) == 3
    assert hub.reserve(chain.keys) == [-1] * 3, "somebody else fills them"
    assert look(hub, "a", chain).tokens == 0, "what is being filled is no hit"
    hub.release("a")
    hub.cancel(slots, chain.keys)
    assert not any(hub.counts().values())
    assert len(store(hub, chain)) == 3


def test_B12_five_hundred_requests_with_random_ends_leave_nothing(rig: Rig) -> None:
    """Shared prefixes, two tiers, an arena that is too small, requests that end at any point."""
    rig.wraps["pool"] = spy
    hub = rig.open(ROLES, slots=24)
    draw = random.Random(5)
    alive: dict[str, Any] = {}
    for number in range(500):
        length = draw.randrange(1, 6)
        tokens = [*prompt(2, seed=draw.randrange(3)), *prompt(length, seed=draw.randrange(3, 9))]
        chain = chain_of(tokens)
        name = f"r{number}"
        hub.lookup(name, chain)
        alive[name] = chain
        if draw.random() < 0.6:
            found = look(hub, name, chain)
            if found.tokens and draw.random() < 0.7:
                hub.fetch(name, computed=0, tokens=found.tokens)
        if draw.random() < 0.5:
            store(hub, chain)
        if draw.random() < 0.1:
            mine = [(slot, key) for slot, key in zip(hub.reserve(chain.keys), chain.keys, strict=True) if slot >= 0]
            hub.cancel([slot for slot, _ in mine], [key for _, key in mine])
        while len(alive) > 6:
            hub.release(alive.popitem()[0] if draw.random() < 0.5 else next(iter(alive)))
            alive = {name: chain for name, chain in alive.items() if name in hub._searches}
    for name in alive:
        hub.release(name)
    flushed(hub)
    wait(lambda: not any(hub.counts().values()), "the baseline")
    usage = hub.arena.usage()
    assert usage["free"] + usage["idle"] == usage["total"]
    for seed in range(3):
        assert hit(hub, chain_of(prompt(2, seed))) in (0, 16, 32), "and no byte is wrong"
