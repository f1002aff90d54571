"""A whole hub whose pool is a file system that hangs or is full: requests go on, and the pool comes back by itself."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from hub.rig import Rig, chain_of, flushed, forget_all, hit, look, prompt, store, wait

from faultfs.mount import Faults
from kvhub import breaker, workers
from kvhub.hub import Hub
from kvhub.types import Op

LOOKUP = 0.05
BOUND = 1.0
"""Seconds that a lookup may take on a busy machine; the hang has no end."""


@pytest.fixture
def hub(faults: Faults, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Four prompts are in the pool, none in the host tier."""
    monkeypatch.setattr(workers, "STUCK_SECONDS", 0.2)
    monkeypatch.setattr(breaker, "FIRST_PAUSE", 0.3)
    rig = Rig(faults.root)
    hub = rig.open(limits={"lookup": f"{LOOKUP}s"})
    for seed in range(4):
        store(hub, chain_of(prompt(2, seed)))
    flushed(hub)
    forget_all(hub)
    yield hub
    faults.clear()
    assert rig.close() == {}, "these were not given back"


def timed(hub: Hub, seed: int) -> float:
    start = time.monotonic()
    look(hub, f"r{seed}", chain_of(prompt(2, seed)))
    hub.release(f"r{seed}")
    return time.monotonic() - start


def faults_of(hub: Hub) -> int:
    return hub.reports.total("faults", member="pool")


def test_C19_F07_a_server_that_hangs_is_taken_out_and_let_in_by_its_probe(hub: Hub, faults: Faults) -> None:
    faults.hang("getattr")
    assert [timed(hub, seed) < BOUND for seed in range(4)] == [True] * 4
    wait(lambda: not hub.jobs.breaker("pool", Op.LOAD).closed, "the pool is taken out")
    before = faults.count("getattr")
    assert sorted(timed(hub, 10 + n) for n in range(20))[10] < LOOKUP, "nobody is asked, so nobody is waited for"
    # Probes go on, each bounded; what they may cost is two pools of workers, whatever the time.
    assert faults.count("getattr") - before <= 8
    store(hub, chain_of(prompt(2, 9)))
    faults.clear()
    wait(lambda: hub.jobs.breaker("pool", Op.LOAD).closed, "its probe succeeded")
    forget_all(hub)
    wait(lambda: hit(hub, chain_of(prompt(2, 3))) == 32, "hits again, no longer doubted")


def test_C06_a_full_disk_keeps_stores_out_while_loads_go_on(hub: Hub, faults: Faults) -> None:
    faults.fail("write", "ENOSPC")
    for seed in range(20, 26):
        store(hub, chain_of(prompt(2, seed)))
        flushed(hub)
    assert hub.reports.total("faults", member="pool", reason="ENOSPC") >= breaker.TRIP_AFTER
    assert not hub.jobs.breaker("pool", Op.SAVE).closed
    assert hub.jobs.breaker("pool", Op.LOAD).closed
    assert [hit(hub, chain_of(prompt(2, seed))) for seed in range(4)] == [32] * 4
    writes = faults.count("write")
    store(hub, chain_of(prompt(2, 30)))
    flushed(hub)
    assert faults.count("write") <= writes + 1, "only a probe writes meanwhile"
    faults.clear()
    wait(lambda: hub.jobs.breaker("pool", Op.SAVE).closed, "the probe's success")
    store(hub, chain_of(prompt(2, 31)))
    flushed(hub)
    forget_all(hub)
    assert hit(hub, chain_of(prompt(2, 31))) == 32
