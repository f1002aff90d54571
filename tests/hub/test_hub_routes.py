"""Where a role stores and where it retrieves, on every path: what each member was asked, against the table."""

from __future__ import annotations

from typing import Any

import pytest

from hub.rig import Rig, chain_of, flushed, forget_all, hit, load, look, prompt, spy, store, wait
from hub.wire import wires
from kvhub.errors import KvhubError
from kvhub.hub import Hub
from kvhub.testing.faults import Full, Raising
from kvhub.types import Op

ROLES = {
    "prefill": {"store": ["host", "wire"], "retrieve": ["pool", "host"]},
    "decode": {"store": ["host", "pool"], "retrieve": ["host", "wire"]},
}
READS, WRITES = {Op.FIND, Op.LOAD}, {Op.SAVE, Op.REMOVE}
TABLE = {
    ("prefill", "pool"): READS,
    ("prefill", "wire"): set(),
    ("decode", "pool"): WRITES,
    ("decode", "wire"): {Op.LOAD},
}
"""What a role may ask of a member at all."""


def asked(hub: Hub, name: str) -> set[Op]:
    return {batch.op for batch in hub.members[name].batches}


@pytest.fixture
def pair(rig: Rig) -> tuple[Hub, Hub]:
    rig.wraps["pool"] = spy
    return opened(rig)


def opened(rig: Rig) -> tuple[Hub, Hub]:
    rig.plugins["wire"] = wires({})
    more = {
        "stores": {"host": rig.host(), "pool": rig.pool(), "other": rig.pool("other")},
        "transports": {"wire": {"use": "wire"}},
    }
    return rig.open(ROLES, role="prefill", **more), rig.open(ROLES, role="decode", **more)


def turn(prefill: Hub, decode: Hub, tokens: list[int], answer: list[int]) -> int:
    """One turn of a chat; how many of its tokens the prefill had from elsewhere."""
    chain = chain_of(tokens)
    found = look(prefill, "p", chain)
    if found.tokens:
        load(prefill, "p")
    store(prefill, chain)
    peer = prefill.promise(chain.keys)
    prefill.release("p")
    assert peer is not None
    promised = len(chain.keys) * 16
    assert look(decode, "d", chain, peer=peer, promised=promised).tokens == promised
    assert load(decode, "d") == promised
    decode.fulfil(peer)
    decode.release("d")
    whole = chain_of([*tokens, *answer])
    store(decode, whole, generated=1)
    flushed(decode)
    flushed(prefill)
    return found.tokens


def test_E18_a_two_turn_chat_touches_what_the_table_says(rig: Rig, pair: tuple[Hub, Hub]) -> None:
    prefill, decode = pair
    first, answer = prompt(4), prompt(2, seed=1)
    assert turn(prefill, decode, first, answer) == 0
    forget_all(prefill)
    second = [*first, *answer, *prompt(1, seed=2)]
    assert turn(prefill, decode, second, prompt(1, seed=3)) == 96, "prompt and generated tokens, from the pool"
    for (role, name), may in TABLE.items():
        hub = prefill if role == "prefill" else decode
        assert asked(hub, name) == may - {Op.REMOVE}, f"{role} and {name}"
    for hub in pair:
        assert "other" not in hub.members, "nobody's list names it, so it is not even opened"
    assert list((rig.root / "other").iterdir()) == []


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_E18_a_probe_goes_only_where_the_role_goes(rig: Rig, role: str) -> None:
    """A member that is only retrieved from is probed by a read, one that is only stored to by a write."""
    rig.wraps["pool"] = lambda inner: Raising(inner, OSError("down")) if role == "prefill" else Full(inner)
    prefill, decode = opened(rig)
    hub = prefill if role == "prefill" else decode
    op = Op.LOAD if role == "prefill" else Op.SAVE
    for seed in range(4):
        hit(hub, chain_of(prompt(1, seed + 10))) if op is Op.LOAD else store(hub, chain_of(prompt(1, seed)))
    wait(lambda: not hub.jobs.breaker("pool", op).closed, "the breaker")
    pool = hub.members["pool"]
    before = len(pool.batches)
    pool.broken = False
    hub.jobs.breaker("pool", op)._until = 0.0
    hub.wake()
    wait(lambda: hub.jobs.breaker("pool", op).closed, "the probe")
    wait(lambda: hub.jobs.pending() == 0)
    probes = [batch.op for batch in pool.batches[before:]]
    assert probes == ([Op.LOAD] if role == "prefill" else [Op.SAVE, Op.REMOVE])
    assert asked(hub, "pool") <= TABLE[role, "pool"]
    assert not list((rig.root / "pool").rglob("*.kv")), "and what a probe wrote is gone"


def test_E18_a_role_that_only_retrieves_changes_no_file_of_the_pool(rig: Rig) -> None:
    rig.wraps["pool"] = spy
    prefill, _ = opened(rig)
    home = next(path for path in (rig.root / "pool").iterdir())
    before = {path for path in home.rglob("*") if path.is_file()}
    for seed in range(3):
        look(prefill, str(seed), chain_of(prompt(2, seed)))
        store(prefill, chain_of(prompt(2, seed)))
        prefill.release(str(seed))
    flushed(prefill)
    assert {path for path in home.rglob("*") if path.is_file()} == before


def test_E18_promotion_is_a_write_of_its_own_and_goes_nowhere_else(rig: Rig) -> None:
    rig.wraps |= dict.fromkeys(("pool", "cold", "third"), spy)
    stores = {"host": rig.host(), **{name: rig.pool(name) for name in ("pool", "cold", "third")}}
    route = {
        "prefill": {"store": ["host"], "retrieve": ["host", "pool", {"from": "cold", "promote": ["pool"]}, "third"]},
        "decode": {"store": ["cold", "third"], "retrieve": ["pool", "cold", "third"]},
    }
    decode = rig.open(route, role="decode", stores=stores)
    chain = chain_of(prompt(3))
    store(decode, chain)
    flushed(decode)
    prefill = rig.open(route, role="prefill", stores=stores)
    assert hit(prefill, chain) == 48
    flushed(prefill)
    assert asked(prefill, "cold") == READS
    assert asked(prefill, "pool") == {Op.FIND, Op.SAVE}
    assert asked(prefill, "third") <= {Op.FIND}
    assert {name: asked(decode, name) for name in stores if name in decode.members and name != "host"} == {
        "pool": set(), "cold": {Op.SAVE}, "third": {Op.SAVE},
    }  # fmt: skip


def test_E18_without_a_host_tier_in_the_store_list_nothing_stays_in_this_process(rig: Rig) -> None:
    route = {"both": {"store": ["pool"], "retrieve": ["pool"]}}
    hub = rig.open(route, stores={"pool": rig.pool()}, limits={"staging": "256KiB"})
    chain = chain_of(prompt(3))
    store(hub, chain)
    flushed(hub)
    wait(lambda: hub.arena.usage()["free"] == hub.arena.usage()["total"], "the staging slots")
    assert look(hub, "a", chain).sources == (("pool", 48),)
    assert load(hub, "a") == 48
    hub.release("a")
    assert hub.arena.keys() == []


def test_E18_a_role_that_is_not_in_the_file_does_not_start(rig: Rig) -> None:
    with pytest.raises(KvhubError, match="has no role 'decode', which was asked for"):
        rig.open(role="decode")


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_E16_a_transport_is_offered_or_pulled_from_as_the_role_says(rig: Rig, pair: Any, role: str) -> None:
    prefill, decode = pair
    chain = chain_of(prompt(1))
    store(prefill, chain)
    store(decode, chain)
    if role == "prefill":
        peer = prefill.promise(chain.keys)
        assert peer is not None
        assert peer.incarnation == prefill.incarnation
        prefill.offers.fulfilled(peer.promise)
    else:
        assert decode.promise(chain.keys) is None
