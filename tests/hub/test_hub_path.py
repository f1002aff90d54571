"""The one path: reserve, commit, look up, fetch, release; what is held while it lasts, and what is left behind it."""

from __future__ import annotations

import pytest

from hub.rig import (
    BLOCK,
    CHUNK,
    Rig,
    batches,
    chain_of,
    flushed,
    forget_all,
    hit,
    keys_of,
    load,
    look,
    prompt,
    spy,
    store,
    wait,
)
from kvhub.errors import MisuseError
from kvhub.testing.faults import Slow, Torn
from kvhub.types import Op


def test_what_was_stored_is_found_in_each_tier_and_counted_where_it_lay(rig: Rig) -> None:
    hub = rig.open()
    chain = chain_of(prompt(4))
    assert len(store(hub, chain)) == 4
    found = look(hub, "a", chain)
    assert (found.tokens, found.chunks, found.tail, found.sources) == (64, 4, 0, (("host", 64),))
    flushed(hub)
    forget_all(hub)
    assert look(hub, "b", chain).sources == (("pool", 64),)
    assert load(hub, "b") == 64
    hub.release("a")
    hub.release("b")
    assert look(hub, "c", chain).sources == (("host", 64),), "what was loaded stays in the host tier"
    hub.release("c")


def test_a_prompt_that_differs_hits_as_far_as_it_agrees(rig: Rig) -> None:
    hub = rig.open()
    tokens = prompt(4)
    store(hub, chain_of(tokens))
    assert hit(hub, chain_of([*tokens[:40], 7, *tokens[41:]])) == 32
    assert hit(hub, chain_of([*tokens, 7, 8])) == 64
    assert hit(hub, chain_of(prompt(4, seed=1))) == 0


def test_runs_that_are_spread_over_tiers_are_put_together(rig: Rig) -> None:
    hub = rig.open()
    chain = chain_of(prompt(6))
    store(hub, chain)
    flushed(hub)
    for key in (chain.keys[1], chain.keys[3]):
        hub.arena.forget(key)
    found = look(hub, "a", chain)
    assert (found.tokens, dict(found.sources)) == (96, {"host": 64, "pool": 32})
    assert load(hub, "a") == 96
    hub.release("a")


def test_a_fetch_without_a_finished_lookup_is_misuse(rig: Rig) -> None:
    hub = rig.open()
    with pytest.raises(MisuseError, match="'stranger' without a finished lookup"):
        hub.fetch("stranger", computed=0, tokens=1)


def test_C20_a_prefix_has_no_hole(rig: Rig) -> None:
    """Once there is no room for a chunk, no later one of the prefix is stored; the next pass fills in the rest."""
    hub = rig.open(slots=4)
    held, chain = chain_of(prompt(3, seed=1)), chain_of(prompt(4))
    store(hub, held)
    look(hub, "holder", held)
    assert store(hub, chain) == chain.keys[:1], "three of four slots are leased"
    assert hit(hub, chain) == CHUNK
    assert hub.reports.total("reserve_full") == 3
    hub.release("holder")
    flushed(hub)
    assert store(hub, chain) == chain.keys[1:]
    assert hit(hub, chain) == 64


@pytest.mark.parametrize("local", [0, 2, 4])
def test_B01_a_lookup_that_nobody_loads_holds_nothing_for_ever(rig: Rig, local: int) -> None:
    hub = rig.open(slots=4)
    chain = chain_of(prompt(4))
    store(hub, chain)
    for number in range(50):
        look(hub, f"r{number}", chain, computed=local * CHUNK)
        hub.release(f"r{number}")
    flushed(hub)
    assert len(store(hub, chain_of(prompt(4, seed=1)))) == 4
    assert flushed(hub).counts()["leased"] == 0


def test_B03_releasing_twice_takes_nothing_from_others(rig: Rig) -> None:
    hub = rig.open(slots=2)
    chain = chain_of(prompt(2))
    store(hub, chain)
    flushed(hub)
    look(hub, "r1", chain)
    look(hub, "r2", chain)
    for _ in range(3):
        hub.release("r1")
    assert hub.counts()["leased"] == 2
    assert store(hub, chain_of(prompt(2, seed=1))) == [], "r2 still holds both slots"
    assert load(hub, "r2") == 32
    hub.release("r2")


def test_B04_asking_again_holds_once(rig: Rig) -> None:
    hub = rig.open()
    chain = chain_of(prompt(3))
    store(hub, chain)
    flushed(hub)
    answers = {id(look(hub, "a", chain)) for _ in range(40)}
    assert len(answers) == 1
    slots = hub._searches["a"].slots.values()
    assert [hub.arena._leases[slot] for slot in slots] == [1, 1, 1]
    hub.release("a")
    assert hub.counts()["leased"] == 0


def test_B05_loads_that_end_after_their_request_are_freed(rig: Rig) -> None:
    """Late and cancelled loads: their slots come back, and the arena's books agree with themselves."""
    rig.wraps["pool"] = lambda inner: Slow(inner, 0.1, ops=(Op.LOAD,))
    roles = {"both": {"store": ["host", "pool"], "retrieve": ["host", {"from": "pool", "deadline": "20ms"}]}}
    hub = rig.open(roles)
    chain = chain_of(prompt(40))
    store(hub, chain)
    flushed(hub)
    forget_all(hub)
    for number in range(20):
        part = chain_of(prompt(40)[: (number + 1) * 2 * CHUNK])
        hub.lookup(f"r{number}", part)
        if number % 2:
            look(hub, f"r{number}", part)
            hub.fetch(f"r{number}", computed=0, tokens=part.tokens)
        hub.release(f"r{number}")
    wait(lambda: not any(hub.counts().values()), "slots of late loads")
    usage = hub.arena.usage()
    assert usage["leased"] == 0
    assert usage["free"] + usage["idle"] == usage["total"]
    assert len(hub.arena.keys()) == usage["idle"]


def test_A09_chunks_that_vanish_after_the_lookup_shorten_the_load(rig: Rig) -> None:
    hub = rig.open()
    chain = chain_of(prompt(4))
    store(hub, chain)
    flushed(hub)
    forget_all(hub)
    assert look(hub, "a", chain).tokens == 64
    name = chain.keys[2].hex()
    next((rig.root / "pool").rglob(f"{name}.kv")).unlink()
    assert load(hub, "a") == 32
    hub.release("a")
    assert hub.reports.total("short_fetches") == 1


@pytest.mark.parametrize("how", ["flip", "short"])
def test_A13_A30_one_bad_chunk_ends_the_run_for_everyone_who_shares_it(rig: Rig, how: str) -> None:
    """A bit flipped on the medium, or a load that comes short: neither request is told of chunk 2 or what follows."""
    if how == "short":
        rig.wraps["pool"] = lambda inner: Torn(inner, "short")
    hub = rig.open()
    chain = chain_of(prompt(4))
    store(hub, chain)
    flushed(hub)
    forget_all(hub)
    if how == "flip":
        path = next((rig.root / "pool").rglob(f"{chain.keys[2].hex()}.kv"))
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    assert {look(hub, name, chain).tokens for name in "ab"} == {64}
    assert [load(hub, name) for name in "ab"] == ([32, 32] if how == "flip" else [0, 0])
    for name in "ab":
        hub.release(name)
    assert hub.reports.total("faults", member="pool") >= 1
    if how == "flip":
        assert hit(hub, chain) == 32, "and the damaged file is gone"
        assert not path.exists()


@pytest.mark.parametrize(("computed", "read"), [(0, 8), (CHUNK * 4, 4), (CHUNK * 4 + BLOCK, 4), (CHUNK * 8, 0)])
def test_D13_only_chunks_that_the_engine_lacks_are_read(rig: Rig, computed: int, read: int) -> None:
    rig.wraps["pool"] = spy
    hub = rig.open()
    chain = chain_of(prompt(8))
    store(hub, chain)
    flushed(hub)
    forget_all(hub)
    pool = rig.member(hub)
    look(hub, "a", chain, computed=computed)
    assert load(hub, "a", computed=computed) == 8 * CHUNK
    assert keys_of(pool, Op.LOAD) == chain.keys[8 - read :]
    hub.release("a")


def test_D13_no_more_is_read_than_the_engine_wants(rig: Rig) -> None:
    rig.wraps["pool"] = spy
    hub = rig.open()
    chain = chain_of(prompt(8))
    store(hub, chain)
    flushed(hub)
    forget_all(hub)
    assert look(hub, "a", chain, limit=5 * CHUNK + 3).tokens == 5 * CHUNK
    assert load(hub, "a", tokens=3 * CHUNK) == 3 * CHUNK
    assert keys_of(rig.member(hub), Op.LOAD) == chain.keys[:3]
    hub.release("a")


@pytest.mark.parametrize("free", [0, 1, 3])
def test_D11_a_full_host_tier_still_lends_room_to_loads(rig: Rig, free: int) -> None:
    """Idle chunks make room; leased ones do not, and then the load is as long as there is room, without waiting."""
    hub = rig.open(slots=4)
    wanted, others = chain_of(prompt(2)), chain_of(prompt(4, seed=1))
    store(hub, wanted)
    flushed(hub)
    store(hub, others)
    flushed(hub)
    assert hub.arena.usage()["free"] == 0
    look(hub, "holder", chain_of(prompt(4, seed=1)[: (4 - free) * CHUNK]))
    assert look(hub, "a", wanted).tokens == 32
    assert load(hub, "a") == min(free, 2) * CHUNK
    hub.release("a")
    hub.release("holder")


def test_D03_a_load_that_ended_is_visible_whatever_stands_before_it(rig: Rig) -> None:
    class Stopped(Slow):
        """Only the loads of one key are quick."""

        def _end(self, batch, done):  # type: ignore[no-untyped-def]
            return [done] if quick in batch.keys else super()._end(batch, done)

    chains = [chain_of(prompt(1, seed=number)) for number in range(10)]
    quick = chains[-1].keys[0]
    rig.wraps["pool"] = lambda inner: Stopped(inner, 0.3, ops=(Op.LOAD,))
    hub = rig.open()
    for chain in chains:
        store(hub, chain)
    flushed(hub)
    forget_all(hub)
    for number, chain in enumerate(chains):
        look(hub, str(number), chain)
    fetches = [hub.fetch(str(number), computed=0, tokens=CHUNK) for number in range(10)]
    wait(lambda: fetches[-1].over is not None)
    assert fetches[-1].over == CHUNK
    assert {fetch.over for fetch in fetches[:-1]} == {None}
    for number in range(10):
        hub.release(str(number))


def test_C22_keys_are_asked_for_in_batches_and_a_lost_one_is_no_hit_any_more(rig: Rig) -> None:
    rig.wraps["pool"] = spy
    hub = rig.open(slots=80)
    chain = chain_of(prompt(64))
    store(hub, chain)
    flushed(hub)
    forget_all(hub)
    assert look(hub, "a", chain).tokens == 64 * CHUNK
    finds = batches(rig.member(hub), Op.FIND)
    assert [len(batch.keys) for batch in finds] == [64], "one question, and the prompt ends with the chunk"
    for path in (rig.root / "pool").rglob("*.kv"):
        path.unlink()
    assert load(hub, "a") == 0
    hub.release("a")
    assert look(hub, "b", chain).tokens == 0
    hub.release("b")


def test_C22_a_long_miss_costs_one_short_question(rig: Rig) -> None:
    rig.wraps["pool"] = spy
    hub = rig.open()
    assert look(hub, "a", chain_of(prompt(1000))).tokens == 0
    asked = [len(batch.keys) for batch in batches(rig.member(hub), Op.FIND)]
    assert asked == [128, 1], "the first window, and the tail behind nothing"
    hub.release("a")


def test_who_takes_full_chunks_only_asks_for_no_tail(rig: Rig) -> None:
    """Engines that load whole pages have no use for a tail, and finding one would load it."""
    rig.wraps["pool"] = spy
    hub = rig.open()
    assert look(hub, "a", chain_of(prompt(3.5)), tails=False).tokens == 0
    assert [len(batch.keys) for batch in batches(rig.member(hub), Op.FIND)] == [3]
    hub.release("a")


def test_eviction_takes_the_least_recently_used_and_never_what_is_leased(rig: Rig) -> None:
    hub = rig.open({"both": {"store": ["host"], "retrieve": ["host"]}}, slots=4, stores={"host": rig.host(4)})
    chains = [chain_of(prompt(1, seed=number)) for number in range(6)]
    for chain in chains[:4]:
        store(hub, chain)
    look(hub, "lease", chains[0])
    assert hit(hub, chains[1]) == CHUNK, "and so it is younger than 2 and 3"
    for chain in chains[4:]:
        store(hub, chain)
    kept = [number for number, chain in enumerate(chains) if chain.keys[0] in hub.arena]
    assert kept == [0, 1, 4, 5]
    assert load(hub, "lease") == CHUNK
    hub.release("lease")
