"""Time on the engine's thread: a call works on tables and never waits, however long prompts are and members take.

Measured as CPU time of the calling thread, so that what else runs on the machine does not decide.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from hub.rig import CHUNK, Rig, batches, chain_of, flushed, forget_all, hit, load, look, prompt, spy, store, wait
from hub.wire import wires
from kvhub.hub import Hub
from kvhub.keys import Chain, Context
from kvhub.testing.faults import Hanging, Slow
from kvhub.types import Found, Op, Peer

CALL = 0.001
"""The bound of a call, at the 99th percentile."""
SLACK = 3.0
"""For caches that other processes empty; a call that waits would be off by far more."""


@pytest.fixture(autouse=True)
def _no_garbage() -> Iterator[None]:
    """A full collection of the whole test run's objects would be charged to whichever call sets it off."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Clock:
    """CPU and wall seconds of every call."""

    def __init__(self) -> None:
        self.cpu: list[float] = []
        self.wall: list[float] = []

    @contextmanager
    def call(self) -> Iterator[None]:
        cpu, wall = time.thread_time(), time.perf_counter()
        yield
        self.cpu.append(time.thread_time() - cpu)
        self.wall.append(time.perf_counter() - wall)

    @staticmethod
    def at(values: list[float], share: float) -> float:
        return sorted(values)[min(int(len(values) * share), len(values) - 1)]

    def check(self) -> None:
        assert self.at(self.cpu, 0.99) < CALL * SLACK, f"CPU of {len(self.cpu)} calls"
        assert self.at(self.wall, 0.5) < CALL * SLACK, "half of the calls, by the clock on the wall"


WRAPS: dict[str, Callable[[Any], Any]] = {
    "well": spy,
    "hung": Hanging,
    "slow": lambda inner: Slow(inner, 0.05),
}


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
def test_D01_D16_every_call_of_a_step_returns_at_once(rig: Rig, wrap: Callable[[Any], Any]) -> None:
    rig.wraps["pool"] = wrap
    hub = rig.open(slots=600, limits={"lookup": "50ms"})
    clock = Clock()
    for number in range(60):
        chain = chain_of(prompt(8, seed=number % 20))
        name = f"r{number}"
        with clock.call():
            found = hub.lookup(name, chain)
        for _ in range(3):
            with clock.call():
                found = hub.lookup(name, chain)
        if found is not None:
            with clock.call():
                hub.fetch(name, computed=0, tokens=found.tokens)
        with clock.call():
            slots = hub.reserve(chain.keys)
        with clock.call():
            hub.cancel(
                [slot for slot in slots if slot >= 0], [key for key, s in zip(chain.keys, slots, strict=True) if s >= 0]
            )
        store(hub, chain)
        with clock.call():
            hub.release(name)
    clock.check()


def test_D01_a_lookup_that_needs_io_is_asked_again_and_asks_once(rig: Rig) -> None:
    """Twenty requests wait for a store whose answers take 100 ms; meanwhile each is asked for every few ms."""
    rig.wraps["pool"] = lambda inner: Slow(inner, 0.1, ops=(Op.FIND,))
    hub = rig.open()
    chains = {f"r{seed}": chain_of(prompt(2, seed)) for seed in range(20)}
    for chain in chains.values():
        store(hub, chain)
    flushed(hub)
    forget_all(hub)
    clock = Clock()
    found: dict[str, Found] = {}
    rounds = 0
    while len(found) < 20:
        rounds += 1
        for name, chain in chains.items():
            with clock.call():
                answer = hub.lookup(name, chain)
            if answer is not None:
                found[name] = answer
        time.sleep(0.002)
    assert {answer.tokens for answer in found.values()} == {32}
    assert rounds > 5, "the answers came while the engine went on"
    asked = [batch.keys for batch in batches(rig.member(hub), Op.FIND)]
    assert len(asked) == len(set(asked)) == 20
    clock.check()
    for name in chains:
        hub.release(name)


def test_D01_a_long_prompt_is_keyed_off_the_engine_s_thread(rig: Rig) -> None:
    hub = rig.open(slots=8)
    tokens = list(range(400_000))
    chain = Chain(Context().root(hub.facts.namespace), CHUNK)
    clock = Clock()
    for _ in range(20):
        with clock.call():
            hub.lookup("a", chain, limit=len(tokens), tokens=lambda: tokens)
    assert look(hub, "a", chain).tokens == 0
    assert chain.keys == chain_of(tokens).keys
    clock.check()
    hub.release("a")


def test_D01_tokens_that_cannot_be_keyed_are_a_miss_and_no_endless_wait(rig: Rig) -> None:
    hub = rig.open()
    chain = Chain(Context().root(hub.facts.namespace), CHUNK)
    assert look(hub, "a", chain, computed=CHUNK, limit=99, tokens=lambda: [-1] * 99).tokens <= CHUNK
    assert hub.reports.total("pump_errors", reason="MisuseError") == 1
    hub.release("a")
    assert hit(hub, chain_of(prompt(1))) == 0, "and the pump goes on"


def test_D01_a_prompt_that_was_released_before_it_was_keyed_is_not_keyed_twice(rig: Rig) -> None:
    """Keys of tokens that were appended twice would name KV that is not theirs."""
    hub = rig.open()
    tokens = prompt(4.5)
    chain = Chain(Context().root(hub.facts.namespace), CHUNK)
    with hub.lock:  # the pump waits for it, so both calls are queued before the first runs
        for name in ("a", "a"):
            hub.lookup(name, chain, limit=len(tokens), tokens=lambda: tokens[chain.tokens :])
            hub.release(name)
        hub.lookup("a", chain, limit=len(tokens), tokens=lambda: tokens[chain.tokens :])
    look(hub, "a", chain)
    assert chain.keys == chain_of(tokens).keys
    assert chain.tokens == len(tokens)
    hub.release("a")


def test_D02_a_miss_costs_no_memory_and_at_most_the_lookup_s_bound(rig: Rig) -> None:
    rig.wraps["pool"] = lambda inner: Slow(inner, 0.01, ops=(Op.FIND,))
    hub = rig.open(slots=8, limits={"lookup": "50ms"})
    chain = chain_of(prompt(8))
    store(hub, chain)
    flushed(hub)
    for seed in range(1, 20):
        start = time.monotonic()
        assert look(hub, f"r{seed}", chain_of(prompt(4, seed))).tokens == 0
        took = time.monotonic() - start
        assert took < 1.0
        hub.release(f"r{seed}")
    assert hub.arena.evictions == 0
    assert hub.arena.usage()["idle"] == 8, "nothing had to make room for a miss"
    assert hub.arena.usage()["leased"] == 0


def test_D07_a_prompt_is_one_order_however_many_chunks_it_has(rig: Rig) -> None:
    """What the hub does in Python per chunk is bounded by dictionary work: all I/O is one batch each way."""
    rig.wraps["pool"] = spy
    hub = rig.open(slots=600)
    chain = chain_of(prompt(512))
    start = time.thread_time()
    store(hub, chain)
    assert time.thread_time() - start < 512 * 0.0002
    flushed(hub)
    forget_all(hub)
    assert hit(hub, chain) == 512 * CHUNK
    pool = rig.member(hub)
    assert [len(batch.keys) for batch in batches(pool, Op.SAVE)] == [512]
    assert [len(batch.keys) for batch in batches(pool, Op.LOAD)] == [512]
    assert [len(batch.keys) for batch in batches(pool, Op.FIND)] == [128, 256, 128]


def test_D12_a_new_peer_that_takes_its_time_delays_nobody_else(rig: Rig) -> None:
    rig.plugins["wire"] = wires(rig.wraps)
    rig.wraps["wire"] = lambda inner: Hanging(inner, ops=(Op.LOAD,))
    roles = {
        "prefill": {"store": ["host", "wire"], "retrieve": ["host"]},
        "decode": {"store": ["host"], "retrieve": ["host", {"from": "wire", "deadline": "400ms"}]},
    }
    more = {"stores": {"host": rig.host()}, "transports": {"wire": {"use": "wire"}}}
    hub: Hub = rig.open(roles, role="decode", **more)
    known = chain_of(prompt(2))
    store(hub, known)
    clock = Clock()
    peer = Peer("nowhere:1", "i1", "p")
    with clock.call():
        hub.warm_peer(peer)
    waiting = chain_of(prompt(2, seed=1))
    assert look(hub, "new", waiting, peer=peer, promised=32).tokens == 32
    with clock.call():
        fetch = hub.fetch("new", computed=0, tokens=32)
    for number in range(30):
        with clock.call():
            found = hub.lookup(f"r{number}", known)
        assert found is not None
        assert found.tokens == 32
        assert load(hub, f"r{number}") == 32
        hub.release(f"r{number}")
    assert fetch.over is None
    wait(lambda: fetch.over is not None)
    assert fetch.over == 0
    hub.release("new")
    clock.check()
