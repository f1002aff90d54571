"""Tiers: what goes down when, and from where nothing is fetched that is computed faster."""

from __future__ import annotations

from typing import Any

import pytest

from hub.rig import (
    CHUNK_BYTES,
    Rig,
    batches,
    chain_of,
    flushed,
    forget_all,
    hit,
    keys_of,
    look,
    prompt,
    spy,
    store,
    wait,
)
from kvhub.demotion import LEAST
from kvhub.rates import AGAIN_AFTER
from kvhub.testing.faults import Hanging, Slow
from kvhub.types import Held, Op

SLOTS = 64


def down(**pool: Any) -> dict[str, Any]:
    return {"both": {"store": ["host", {"to": "pool", **pool}], "retrieve": ["host", "pool"]}}


def up(**pool: Any) -> dict[str, Any]:
    return {"both": {"store": ["host", "pool"], "retrieve": ["host", {"from": "pool", **pool}]}}


# -- write: back


def test_written_back_is_nothing_before_the_host_tier_is_short(rig: Rig) -> None:
    rig.wraps["pool"] = spy
    hub = rig.open(down(write="back"), slots=SLOTS)
    store(hub, chain_of(prompt(SLOTS - LEAST - 1)))
    assert keys_of(rig.member(flushed(hub)), Op.SAVE) == []
    assert hit(hub, chain_of(prompt(4))) == 64, "from the host tier"


def test_a_chunk_is_written_back_before_it_leaves_the_host_tier(rig: Rig) -> None:
    rig.wraps["pool"] = spy
    hub = rig.open(down(write="back"), slots=SLOTS)
    for seed in range(60):
        store(hub, chain_of(prompt(2, seed)))
        flushed(hub)
    saved = keys_of(rig.member(hub), Op.SAVE)
    assert len(saved) == len(set(saved)) >= 120 - SLOTS, "each once"
    evicted = [seed for seed in range(60) if chain_of(prompt(2, seed)).keys[0] not in hub.arena]
    assert len(evicted) >= 25
    assert all(hit(hub, chain_of(prompt(2, seed))) == 32 for seed in evicted)
    assert hub.reports.total("demotions_lost") == 0


def test_the_coldest_go_down_first(rig: Rig) -> None:
    rig.wraps["pool"] = spy
    hub = rig.open(down(write="back"), slots=SLOTS)
    hot = chain_of(prompt(8, 99))
    store(hub, hot)
    for seed in range(20):
        store(hub, chain_of(prompt(2, seed)))
        assert hit(hub, hot) == 128
    assert not set(keys_of(rig.member(flushed(hub)), Op.SAVE)) & set(hot.keys)


def test_a_burst_beyond_what_is_kept_clean_is_counted_as_lost(rig: Rig) -> None:
    rig.wraps["pool"] = lambda inner: Hanging(inner, ops=(Op.SAVE,))
    hub = rig.open(down(write="back"), slots=SLOTS)
    for seed in range(12):
        store(hub, chain_of(prompt(16, seed)))
    wait(lambda: hub.reports.total("demotions_lost", member="pool") > 0)
    assert hub.counts()["leased"] <= SLOTS, "what hangs keeps its slots and no more"


def test_closing_writes_back_what_is_left(rig: Rig) -> None:
    hub = rig.open(down(write="back"), slots=SLOTS)
    store(hub, chain_of(prompt(3)))
    hub.close()
    again = rig.open(down(write="back"), slots=SLOTS)
    assert hit(again, chain_of(prompt(3))) == 48


# -- when


def test_only_the_first_chunks_of_a_prompt_go_where_that_is_asked(rig: Rig) -> None:
    rig.wraps["pool"] = spy
    hub = rig.open(down(when={"prefix_chunks": 2}))
    chain = chain_of(prompt(5))
    slots = hub.reserve(chain.keys)
    hub.commit([(key, Held(slots[at], CHUNK_BYTES, "", 0, at)) for at, key in enumerate(chain.keys)])
    assert set(keys_of(rig.member(flushed(hub)), Op.SAVE)) == set(chain.keys[:2])


@pytest.mark.parametrize("part", ["prompt", "generated"])
def test_only_the_named_part_goes_where_that_is_asked(rig: Rig, part: str) -> None:
    rig.wraps["pool"] = spy
    hub = rig.open(down(when={"part": part}))
    given, made = chain_of(prompt(2, 1)), chain_of(prompt(2, 2))
    store(hub, given)
    store(hub, made, generated=16)
    wanted = given if part == "prompt" else made
    assert set(keys_of(rig.member(flushed(hub)), Op.SAVE)) == set(wanted.keys)


def test_a_store_is_not_asked_for_less_than_its_condition(rig: Rig) -> None:
    rig.wraps["pool"] = spy
    hub = rig.open(up(when={"missing_chunks": 3}))
    for chunks in (2, 3):
        store(hub, chain_of(prompt(chunks, chunks)))
    forget_all(flushed(hub))
    assert hit(hub, chain_of(prompt(2, 2))) == 0
    assert batches(rig.member(hub), Op.FIND) == [], "no tail either"
    assert hit(hub, chain_of(prompt(3, 3))) == 48


def test_D06_a_source_slower_than_computing_is_declined_and_measured_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.wraps["pool"] = lambda inner: Slow(inner, 0.2)
    hub = rig.open(up(when={"faster": True}))
    for seed in range(3):
        store(hub, chain_of(prompt(2, seed)))
    forget_all(flushed(hub))
    assert hit(hub, chain_of(prompt(2, 0))) == 32, "nothing is known yet"
    hub.rates.prefill = 10_000.0
    assert look(hub, "r", chain_of(prompt(2, 1))).tokens == 0, "32 tokens are computed in 3 ms"
    assert hub.reports.total("declined", member="pool", reason="slower") == 2, "chunks"
    hub.release("r")
    now = hub.rates._clock()
    monkeypatch.setattr(hub.rates, "_clock", lambda: now + AGAIN_AFTER + 1)
    assert hit(hub, chain_of(prompt(2, 1))) == 32, "asked once more, to measure it anew"
    hub.rates.prefill = 1.0
    assert hit(hub, chain_of(prompt(2, 2))) == 32, "an engine this slow wants whatever comes"


def test_B21_a_store_that_is_behind_by_more_than_its_seconds_sheds_and_says_so(rig: Rig) -> None:
    rig.wraps["pool"] = lambda inner: Slow(inner, 0.05)
    hub = rig.open(limits={"queue_seconds": "200ms"}, slots=256)
    store(hub, chain_of(prompt(1, 1000)))
    flushed(hub)
    for seed in range(40):
        store(hub, chain_of(prompt(1, seed)))
    wait(lambda: hub.reports.total("faults", member="pool", reason="queue-seconds") > 10)
    assert hub.jobs.breaker("pool", Op.SAVE).closed
    flushed(hub)
    store(hub, chain_of(prompt(1, 2000)))
    forget_all(flushed(hub))
    assert hit(hub, chain_of(prompt(1, 2000))) == 16, "and it takes again"


@pytest.mark.parametrize("policy", ["lru", "s3fifo"])
def test_no_more_goes_down_than_is_about_to_be_lost(rig: Rig, policy: str) -> None:
    """What went down is as cold as before; else the next in line would go too, turn after turn."""
    rig.wraps["pool"] = spy
    host = rig.host(SLOTS) | {"policy": policy}
    hub = rig.open(down(write="back"), stores={"host": host, "pool": rig.pool()})
    store(hub, chain_of(prompt(SLOTS - LEAST + 4)))
    for _ in range(20):
        flushed(hub)
    assert len(keys_of(rig.member(hub), Op.SAVE)) == 4
