"""What is promised to peers and lent to transports: leased until it was read, was let go, or its time is over."""

from __future__ import annotations

import time
from typing import Any

import pytest

from hub.rig import (
    CHUNK,
    CHUNK_BYTES,
    LAYOUT,
    Rig,
    chain_of,
    flushed,
    keys_of,
    load,
    look,
    prompt,
    spy,
    store,
    wait,
    write,
)
from hub.wire import wires
from kvhub.hub import Hub
from kvhub.testing.faults import Hanging, Raising
from kvhub.types import Held, Op, Peer

PREFILL = {"store": ["host", "wire"], "retrieve": ["host", "pool"]}


@pytest.fixture
def pair(rig: Rig) -> Any:
    """Opens the two hubs of a PD pair, each with a wire of its own."""
    rig.plugins["wire"] = wires(rig.wraps)

    def pair(deadline: str = "5s", **limits: Any) -> tuple[Hub, Hub]:
        decode = {"store": ["host", "pool"], "retrieve": ["host", {"from": "wire", "deadline": deadline}]}
        more = {
            "stores": {"host": rig.host(), "pool": rig.pool()},
            "transports": {"wire": {"use": "wire"}},
            "limits": limits,
        }
        roles = {"prefill": PREFILL, "decode": decode}
        return rig.open(roles, role="prefill", **more), rig.open(roles, role="decode", **more)

    return pair


def test_a_peer_gets_what_was_promised_and_no_more_than_it_lacks(rig: Rig, pair: Any) -> None:
    prefill, decode = pair()
    chain = chain_of(prompt(4))
    store(prefill, chain)
    store(decode, chain, 2)
    peer = prefill.promise(chain.keys)
    assert peer is not None
    assert prefill.counts()["leased"] == 4
    found = look(decode, "a", chain, peer=peer, promised=64)
    assert dict(found.sources) == {"host": 32, "wire": 32}
    assert load(decode, "a") == 64
    assert keys_of(decode.members["wire"], Op.LOAD) == chain.keys[2:], "only the new suffix crosses the wire"
    assert decode.reports.total("bytes", member="wire") == 2 * CHUNK_BYTES
    decode.fulfil(peer)
    decode.release("a")
    wait(lambda: prefill.counts()["leased"] == 0, "the end of the promise")
    assert prefill.counts()["promises"] == 0


def test_what_a_peer_sent_is_written_back_and_a_part_of_a_chunk_is_not(rig: Rig, pair: Any) -> None:
    rig.wraps["pool"] = spy
    prefill, decode = pair()
    chain = chain_of(prompt(2.5))
    store(prefill, chain)
    part = chain.part_key(40)
    (slot,) = prefill.reserve([part])
    write(prefill, slot, part, LAYOUT.payload_bytes(8))
    prefill.commit([(part, Held(slot, LAYOUT.payload_bytes(8)))], spread=False)
    peer = prefill.promise([*chain.keys, part])
    assert peer is not None
    found = look(decode, "a", chain, peer=peer, promised=40)
    assert (found.tokens, found.tail) == (40, 8)
    assert load(decode, "a") == 40
    decode.fulfil(peer)
    decode.release("a")
    flushed(decode)
    assert keys_of(decode.members["pool"], Op.SAVE) == chain.keys, "a part is of use to this one request"


def test_F10_a_promise_that_nobody_ends_ends_by_itself(rig: Rig, pair: Any) -> None:
    """Three peers were promised something; two come, one has died: after the lease its chunks are free."""
    prefill, decode = pair(lease="300ms")
    chains = [chain_of(prompt(1, seed)) for seed in range(3)]
    for chain in chains:
        store(prefill, chain)
    peers = [prefill.promise(chain.keys) for chain in chains]
    assert prefill.counts()["promises"] == 3
    for number in (0, 1):
        look(decode, str(number), chains[number], peer=peers[number], promised=CHUNK)
        assert load(decode, str(number)) == CHUNK
        decode.fulfil(peers[number])
        decode.release(str(number))
    wait(lambda: prefill.counts()["promises"] == 1, "the two that came")
    assert prefill.counts()["leased"] == 1
    wait(lambda: prefill.counts()["promises"] == 0, "the third")
    assert prefill.counts()["leased"] == 0
    assert prefill.reports.total("promises_expired") == 1


def test_F10_a_wall_clock_that_jumps_ends_no_promise(rig: Rig, pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    prefill, _ = pair(lease="60s")
    store(prefill, chain_of(prompt(1)))
    peer = prefill.promise(chain_of(prompt(1)).keys)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3600.0)
    prefill.offers.expire()
    assert prefill.counts()["promises"] == 1
    prefill.offers.fulfilled(peer.promise if peer else "")


def test_B13_what_was_promised_and_expired_is_an_explicit_failure(rig: Rig, pair: Any) -> None:
    prefill, decode = pair(lease="1ms")
    chain = chain_of(prompt(2))
    store(prefill, chain)
    peer = prefill.promise(chain.keys)
    wait(lambda: prefill.counts()["promises"] == 0)
    for key in chain.keys:
        prefill.arena.forget(key)
    assert look(decode, "a", chain, peer=peer, promised=32).tokens == 32
    assert load(decode, "a") == 0, "and the engine computes"
    decode.release("a")
    for _ in range(3):
        prefill.offers.fulfilled(peer.promise if peer else "")
        prefill.offers.fulfilled("never heard of")
    assert prefill.counts()["leased"] == 0


def test_B12_a_promise_of_nothing_is_none(rig: Rig, pair: Any) -> None:
    prefill, decode = pair()
    peer = prefill.promise([])
    assert peer is not None
    decode.fulfil(peer)
    wait(lambda: prefill.counts()["promises"] == 0, "also a promise of no chunk is let go")
    assert decode.promise(chain_of(prompt(1)).keys) is None, "decode's list has no transport"


def test_B10_a_peer_that_never_answers_costs_the_deadline(rig: Rig, pair: Any) -> None:
    rig.wraps["wire"] = lambda inner: Hanging(inner, ops=(Op.LOAD,))
    prefill, decode = pair(deadline="300ms")
    chain = chain_of(prompt(2))
    store(prefill, chain)
    peer = prefill.promise(chain.keys)
    look(decode, "a", chain, peer=peer, promised=32)
    start = time.monotonic()
    assert load(decode, "a") == 0
    assert 0.3 <= time.monotonic() - start < 1.3
    decode.release("a")
    assert decode.counts()["leased"] == 2, "the peer may still write into these"
    decode.members["wire"].release()
    wait(lambda: decode.counts()["leased"] == 0)
    prefill.offers.fulfilled(peer.promise if peer else "")


@pytest.mark.parametrize("at", ["submit", "poll", "cancel"])
def test_C18_a_transport_that_raises_costs_a_recomputation(rig: Rig, pair: Any, at: str) -> None:
    rig.wraps["wire"] = lambda inner: Raising(inner, ValueError("mine"), at=(at,), ops=(Op.LOAD,))
    prefill, decode = pair(deadline="500ms" if at == "poll" else "5s")
    chain = chain_of(prompt(2))
    store(prefill, chain)
    peer = prefill.promise(chain.keys)
    look(decode, "a", chain, peer=peer, promised=32)
    assert load(decode, "a") == (32 if at == "cancel" else 0)
    decode.release("a")
    prefill.offers.fulfilled(peer.promise if peer else "")


def test_C18_a_transport_whose_other_calls_raise_costs_nothing(rig: Rig, pair: Any) -> None:
    _, decode = pair()
    wire = decode.members["wire"].inner

    def bad(*_: Any) -> None:
        raise OSError("gone")

    wire.connect = wire.fulfil = bad
    peer = Peer("127.0.0.1:1", "i", "p")
    decode.warm_peer(peer)
    decode.fulfil(peer)
    assert decode.reports.total("connect_errors", member="wire") == 1
    assert decode.reports.total("fulfil_errors", member="wire") == 1


# -- what a serving transport is lent


class Answers:
    def __init__(self) -> None:
        self.got: list[tuple[int, list[Held | None]]] = []

    def __call__(self, ticket: int, found: list[Held | None]) -> None:
        self.got.append((ticket, found))

    @property
    def lengths(self) -> list[list[int]]:
        return [[held.length if held else -1 for held in found] for _, found in self.got]


def test_take_answers_at_once_what_is_ready_or_known_to_be_absent(rig: Rig) -> None:
    hub = rig.open()
    chain = chain_of(prompt(3))
    store(hub, chain, 2)
    flushed(hub)
    answers = Answers()
    ticket = hub.offers.take(chain.keys, time.monotonic() + 10.0, answers)
    assert answers.lengths == [[CHUNK_BYTES, CHUNK_BYTES, -1]]
    assert hub.counts()["leased"] == 2
    hub.offers.give_back(ticket)
    hub.offers.give_back(ticket)
    assert hub.counts()["leased"] == 0
    assert hub.counts()["tickets"] == 0


@pytest.mark.parametrize("end", ["committed", "cancelled", "late"])
def test_take_waits_for_chunks_that_are_being_filled(rig: Rig, end: str) -> None:
    hub = rig.open()
    chain = chain_of(prompt(2))
    slots = hub.reserve(chain.keys)
    answers = Answers()
    seconds = 0.05 if end == "late" else 30.0
    ticket = hub.offers.take(chain.keys, time.monotonic() + seconds, answers)
    assert answers.got == []
    chunks = [(key, Held(slot, CHUNK_BYTES)) for key, slot in zip(chain.keys, slots, strict=True)]
    hub.commit(chunks[:1])
    if end == "committed":
        assert answers.got == [], "all or none are told"
        hub.commit(chunks[1:])
        assert answers.lengths == [[CHUNK_BYTES, CHUNK_BYTES]]
    else:
        if end == "cancelled":
            hub.cancel(slots[1:], chain.keys[1:])
        wait(lambda: answers.got, "the answer")
        assert answers.lengths == [[CHUNK_BYTES, -1]]
    hub.offers.give_back(ticket)
    if end == "late":
        hub.cancel(slots[1:], chain.keys[1:])


def test_a_promise_leases_what_comes_later_too(rig: Rig, pair: Any) -> None:
    prefill, _ = pair()
    chain = chain_of(prompt(2))
    slots = prefill.reserve(chain.keys)
    peer = prefill.promise(chain.keys)
    assert prefill.counts()["leased"] == 2, "those of the copies under way"
    prefill.commit([(key, Held(slot, CHUNK_BYTES)) for key, slot in zip(chain.keys, slots, strict=True)])
    assert prefill.counts()["leased"] == 2, "those of the promise"
    prefill.offers.fulfilled(peer.promise if peer else "")
    assert prefill.counts()["leased"] == 0


def test_C18_a_transport_whose_answer_raises_does_not_stop_a_commit(rig: Rig) -> None:
    hub = rig.open()
    chain = chain_of(prompt(1))
    slots = hub.reserve(chain.keys)

    def bad(ticket: int, found: list[Held | None]) -> None:
        raise RuntimeError("mine")

    ticket = hub.offers.take(chain.keys, time.monotonic() + 30.0, bad)
    hub.commit([(chain.keys[0], Held(slots[0], CHUNK_BYTES))])
    flushed(hub)
    wait(lambda: hub.jobs.pending() == 0)
    assert hub.reports.total("ready_errors") == 1
    assert hub.counts()["leased"] == 1, "it may be reading: only its give_back ends that"
    hub.offers.give_back(ticket)


def test_close_gives_back_what_a_transport_forgot(rig: Rig) -> None:
    hub = rig.open()
    chain = chain_of(prompt(1))
    store(hub, chain)
    hub.offers.take(chain.keys, time.monotonic() + 30.0, Answers())
    hub.offers.promise(chain.keys, 60.0)
    hub.offers.close()
    assert hub.offers.counts() == {"promises": 0, "tickets": 0}
