"""Background stores: bounded, in order where order matters, and made up for when they failed."""

from __future__ import annotations

import time
from typing import Any

import attrs
import pytest

from hub.rig import (
    CHUNK,
    CHUNK_BYTES,
    LAYOUT,
    SLOT_BYTES,
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
from kvhub.hub import Hub
from kvhub.keys import Chain
from kvhub.tail import write_trailer
from kvhub.testing.faults import Faulty, Full, Hanging, Slow
from kvhub.types import Completion, Held, Op, Outcome


class Rejecting(Faulty):
    """Has no room for some keys, once each."""

    def __init__(self, inner: Any, *keys: bytes) -> None:
        super().__init__(inner, ops=(Op.SAVE,))
        self.keys = set(keys)

    def _end(self, batch: Any, done: Completion) -> list[Completion]:
        outcomes = [
            Outcome.FULL if key in self.keys else end for key, end in zip(batch.keys, done.outcomes, strict=True)
        ]
        return [attrs.evolve(done, outcomes=tuple(outcomes))]

    def _submit(self, batch: Any) -> None:
        kept = [at for at, key in enumerate(batch.keys) if key not in self.keys]
        if len(kept) == len(batch.keys):
            self.inner.submit(batch)
            return
        one = kept[0]  # the others' outcomes are made up, and so nothing of the rejected is written
        self.inner.submit(
            attrs.evolve(
                batch, keys=tuple(batch.keys[at] if at in kept else batch.keys[one] for at in range(len(batch.keys))),
                slots=tuple(batch.slots[at] if at in kept else batch.slots[one] for at in range(len(batch.keys))),
            )
        )  # fmt: skip


def roles(**pool: Any) -> dict[str, Any]:
    return {"both": {"store": ["host", {"to": "pool", **pool}], "retrieve": ["host", "pool"]}}


def commit_tail(hub: Hub, chain: Chain, tokens: int, mark: int) -> None:
    """Keep the tail that ends with token `tokens`; its KV is `mark`s."""
    full, rest = divmod(tokens, CHUNK)
    slot = hub.reserve_private()
    view = hub.arena.region.slot(slot)
    view[: LAYOUT.payload_bytes(rest)] = bytes([mark]) * LAYOUT.payload_bytes(rest)
    length = write_trailer(view, LAYOUT, chain.digests(full, rest))
    hub.commit([(chain.tail_key(full), Held(slot, length, "", 1))], replace=True)


# -- bounds


def test_B21_bytes_that_wait_for_a_store_are_bounded_and_the_rest_is_shed(rig: Rig) -> None:
    rig.wraps["pool"] = lambda inner: Hanging(inner, ops=(Op.SAVE,))
    hub = rig.open(limits={"queue": 8 * CHUNK_BYTES}, slots=64)
    most = 0
    for seed in range(20):
        store(hub, chain_of(prompt(2, seed)))
        most = max(most, hub.jobs._queues["pool"].bytes)
    assert most == 8 * CHUNK_BYTES
    wait(lambda: hub.reports.total("faults", member="pool", reason="queue") == 32)
    wait(lambda: hub.counts()["leased"] == 8, "slots of what was shed")
    assert hub.jobs.breaker("pool", Op.SAVE).closed
    rig.member(hub).release()
    flushed(hub)
    store(hub, chain_of(prompt(2, 50)))
    flushed(hub)
    forget_all(hub)
    assert hit(hub, chain_of(prompt(2, 50))) == 32, "and it takes again"


@pytest.mark.alone
def test_B21_nothing_spins_while_a_store_is_slow(rig: Rig) -> None:
    rig.wraps["pool"] = lambda inner: Hanging(inner, ops=(Op.SAVE,))
    hub = rig.open(limits={"queue": 4 * CHUNK_BYTES})
    for seed in range(6):
        store(hub, chain_of(prompt(2, seed)))
    wait(lambda: hub.reports.total("faults", reason="queue") == 8)
    clock = time.pthread_getcpuclockid(hub.pump.ident or 0)
    before = time.clock_gettime(clock)
    time.sleep(0.4)
    assert time.clock_gettime(clock) - before < 0.1


def test_B18_a_thousand_commits_into_a_hung_store_return_at_once(rig: Rig) -> None:
    rig.wraps["pool"] = lambda inner: Hanging(inner, ops=(Op.SAVE,))
    hub = rig.open(limits={"queue": 4 * CHUNK_BYTES}, slots=32)
    took = []
    for seed in range(200):
        chain = chain_of(prompt(1, seed))
        start = time.thread_time()
        store(hub, chain)
        took.append(time.thread_time() - start)
    took.sort()
    assert took[197] < 0.005
    assert hub.jobs._queues["pool"].bytes <= 4 * CHUNK_BYTES


def test_B18_a_burst_of_small_orders_does_not_keep_a_good_store_out(rig: Rig) -> None:
    """Many requests that end in one step: more orders than a store queues.  Some are shed, the store stays in."""
    hub = rig.open(slots=512)
    for seed in range(400):
        store(hub, chain_of(prompt(1, seed)))
    flushed(hub)
    assert hub.jobs.breaker("pool", Op.SAVE).closed
    assert hub.reports.total("member_changes") == 0
    shed, saved = hub.reports.total("save_full", member="pool"), hub.reports.total("save_done", member="pool")
    assert shed + saved == 400


# -- what failed is made up for


def test_C20_a_hole_that_a_store_left_is_filled_by_the_next_pass(rig: Rig) -> None:
    chain = chain_of(prompt(4))
    rig.wraps["pool"] = lambda inner: Rejecting(inner, chain.keys[1])
    hub = rig.open()
    store(hub, chain)
    flushed(hub)
    forget_all(hub)
    assert hit(hub, chain) == CHUNK, "what is behind the hole is out of reach, and harmless"
    rig.member(hub).broken = False
    store(hub, chain)
    flushed(hub)
    forget_all(hub)
    assert hit(hub, chain) == 64


@pytest.mark.parametrize("how", ["full", "shed"])
def test_C20_what_a_store_did_not_take_is_offered_when_it_is_used_again(rig: Rig, how: str) -> None:
    """The chunk is in the host tier, so nobody computes it anew; being asked for is enough."""
    rig.wraps["pool"] = Full if how == "full" else lambda inner: Hanging(inner, ops=(Op.SAVE,))
    hub = rig.open(limits={"queue": CHUNK_BYTES})
    if how == "shed":
        store(hub, chain_of(prompt(1, seed=9)))
    chain = chain_of(prompt(2))
    store(hub, chain)
    wait(lambda: hub.sinks._owed.keys() >= set(chain.keys), "the store's refusal")
    if how == "full":
        rig.member(hub).broken = False
    else:
        rig.member(hub).release()
        flushed(hub)
    assert store(hub, chain) == [], "both are in the host tier"
    wait(lambda: not hub.sinks._owed, "the second try")
    flushed(hub)
    forget_all(hub)
    assert hit(hub, chain) == 32


def test_what_a_store_has_is_not_offered_again(rig: Rig) -> None:
    rig.wraps["pool"] = spy
    hub = rig.open()
    chain = chain_of(prompt(2))
    for _ in range(3):
        store(hub, chain)
        flushed(hub)
    assert keys_of(rig.member(hub), Op.SAVE) == chain.keys


# -- conditions


def test_D10_when_uses_2_only_what_comes_twice_is_stored(rig: Rig) -> None:
    rig.wraps["pool"] = spy
    hub = rig.open(roles(when={"uses": 2}), slots=256)
    chains = [chain_of(prompt(2, seed)) for seed in range(50)]
    for chain in [*chains, *chains[:5]]:
        store(hub, chain)
    flushed(hub)
    wanted = [key for chain in chains[:5] for key in chain.keys]
    assert sorted(keys_of(rig.member(hub), Op.SAVE)) == sorted(wanted)
    for chain in chains[:5]:
        store(hub, chain)
    flushed(hub)
    assert len(keys_of(rig.member(hub), Op.SAVE)) == 10, "once each"
    assert len(batches(rig.member(hub), Op.SAVE)) == 5, "and one order per prompt"


def test_D10_uses_are_remembered_when_the_host_tier_lost_the_chunk(rig: Rig) -> None:
    rig.wraps["pool"] = spy
    hub = rig.open(roles(when={"uses": 2}))
    chain = chain_of(prompt(2))
    store(hub, chain)
    forget_all(hub)
    store(hub, chain)
    flushed(hub)
    assert keys_of(rig.member(hub), Op.SAVE) == chain.keys


@pytest.mark.parametrize(
    ("write_back", "stored"), [(["prompt"], 1), (["generated"], 1), (["prompt", "generated"], 2)], ids=str
)
def test_F11_write_back_says_whose_tokens_are_stored(rig: Rig, write_back: list[str], stored: int) -> None:
    rig.wraps["pool"] = spy
    hub = rig.open({"both": {"store": ["host", "pool"], "retrieve": ["host", "pool"], "write_back": write_back}})
    chain = chain_of(prompt(2))
    store(hub, chain, 1)
    store(hub, chain, first=1, generated=3)
    flushed(hub)
    saves = batches(rig.member(hub), Op.SAVE)
    assert len(saves) == stored
    wanted = {"prompt": (0,), "generated": (3,)}
    assert [batch.generated for batch in saves] == [wanted[part] for part in write_back]


# -- promotion


def tiers(rig: Rig) -> dict[str, Any]:
    return {"host": rig.host(), "pool": rig.pool(), "cold": rig.pool("cold")}


def test_a_hit_of_a_lower_tier_is_promoted_where_the_step_says_so(rig: Rig) -> None:
    rig.wraps |= {"pool": spy, "cold": spy}
    route = {"store": ["host", "cold"], "retrieve": ["host", "pool", {"from": "cold", "promote": ["pool"]}]}
    hub = rig.open({"both": route}, stores=tiers(rig))
    chain = chain_of(prompt(3))
    store(hub, chain)
    flushed(hub)
    assert keys_of(hub.members["pool"], Op.SAVE) == []
    forget_all(hub)
    assert look(hub, "a", chain).sources == (("cold", 48),)
    assert load(hub, "a") == 48
    hub.release("a")
    flushed(hub)
    assert keys_of(hub.members["pool"], Op.SAVE) == chain.keys
    assert keys_of(hub.members["cold"], Op.SAVE) == chain.keys, "and not back to where it came from"
    forget_all(hub)
    assert look(hub, "b", chain).sources == (("pool", 48),)
    hub.release("b")


def test_without_a_word_of_promotion_a_hit_moves_nothing_down(rig: Rig) -> None:
    rig.wraps |= {"pool": spy, "cold": spy}
    route = {"store": ["host", "pool", "cold"], "retrieve": ["host", "pool", "cold"]}
    hub = rig.open({"both": route}, stores=tiers(rig))
    chain = chain_of(prompt(3))
    store(hub, chain)
    flushed(hub)
    forget_all(hub)
    assert hit(hub, chain) == 48
    flushed(hub)
    assert [len(keys_of(hub.members[name], Op.SAVE)) for name in ("pool", "cold")] == [3, 3]


# -- tails


def test_F11_a_tail_is_found_behind_the_last_full_chunk(rig: Rig) -> None:
    hub = rig.open()
    tokens = prompt(2.5)
    chain = chain_of(tokens)
    store(hub, chain)
    commit_tail(hub, chain, 40, mark=7)
    flushed(hub)
    forget_all(hub)
    follow = chain_of([*tokens[:38], 1, 2, 3, *prompt(1, seed=1)])
    found = look(hub, "a", follow)
    assert (found.tokens, found.chunks, found.tail, found.sources) == (38, 2, 6, (("pool", 38),))
    assert load(hub, "a") == 38
    hub.release("a")
    assert look(hub, "b", follow).sources == (("host", 38),)
    hub.release("b")


def test_F11_tails_replace_each_other_in_the_order_of_their_ends(rig: Rig) -> None:
    """A slow store has two under way at once at most; what stays is the latest, whatever ended when."""
    rig.wraps["pool"] = lambda inner: Slow(inner, 0.05, ops=(Op.SAVE,))
    hub = rig.open()
    chain = chain_of(prompt(1))
    for tokens in range(1, 12):
        commit_tail(hub, chain, tokens, mark=tokens)
    wait(lambda: hub.flush(1.0) and not hub.sinks.waiting())
    saves = batches(rig.member(hub), Op.SAVE)
    assert [batch.replace for batch in saves] == [True] * len(saves)
    assert len(saves) == 2, "the first, and the last of those that came meanwhile"
    forget_all(hub)
    found = look(hub, "a", chain, limit=15)
    assert found.tail == 11
    fetch = hub.fetch("a", computed=0, tokens=15)
    wait(lambda: fetch.over)
    held = fetch.helds[0]
    assert bytes(hub.arena.region.slot(held.slot, 4)) == bytes([11]) * 4
    hub.release("a")


def test_F11_closing_waits_for_the_last_tail(rig: Rig) -> None:
    rig.wraps["pool"] = lambda inner: Slow(inner, 0.1, ops=(Op.SAVE,))
    hub = rig.open()
    chain = chain_of(prompt(1))
    for tokens in range(1, 8):
        commit_tail(hub, chain, tokens, mark=tokens)
    hub.close(grace=10.0)
    rig.hubs.clear()
    rig.wraps.clear()
    again = rig.open()
    assert look(again, "a", chain, limit=15).tail == 7
    again.release("a")


def test_a_tail_that_agrees_with_nothing_is_given_back(rig: Rig) -> None:
    hub = rig.open()
    chain = chain_of(prompt(1))
    commit_tail(hub, chain, 10, mark=1)
    flushed(hub)
    forget_all(hub)
    found = look(hub, "a", chain_of(prompt(1, seed=1)))
    assert (found.tokens, found.tail) == (0, 0)
    hub.release("a")
    assert not any(hub.counts().values())


def test_a_file_that_is_no_tail_under_a_tail_s_key_is_a_miss(rig: Rig) -> None:
    hub = rig.open()
    chain = chain_of(prompt(1.5))
    slot = hub.reserve_private()
    hub.arena.region.slot(slot)[:] = b"\x55" * SLOT_BYTES
    hub.commit([(chain.tail_key(1), Held(slot, 300))], replace=True)
    store(hub, chain)
    flushed(hub)
    for empty in (False, True):
        if empty:
            forget_all(hub)
        assert hit(hub, chain) == CHUNK
