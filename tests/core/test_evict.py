"""Which chunk makes room: the policies on the arena, under scans and under any sequence of leases."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import pytest

from kvhub.arena import ALIGN, Arena
from kvhub.errors import KvhubError
from kvhub.evict import POLICIES
from kvhub.testing.region import make_key
from kvhub.types import Held, Key


def put(arena: Arena, key: Key) -> bool:
    """Publish a chunk and let it go; False when there is no room."""
    slots = arena.claim(1)
    for slot in slots:
        arena.publish(key, Held(slot, 1))
    arena.release(slots)
    return bool(slots)


def ask(arena: Arena, keys: Sequence[Key]) -> int:
    """What a request does: use the leading run, compute and keep the rest; how many were there."""
    found = arena.lease_run(keys)
    for key in keys[len(found) :]:
        if key not in arena:
            put(arena, key)
    arena.release(found)
    return len(found)


@pytest.fixture(params=POLICIES)
def arena(request: pytest.FixtureRequest) -> Iterator[Arena]:
    made = Arena(100 * ALIGN, ALIGN, policy=request.param)
    yield made
    made.close()


def hot_set_after_scans(policy: str) -> int:
    """How many of 60 hot chunks in 100 slots outlive scans of 300, when they are used between the scans."""
    arena = Arena(100 * ALIGN, ALIGN, policy=policy)
    hot = [make_key(f"hot {n}") for n in range(60)]
    for scan in range(6):
        for _ in range(3):
            ask(arena, hot)
        ask(arena, [make_key(f"scan {scan} {n}") for n in range(300)])
    left = arena.run(hot)
    arena.close()
    return left


def test_s3fifo_keeps_a_hot_set_that_scans_drive_out_of_lru() -> None:
    assert (hot_set_after_scans("lru"), hot_set_after_scans("s3fifo")) == (0, 60)


def test_s3fifo_takes_what_comes_back_soon_into_the_main_queue() -> None:
    """A chunk that was dropped unused and is computed again outlives the next scan; one that came once does not."""
    arena = Arena(100 * ALIGN, ALIGN, policy="s3fifo")
    again = [make_key(f"again {n}") for n in range(20)]
    ask(arena, again)
    ask(arena, [make_key(f"scan 1 {n}") for n in range(100)])
    assert arena.run(again) == 0
    ask(arena, again)
    ask(arena, [make_key(f"scan 2 {n}") for n in range(300)])
    assert arena.run(again) == 20
    arena.close()


def test_s3fifo_lets_a_hot_set_go_that_is_not_used_any_more() -> None:
    arena = Arena(100 * ALIGN, ALIGN, policy="s3fifo")
    old, new = ([make_key(f"{name} {n}") for n in range(80)] for name in ("old", "new"))
    for _ in range(8):
        ask(arena, old)
    for _ in range(20):
        ask(arena, new)
    assert arena.run(new) == 80
    arena.close()


@pytest.mark.parametrize("seed", range(4))
def test_what_is_leased_is_never_evicted_whatever_the_policy(arena: Arena, seed: int) -> None:
    """Random leases, claims, pins and forgets; what is leased or pinned keeps its slot, and the books stay right."""
    draw = random.Random(seed)
    leased: list[tuple[int, Key]] = []
    pinned: set[Key] = set()
    moves = ["fill", "fill", "lease", "lease", "release", "release", "release", "pin", "unpin", "forget"]
    for _ in range(4000):
        move = draw.choice(moves)
        key = make_key(draw.randrange(150))
        if move == "fill" and key not in arena:
            for slot in arena.claim(1):
                arena.region.slot(slot)[:32] = key
                arena.publish(key, Held(slot, 32))
                leased.append((slot, key))
        elif move == "lease" and len(leased) < 95 and (got := arena.lease(key)) is not None:
            leased.append((got, key))
        elif move == "release" and leased:
            arena.release([leased.pop(draw.randrange(len(leased)))[0]])
        elif move == "pin" and arena.pin([key], 3600.0):
            pinned.add(key)
        elif move == "unpin":
            arena.unpin([key])
            pinned.discard(key)
        elif move == "forget" and draw.random() < 0.2:
            arena.forget(key)
            pinned.discard(key)
        assert all(key in arena for key in pinned)
        slots = {slot for slot, _ in leased}
        usage = arena.usage()
        assert usage["leased"] == len(slots), "a lease was lost or found"
        assert usage["free"] + usage["idle"] + usage["pinned"] + usage["leased"] == 100
    assert all(bytes(arena.region.slot(slot, 32)) == key for slot, key in leased)
    arena.unpin(pinned)
    arena.release([slot for slot, _ in leased])
    assert len(arena.claim(100)) == 100, "everything can make room again"
    assert arena.evictions > 20


def test_a_policy_forgets_what_is_forgotten(arena: Arena) -> None:
    """Slots that were forgotten, evicted or replaced stand in no queue twice."""
    for turn in range(5):
        keys = [make_key(f"{turn} {n}") for n in range(100)]
        assert ask(arena, keys) == 0
        for key in keys[::2]:
            arena.forget(key)
        for key in keys[1::4]:
            (slot,) = arena.claim(1)
            arena.publish(key, Held(slot, 2), replace=True)
            arena.release([slot])
        assert arena.usage()["idle"] == len(arena.keys())
    taken = arena.claim(200)
    assert sorted(taken) == list(range(100))


# -- pins


def test_pinned_chunks_stay_until_their_time_is_over(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("kvhub.arena.time.monotonic", lambda: now[0])
    kept = [make_key(f"system prompt {n}") for n in range(20)]
    ask(arena, kept)
    assert arena.pin(kept, 60.0) == 20
    for n in range(500):
        assert put(arena, make_key(n))
    assert (arena.run(kept), arena.usage()["pinned"]) == (20, 20)
    now[0] += 61.0
    for n in range(500, 1000):
        put(arena, make_key(n))
    assert (arena.run(kept), arena.usage()["pinned"]) == (0, 0)


def test_no_more_than_a_quarter_can_be_pinned(arena: Arena) -> None:
    keys = [make_key(n) for n in range(60)]
    ask(arena, keys)
    assert arena.pin(keys, 60.0) == 25
    assert arena.pin(keys[:10], 60.0) == 10, "what is pinned already takes no more room"
    assert arena.pin(keys[30:31], 60.0) == 0
    arena.unpin(keys[:5])
    assert arena.pin(keys[30:40], 60.0) == 5
    arena.unpin(keys)
    assert (arena.usage()["pinned"], arena.usage()["idle"]) == (0, 60)


def test_a_pin_ends_at_the_first_chunk_that_is_not_there(arena: Arena) -> None:
    keys = [make_key(n) for n in range(4)]
    ask(arena, keys[:2])
    put(arena, keys[3])
    assert arena.pin(keys, 60.0) == 2
    assert arena.usage()["pinned"] == 2


def test_forgetting_and_replacing_end_a_pin(arena: Arena) -> None:
    keys = [make_key(n) for n in range(2)]
    ask(arena, keys)
    arena.pin(keys, 60.0)
    assert arena.forget(keys[0])
    (slot,) = arena.claim(1)
    arena.publish(keys[1], Held(slot, 2), replace=True)
    arena.release([slot])
    assert (arena.usage()["pinned"], arena.usage()["idle"], arena.usage()["free"]) == (0, 1, 99)


# -- age and admission


def test_a_chunk_goes_at_its_age_used_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("kvhub.arena.time.monotonic", lambda: now[0])
    arena = Arena(8 * ALIGN, ALIGN, ttl=60.0)
    keys = [make_key(n) for n in range(4)]
    ask(arena, keys[:2])
    arena.pin(keys[:1], 3600.0)
    now[0] += 30.0
    ask(arena, keys)
    (slot,) = arena.lease_run(keys[1:2])
    now[0] += 31.0
    assert [key in arena for key in keys] == [False, False, True, True]
    assert arena.held(slot).length == 1, "who leased it goes on"
    assert arena.usage()["leased"] == 1
    arena.release([slot])
    assert (arena.usage()["free"], arena.usage()["bytes"]) == (6, 2)
    put(arena, keys[0])
    now[0] += 30.0
    assert [key in arena for key in keys] == [True, False, False, False], "a new life has its own time"
    arena.close()


def test_D10_second_touch_keeps_only_what_comes_twice() -> None:
    arena = Arena(50 * ALIGN, ALIGN, second_touch=True)
    for n in range(100):
        put(arena, make_key(f"once {n}"))
    twice = [make_key(f"twice {n}") for n in range(5)]
    for _ in range(2):
        for key in twice:
            put(arena, key)
    assert sorted(arena.keys()) == sorted(twice)
    arena.close()


def test_D10_a_chunk_that_is_not_admitted_serves_whoever_is_there() -> None:
    arena = Arena(4 * ALIGN, ALIGN, second_touch=True)
    (slot,) = arena.claim(1)
    assert arena.publish(make_key("a"), Held(slot, 1))
    assert arena.lease(make_key("a")) == slot
    arena.release([slot, slot])
    assert arena.usage()["free"] == 4
    arena.close()


# -- accounting


def test_C08_everything_that_is_kept_counts(arena: Arena) -> None:
    """Chunks, fillings, pins and what was replaced but is still read: all are slots, and slots are the capacity."""
    assert arena.region.view.nbytes == 100 * ALIGN
    keys = [make_key(n) for n in range(40)]
    ask(arena, keys)
    arena.pin(keys[:10], 60.0)
    read = arena.lease_run(keys[:5])
    (slot,) = arena.claim(1)
    arena.publish(keys[0], Held(slot, 7), replace=True)
    filling = arena.claim(3)
    usage = arena.usage()
    assert usage == {"total": 100, "free": 56, "idle": 30, "pinned": 5, "leased": 9, "bytes": 40 + 7}
    arena.release([*read, slot, *filling])
    assert arena.usage()["bytes"] == 39 + 7
    for key in keys:
        arena.forget(key)
    assert arena.usage() == {"total": 100, "free": 100, "idle": 0, "pinned": 0, "leased": 0, "bytes": 0}


def test_a_node_that_is_not_there_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvhub.pages.nodes", lambda: [0, 1])
    with pytest.raises(KvhubError, match=r"near: numa_node: 3 is not on this machine; it has 0, 1"):
        Arena(ALIGN, ALIGN, name="near", numa_node=3)


@pytest.mark.parametrize("seed", range(3))
def test_the_coldest_are_the_next_victims_in_order(arena: Arena, seed: int) -> None:
    draw = random.Random(seed)
    keys = [make_key(n) for n in range(100)]
    ask(arena, keys)
    for key in draw.sample(keys, 30):
        ask(arena, [key])
    cold = arena.coldest(40)
    assert len(set(cold)) == 40
    taken = []
    for key in cold:
        (slot,) = arena.claim(1)
        taken.append(slot)
        assert key not in arena
    arena.release(taken)
