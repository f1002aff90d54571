"""Peers that die, hang and come back, in processes of their own, on a real UCX."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from kvhub.testing import make_key, make_payload
from kvhub.types import Key, Op, Outcome

DONE, FAILED, LATE = Outcome.DONE, Outcome.FAILED, Outcome.LATE
COUNT, LENGTH = 24, 1 << 20
Chunks = Callable[..., dict[Key, bytes]]
both_lanes = pytest.mark.parametrize("transports", ["tcp", "auto"])


def _pull(hub: Any, peer: Any, keys: list[Key], seconds: float) -> tuple[Any, float]:
    """(completion, seconds it took) of a LOAD into the first slots."""
    before = time.monotonic()
    batch = hub.driver.submit(Op.LOAD, keys, range(len(keys)), deadline=before + seconds, peer=peer)
    done = hub.driver.wait(batch, seconds + 10.0)
    return done, time.monotonic() - before


def _slots(hub: Any) -> list[bytes]:
    return [hub.driver.bytes_of(slot, LENGTH) for slot in range(COUNT)]


@both_lanes
def test_round_trip_between_processes(open_hub: Any, start_peer: Any, chunks: Chunks, transports: str) -> None:
    kept = chunks(COUNT, LENGTH)
    peer = start_peer(chunks=COUNT, length=LENGTH, transports=transports)
    hub = open_hub(slots=COUNT, slot_bytes=LENGTH, transports=transports)
    done, _ = _pull(hub, peer.peer, [*kept], 20.0)
    assert set(done.outcomes) == {DONE} and done.moved == COUNT * LENGTH
    assert _slots(hub) == [*kept.values()]
    assert hub.counts["bytes_in"] == COUNT * LENGTH


@both_lanes
def test_B07_peer_killed_in_the_middle(open_hub: Any, start_peer: Any, chunks: Chunks, transports: str) -> None:
    """FAILED at once, nothing unverified is called DONE, and the survivor lives."""
    kept = chunks(COUNT, LENGTH)
    peer = start_peer(chunks=COUNT, length=LENGTH, transports=transports, fault="kill", after=COUNT // 2)
    hub = open_hub(slots=COUNT, slot_bytes=LENGTH, transports=transports)
    hub.driver.member.connect(peer.peer)
    batch = hub.driver.submit(Op.LOAD, [*kept], range(COUNT), deadline=time.monotonic() + 20, peer=peer.peer)
    assert peer.wait_ended() == -signal.SIGKILL
    dead = time.monotonic()
    done = hub.driver.wait(batch)
    assert time.monotonic() - dead < 1.0
    assert FAILED in done.outcomes and set(done.outcomes) <= {DONE, FAILED} and done.reason
    for slot, (outcome, data) in enumerate(zip(done.outcomes, kept.values(), strict=True)):
        assert outcome is not DONE or hub.driver.bytes_of(slot, LENGTH) == data


@both_lanes
def test_B17_peer_restarted_on_its_port(open_hub: Any, start_peer: Any, chunks: Chunks, transports: str) -> None:
    """The new incarnation is paired at the first attempt, also after many that were refused meanwhile."""
    kept = chunks(2, 1000)
    hub = open_hub(transports=transports)
    first = start_peer(chunks=2, length=1000, transports=transports)
    assert set(_pull(hub, first.peer, [*kept], 10.0)[0].outcomes) == {DONE}
    first.signal(signal.SIGKILL)
    first.wait_ended()
    for _ in range(5):
        done, took = _pull(hub, first.peer, [*kept], 10.0)
        assert set(done.outcomes) == {FAILED} and done.reason in ("refused", "peer") and took < 1.0
    second = start_peer(
        chunks=2, length=1000, transports=transports, incarnation="second", listen=first.facts["address"]
    )
    assert second.facts["address"] == first.facts["address"]
    done, _ = _pull(hub, second.peer, [*kept], 10.0)
    assert set(done.outcomes) == {DONE}
    done, _ = _pull(hub, first.peer, [*kept], 10.0)
    assert set(done.outcomes) == {FAILED} and done.reason == "incarnation"
    assert set(_pull(hub, second.peer, [*kept], 10.0)[0].outcomes) == {DONE}


@both_lanes
def test_B10_B11_peer_hangs_and_wakes(open_hub: Any, start_peer: Any, chunks: Chunks, transports: str) -> None:
    """LATE at the deadline; what the peer still sends when it wakes never reaches a slot that was handed back."""
    kept = chunks(COUNT, LENGTH)
    peer = start_peer(chunks=COUNT, length=LENGTH, transports=transports, fault="stop", after=COUNT // 2)
    hub = open_hub(slots=COUNT, slot_bytes=LENGTH, transports=transports)
    done, took = _pull(hub, peer.peer, [*kept], 2.0)
    peer.wait_stopped()
    assert LATE in done.outcomes and set(done.outcomes) <= {DONE, LATE} and done.reason == "timeout"
    assert 2.0 <= took < 3.0
    for slot in range(COUNT):
        hub.driver.fill(slot, b"\x5a" * LENGTH)
    peer.continue_()
    time.sleep(0.5)
    assert _slots(hub) == [b"\x5a" * LENGTH] * COUNT
    # The same process answers again, over a new link.
    assert set(_pull(hub, peer.peer, [*kept], 10.0)[0].outcomes) == {DONE}
    assert _slots(hub) == [*kept.values()]


def test_B13_cancel_while_bytes_come(open_hub: Any, start_peer: Any, chunks: Chunks) -> None:
    """An aborted request ends within a second, even where the peer hangs, and its slots are safe."""
    kept = chunks(COUNT, LENGTH)
    peer = start_peer(chunks=COUNT, length=LENGTH, fault="stop", after=COUNT // 2)
    hub = open_hub(slots=COUNT, slot_bytes=LENGTH)
    batch = hub.driver.submit(Op.LOAD, [*kept], range(COUNT), deadline=time.monotonic() + 30, peer=peer.peer)
    peer.wait_stopped()
    before = time.monotonic()
    hub.transport.cancel(batch)
    done = hub.driver.wait(batch, 5.0)
    assert time.monotonic() - before < 1.0
    assert LATE in done.outcomes and done.reason == "cancelled"


@pytest.mark.parametrize("fault", ["kill", "stop"])
@both_lanes
def test_B07_puller_lost_in_the_middle(
    open_hub: Any, start_peer: Any, chunks: Chunks, transports: str, fault: str
) -> None:
    """The serving side gets its leases back: at once from a dead puller, at the deadline from a hung one."""
    hub = open_hub(slots=2 * COUNT, slot_bytes=LENGTH, transports=transports, transfer_timeout=1.5)
    for key, data in chunks(COUNT, LENGTH).items():
        hub.source.put(key, data)
    address = [hub.transport.address(), hub.transport.context.incarnation]
    puller = start_peer(chunks=COUNT, length=LENGTH, transports=transports, pull=address, fault=fault, after=COUNT // 3)
    if fault == "kill":
        assert puller.wait_ended() == -signal.SIGKILL
    else:
        puller.wait_stopped()
    end = time.monotonic() + (1.0 if fault == "kill" else 3.0)
    while hub.source.lent:
        assert time.monotonic() < end, "leases are not given back"
        time.sleep(0.01)
    assert hub.source.returned == [1] and not hub.source.faults
    if fault == "stop":
        puller.continue_()
        heard = puller.read()
        assert set(heard["outcomes"]) <= {"DONE", "FAILED", "LATE"} and "DONE" in heard["outcomes"]


def test_a_key_that_becomes_ready_later(open_hub: Any, chunks: Chunks) -> None:
    """A decode may ask before the prefill's copy has ended."""
    ours, theirs = open_hub("ours"), open_hub("theirs")
    (key, data), *_ = chunks(1, 3000).items()
    theirs.source.begin(key)
    batch = ours.driver.submit(Op.LOAD, [key], [0], deadline=time.monotonic() + 10, peer=theirs.peer())
    time.sleep(0.1)
    assert batch not in ours.driver.ended
    theirs.source.put(key, data)
    assert ours.driver.wait(batch).outcomes == (DONE,)
    assert ours.driver.bytes_of(0, 3000) == data


def test_A30_a_chunk_changed_on_the_way(open_hub: Any, chunks: Chunks, monkeypatch: pytest.MonkeyPatch) -> None:
    """One flipped bit is CORRUPT of that chunk alone."""
    import kvhub.wire.departures as serve

    real = serve.check
    wrong = make_key(1)
    monkeypatch.setattr(serve, "check", lambda key, data: real(key, data)[::-1] if key == wrong else real(key, data))
    ours, theirs = open_hub("ours"), open_hub("theirs")
    for key, data in chunks(3, 2000).items():
        theirs.source.put(key, data)
    done, _ = _pull(ours, theirs.peer(), [make_key(n) for n in range(3)], 10.0)
    assert done.outcomes == (DONE, Outcome.CORRUPT, DONE) and done.lengths == (2000, 0, 2000)
    assert done.reason == "checksum" and ours.counts["pull_errors"] == 1


def test_a_chunk_under_another_name(open_hub: Any, chunks: Chunks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two chunks of one message that change places are both found out, though each payload is whole."""
    import kvhub.wire.departures as serve

    real, swap = serve.check, {make_key(0): make_key(1), make_key(1): make_key(0)}
    monkeypatch.setattr(serve, "check", lambda key, data: real(swap[key], data))
    ours, theirs = open_hub("ours"), open_hub("theirs")
    for key, data in chunks(2, 2000).items():
        theirs.source.put(key, data)
    done, _ = _pull(ours, theirs.peer(), [make_key(0), make_key(1)], 10.0)
    assert done.outcomes == (Outcome.CORRUPT,) * 2


@both_lanes
def test_B08_many_pulls_and_random_aborts(open_hub: Any, chunks: Chunks, transports: str) -> None:
    """No wrong byte is ever called DONE, every batch ends once, and all leases come back."""
    dice = random.Random(11)
    ours, theirs = (open_hub(name, slots=64, slot_bytes=1 << 16, transports=transports) for name in ("ours", "theirs"))
    kept = {make_key(n): make_payload(n, dice.randrange(1, 1 << 16)) for n in range(24)}
    for key, data in kept.items():
        theirs.source.put(key, data)
    under_way: list[tuple[int, list[Key], range]] = []
    for turn in range(150):
        base = turn % 4 * 16
        for batch, keys, slots in [one for one in under_way if one[2].start == base]:
            done = ours.driver.wait(batch)
            assert set(done.outcomes) <= {DONE, LATE}
            for key, slot, outcome in zip(keys, slots, done.outcomes, strict=True):
                assert outcome is not DONE or ours.driver.bytes_of(slot, len(kept[key])) == kept[key]
            under_way.remove((batch, keys, slots))
        keys = dice.sample([*kept], dice.randrange(1, 16))
        slots = range(base, base + len(keys))
        deadline = time.monotonic() + dice.choice([0.0005, 0.002, 10.0])
        batch = ours.driver.submit(Op.LOAD, keys, slots, deadline=deadline, peer=theirs.peer())
        if dice.random() < 0.4:
            time.sleep(dice.random() * 0.002)
            ours.transport.cancel(batch)
        under_way.append((batch, keys, slots))
    for batch, _, _ in under_way:
        ours.driver.wait(batch)
    end = time.monotonic() + 2.0
    while theirs.source.lent:
        assert time.monotonic() < end, "leases are not given back"
        time.sleep(0.01)
    assert not theirs.source.faults
