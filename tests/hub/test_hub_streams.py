"""Pulls of what is still being computed: waited for, piece by piece, as long as somebody may still bring it."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from hub.rig import CHUNK, CHUNK_BYTES, LAYOUT, Rig, batches, chain_of, load, look, prompt, store, wait, write
from hub.test_hub_offers import PREFILL, Answers
from hub.wire import wires
from kvhub.hub import Hub
from kvhub.keys import Chain
from kvhub.observe import Reports
from kvhub.pump import Pump
from kvhub.testing.faults import Hanging
from kvhub.types import Held, Op, Peer

EVER = 60.0


@pytest.fixture
def pair(rig: Rig) -> Any:
    """Opens the two hubs of a PD pair; a piece is two chunks."""
    rig.plugins["wire"] = wires(rig.wraps)

    def pair(deadline: str = "20s", slots: int = 64, **limits: Any) -> tuple[Hub, Hub]:
        decode = {"store": ["host", "pool"], "retrieve": ["host", {"from": "wire", "deadline": deadline}]}
        more = {
            "transports": {"wire": {"use": "wire"}},
            "limits": {"stream_chunks": 2, "stream_grace": "10s", **limits},
        }
        roles = {"prefill": PREFILL, "decode": decode}
        prefill = rig.open(roles, role="prefill", stores={"host": rig.host(), "pool": rig.pool()}, **more)
        return prefill, rig.open(roles, role="decode", stores={"host": rig.host(slots), "pool": rig.pool()}, **more)

    return pair


def streaming(prefill: Hub, name: str = "s") -> Peer:
    return Peer(prefill.members["wire"].address(), prefill.incarnation, name, streaming=True)


def memory(rig: Rig) -> Hub:
    """A hub that stores nothing in the background: every lease is somebody's."""
    return rig.open({"both": {"store": ["host"], "retrieve": ["host"]}}, stores={"host": rig.host()})


def bring(hub: Hub, chain: Chain, first: int, last: int, name: str = "s") -> None:
    """What a prefill does step by step."""
    keys = chain.keys[first:last]
    slots = hub.reserve(keys)
    hub.offers.brought(name, last)
    for key, slot in zip(keys, slots, strict=True):
        write(hub, slot, key)
        hub.commit([(key, Held(slot, CHUNK_BYTES))])


# -- prefill


@pytest.mark.parametrize("end", ["brought", "no room", "broken off", "finished", "late"])
def test_B09_a_pull_waits_for_a_stream_as_long_as_it_may_bring_the_chunk(rig: Rig, end: str) -> None:
    hub = rig.open()
    chain = chain_of(prompt(3))
    assert hub.offers.announce("s", chain.keys)
    answers = Answers()
    ticket = hub.offers.take(chain.keys[:2], time.monotonic() + (0.1 if end == "late" else EVER), answers)
    bring(hub, chain, 0, 1)
    assert answers.got == [], "the second chunk is to come"
    if end == "brought":
        slots = hub.reserve(chain.keys[1:2])
        hub.offers.brought("s", 2)
        assert answers.got == [], "it is being filled"
        hub.commit([(chain.keys[1], Held(slots[0], CHUNK_BYTES))])
    elif end == "no room":
        hub.offers.brought("s", 2)
    elif end == "broken off":
        hub.offers.break_off("s")
    elif end == "finished":
        hub.offers.promise(chain.keys[:1], EVER, "s")
    wait(lambda: answers.got, "an answer")
    assert answers.lengths == [[CHUNK_BYTES, CHUNK_BYTES if end == "brought" else -1]]
    assert hub.reports.total("streamed_chunks") == {"brought": 2, "no room": 1, "late": 1}.get(end, 0)
    hub.offers.give_back(ticket)
    hub.offers.break_off("s")
    hub.offers.fulfilled("s")


def test_a_pull_is_answered_before_nobody_waits_for_it_any_more(rig: Rig) -> None:
    """What is ready of it still has to cross, and a pull that ends by its deadline would count as the wire's fault."""
    hub = rig.open()
    chain = chain_of(prompt(2))
    hub.offers.announce("s", chain.keys)
    bring(hub, chain, 0, 1)
    answered = threading.Event()
    deadline = time.monotonic() + 1.0
    at: list[float] = []
    ticket = hub.offers.take(chain.keys, deadline, lambda *_: (at.append(time.monotonic()), answered.set())[1])
    assert answered.wait(20)
    assert at[0] >= deadline - 0.11
    assert hub.offers._tickets[ticket].until < deadline
    hub.offers.give_back(ticket)
    hub.offers.break_off("s")


def test_a_stream_leases_what_it_brought_until_its_promise_ends(rig: Rig) -> None:
    hub = memory(rig)
    chain = chain_of(prompt(3))
    store(hub, chain, 1)
    hub.offers.announce("s", chain.keys)
    assert hub.counts()["leased"] == 1, "what was there already"
    bring(hub, chain, 1, 3)
    assert hub.counts()["leased"] == 3
    assert hub.offers.promise(chain.keys, EVER, "s") == "s"
    assert hub.counts()["promises"] == 1
    hub.offers.break_off("s")
    assert hub.counts()["promises"] == 1, "it is a promise like any other now"
    hub.offers.fulfilled("s")
    assert hub.counts()["promises"] == hub.counts()["leased"] == 0


def test_a_stream_that_its_peer_let_go_goes_on_for_others(rig: Rig) -> None:
    """Several samples of one prompt pull under one name: the first to end takes nothing from the others."""
    hub = memory(rig)
    chain = chain_of(prompt(2))
    hub.offers.announce("s", chain.keys)
    hub.offers.fulfilled("s")
    answers = Answers()
    ticket = hub.offers.take(chain.keys, time.monotonic() + EVER, answers)
    bring(hub, chain, 0, 2)
    assert answers.lengths == [[CHUNK_BYTES, CHUNK_BYTES]]
    hub.offers.give_back(ticket)
    assert hub.counts()["leased"] == 0, "nothing is kept for who let go"
    hub.offers.promise(chain.keys, EVER, "s")
    assert hub.counts()["promises"] == 0


def test_a_stream_that_was_let_go_before_it_began_keeps_nothing(rig: Rig) -> None:
    hub = memory(rig)
    chain = chain_of(prompt(2))
    for at in range(5000):
        hub.offers.fulfilled(f"never heard of {at}")
    hub.offers.fulfilled("s")
    hub.offers.announce("s", chain.keys)
    bring(hub, chain, 0, 2)
    assert hub.counts()["leased"] == 0
    hub.offers.promise(chain.keys, EVER, "s")
    assert hub.counts()["promises"] == 0
    assert len(hub.offers._fulfilled) <= 1024, "names come from peers"


def test_a_name_that_is_taken_is_refused(rig: Rig) -> None:
    hub = rig.open()
    chain, other = chain_of(prompt(1)), chain_of(prompt(1, 2))
    assert hub.offers.announce("s", chain.keys)
    assert not hub.offers.announce("s", other.keys)
    hub.offers.break_off("s")
    name = hub.offers.promise(chain.keys, EVER)
    assert not hub.offers.announce(name, other.keys)
    hub.offers.fulfilled(name)
    assert not hub.offers._to_come


# -- decode


def fetching(decode: Hub, chain: Chain, peer: Peer, promised: int) -> Any:
    assert look(decode, "a", chain, peer=peer, promised=promised).tokens == promised
    return decode.fetch("a", computed=0, tokens=promised)


def test_early_chunks_cross_before_late_ones_are_there(rig: Rig, pair: Any) -> None:
    prefill, decode = pair()
    chain = chain_of(prompt(6.5))
    part = chain.part_key(6 * CHUNK + 8)
    prefill.offers.announce("s", [*chain.keys, part])
    fetch = fetching(decode, chain, streaming(prefill), 6 * CHUNK + 8)
    for first in (0, 2, 4):
        bring(prefill, chain, first, first + 2)
        wait(lambda first=first: chain.keys[first + 1] in decode.arena, "a piece")
        assert fetch.over is None
    (slot,) = prefill.reserve([part])
    write(prefill, slot, part, LAYOUT.payload_bytes(8))
    prefill.offers.promise([*chain.keys, part], EVER, "s")
    assert fetch.over is None, "the last piece is being filled"
    prefill.commit([(part, Held(slot, LAYOUT.payload_bytes(8)))], spread=False)
    wait(lambda: fetch.over is not None, "the end")
    assert fetch.over == 6 * CHUNK + 8
    assert [len(batch.keys) for batch in batches(decode.members["wire"], Op.LOAD)] == [2, 2, 2, 1]
    decode.fulfil(streaming(prefill))
    decode.release("a")


def test_B09_a_stream_that_breaks_off_gives_what_came(rig: Rig, pair: Any) -> None:
    prefill, decode = pair()
    chain = chain_of(prompt(8))
    prefill.offers.announce("s", chain.keys)
    fetch = fetching(decode, chain, streaming(prefill), 8 * CHUNK)
    bring(prefill, chain, 0, 3)
    wait(lambda: chain.keys[1] in decode.arena, "a piece")
    prefill.offers.break_off("s")
    wait(lambda: fetch.over is not None, "the end")
    assert fetch.over == 3 * CHUNK, "the half piece, too"
    decode.release("a")


def test_a_prefill_that_has_not_heard_of_it_is_asked_again(rig: Rig, pair: Any) -> None:
    prefill, decode = pair()
    chain = chain_of(prompt(4))
    fetch = fetching(decode, chain, streaming(prefill), 4 * CHUNK)
    wait(lambda: decode.reports.total("stream_pauses") >= 2, "two misses")
    assert fetch.over is None
    prefill.offers.announce("s", chain.keys)
    wait(lambda: prefill.counts()["tickets"], "a pull that waits")
    bring(prefill, chain, 0, 4)
    wait(lambda: fetch.over is not None, "the end")
    assert fetch.over == 4 * CHUNK
    decode.fulfil(streaming(prefill))
    decode.release("a")
    prefill.offers.break_off("s")


def test_a_prefill_that_never_hears_of_it_costs_the_grace(rig: Rig, pair: Any) -> None:
    prefill, decode = pair(stream_grace="200ms")
    start = time.monotonic()
    fetch = fetching(decode, chain_of(prompt(4)), streaming(prefill), 4 * CHUNK)
    wait(lambda: fetch.over is not None, "the end")
    assert fetch.over == 0
    assert 0.05 < time.monotonic() - start < 5.0
    decode.release("a")


def test_a_prefill_that_is_gone_is_not_asked_again(rig: Rig, pair: Any) -> None:
    prefill, decode = pair()
    peer = Peer(streaming(prefill).address, "another life", "s", streaming=True)
    assert load_stream(decode, chain_of(prompt(4)), peer) == 0
    assert decode.reports.total("stream_pauses") == 0


def load_stream(decode: Hub, chain: Chain, peer: Peer) -> int:
    look(decode, "a", chain, peer=peer, promised=len(chain.keys) * CHUNK)
    got = load(decode, "a")
    decode.release("a")
    return got


def test_B10_a_prefill_that_hangs_costs_one_deadline_not_one_per_piece(rig: Rig, pair: Any) -> None:
    rig.wraps["wire"] = lambda inner: Hanging(inner, ops=(Op.LOAD,))
    prefill, decode = pair(deadline="300ms")
    start = time.monotonic()
    assert load_stream(decode, chain_of(prompt(20)), streaming(prefill)) == 0
    assert 0.3 <= time.monotonic() - start < 2.0
    decode.members["wire"].release()


def test_a_stream_takes_what_there_is_room_for(rig: Rig, pair: Any) -> None:
    prefill, decode = pair(slots=5)
    chain = chain_of(prompt(8))
    store(prefill, chain)
    assert load_stream(decode, chain, streaming(prefill)) == 5 * CHUNK
    assert decode.reports.total("arena_full") == 3


def test_what_is_released_while_it_streams_gives_everything_back(rig: Rig, pair: Any) -> None:
    """Slots of pieces that nobody asked for yet, too, and the pull that still waits at the peer."""
    prefill, decode = pair()
    chain = chain_of(prompt(20))
    prefill.offers.announce("s", chain.keys)
    fetching(decode, chain, streaming(prefill), 20 * CHUNK)
    bring(prefill, chain, 0, 2)
    wait(lambda: chain.keys[1] in decode.arena, "a piece")
    decode.release("a")
    prefill.offers.break_off("s")
    wait(lambda: not decode.counts()["leased"], "nothing leased")
    wait(lambda: not decode.counts()["orders"], "nothing asked for")


# -- the pump


def test_calls_that_wait_are_made_in_their_order() -> None:
    made: list[str] = []
    pump = Pump(lambda: float("inf"), Reports([]))
    pump.start()
    pump.later(0.10, lambda: made.append("last"))
    pump.later(0.02, lambda: made.append("second"))
    pump.call(lambda: made.append("first"), lambda: made.append("next"))
    wait(lambda: len(made) == 4, "all calls")
    assert made == ["first", "next", "second", "last"]
    pump.end(5.0)
    assert not pump.is_alive()
