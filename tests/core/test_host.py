"""The host tier as a store of its own, beyond what the store contract asks of every store."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from kvhub.arena import ALIGN
from kvhub.builtin.host import HostConfig, HostStore, kvhub_register_stores
from kvhub.errors import KvhubError, MisuseError
from kvhub.evict import S3Fifo
from kvhub.testing.region import make_context, make_key, make_region
from kvhub.types import Batch, Completion, Held, Op, Outcome


class Stage:
    """A host tier of four slots, attached to a region that is not its arena."""

    def __init__(self) -> None:
        self.store = HostStore(HostConfig(capacity=4 * ALIGN), make_context("host"))
        self.region = make_region(8, ALIGN)
        self.woken = 0
        self.store.attach(self.region, self._wake)
        self.number = 0

    def _wake(self) -> None:
        self.woken += 1

    def do(self, op: Op, *names: str | int, **more: object) -> Completion:
        self.number += 1
        slots = range(len(names)) if op in (Op.LOAD, Op.SAVE) else ()
        lengths = (16 if op is Op.SAVE else ALIGN,) * len(slots)
        batch = Batch(self.number, op, tuple(map(make_key, names)), tuple(slots), lengths, **more)  # type: ignore[arg-type]
        self.store.submit(batch)
        (done,) = self.store.poll()
        assert done.id == self.number
        return done

    def put(self, *names: str | int, **more: object) -> tuple[Outcome, ...]:
        for slot, name in enumerate(names):
            self.region.slot(slot, 16)[:] = make_key(name)[:16]
        return self.do(Op.SAVE, *names, **more).outcomes

    def there(self, *names: str | int) -> list[str | int]:
        found = self.do(Op.FIND, *names).outcomes
        return [name for name, outcome in zip(names, found, strict=True) if outcome is Outcome.DONE]


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage()
    yield made
    made.store.close()


def test_it_is_registered_like_everyone_s() -> None:
    assert list(kvhub_register_stores()) == [HostStore]


def test_it_claims_the_arena_and_not_to_outlive_it(stage: Stage) -> None:
    claims = stage.store.capabilities
    assert (claims.arena, claims.removes, claims.scans) == (True, True, True)
    assert (claims.persistent, claims.shared) == (False, False)


def test_C08_it_never_holds_more_than_its_capacity(stage: Stage) -> None:
    for number in range(20):
        assert stage.put(number) == (Outcome.DONE,)
        assert (stage.store.used_bytes() or 0) <= 4 * 16
        assert len(list(stage.store.scan())) <= 4
    assert stage.there(*range(20)) == [16, 17, 18, 19]


def test_C08_a_batch_larger_than_the_tier_makes_room_for_itself(stage: Stage) -> None:
    assert set(stage.put(*range(7))) == {Outcome.DONE}
    assert len(stage.there(*range(7))) == 4


def test_C08_a_batch_evicts_no_more_than_it_needs(stage: Stage) -> None:
    stage.put("a", "b", "c")
    assert stage.put("b", "new", "c") == (Outcome.KEPT, Outcome.DONE, Outcome.KEPT)
    assert stage.there("a", "b", "c", "new") == ["a", "b", "c", "new"]
    stage.put("d", "b")
    assert stage.there("b", "c", "new", "d") == ["b", "c", "new", "d"]


def test_C13_a_key_that_is_twice_in_one_batch_takes_one_slot(stage: Stage) -> None:
    assert stage.put("a", "a", "b") == (Outcome.DONE, Outcome.KEPT, Outcome.DONE)
    assert len(list(stage.store.scan())) == 2
    assert stage.put("c", "d") == (Outcome.DONE, Outcome.DONE)
    assert stage.there("a", "b", "c", "d") == ["a", "b", "c", "d"]


def test_C13_a_second_save_is_kept_and_a_replacing_one_is_not(stage: Stage) -> None:
    stage.put("a")
    stage.region.slot(0, 16)[:] = b"0123456789abcdef"
    assert stage.do(Op.SAVE, "a").outcomes == (Outcome.KEPT,)
    stage.do(Op.LOAD, "a")
    assert bytes(stage.region.slot(0, 16)) == make_key("a")[:16]
    stage.region.slot(0, 16)[:] = b"0123456789abcdef"
    assert stage.do(Op.SAVE, "a", replace=True).outcomes == (Outcome.DONE,)
    stage.region.slot(0, 16)[:] = bytes(16)
    stage.do(Op.LOAD, "a")
    assert bytes(stage.region.slot(0, 16)) == b"0123456789abcdef"


def test_what_was_said_of_a_chunk_comes_back_with_it(stage: Stage) -> None:
    stage.put("a", "b", layouts=("", "other"), generated=(0, 7))
    done = stage.do(Op.LOAD, "a", "b", "c")
    assert done.outcomes == (Outcome.DONE, Outcome.DONE, Outcome.MISS)
    assert (done.lengths, done.layouts, done.generated) == ((16, 16, 0), ("", "other", ""), (0, 7, 0))
    assert done.moved == 32


def test_a_chunk_larger_than_the_slot_s_room_is_not_loaded(stage: Stage) -> None:
    stage.put("a")
    stage.store.submit(Batch(99, Op.LOAD, (make_key("a"),), (0,), (8,)))
    (done,) = stage.store.poll()
    assert not done.outcomes[0].good
    assert done.lengths == (0,)


def test_a_batch_that_comes_too_late_is_not_done(stage: Stage) -> None:
    done = stage.do(Op.SAVE, "a", deadline=time.monotonic() - 1.0)
    assert done.outcomes == (Outcome.LATE,)
    assert stage.there("a") == []


def test_removed_is_gone_and_so_is_what_was_never_there(stage: Stage) -> None:
    stage.put("a", "b")
    assert stage.do(Op.REMOVE, "a", "x").outcomes == (Outcome.DONE, Outcome.DONE)
    assert stage.there("a", "b") == ["b"]
    assert [(key, size) for key, size in stage.store.scan()] == [(make_key("b"), 16)]


def test_it_wakes_the_hub_for_each_completion(stage: Stage) -> None:
    before = stage.woken
    stage.put("a")
    assert stage.woken == before + 1
    assert stage.store.poll() == []


@pytest.mark.parametrize("op", [Op.LOAD, Op.SAVE])
def test_tuples_of_unequal_length_are_misuse(stage: Stage, op: Op) -> None:
    with pytest.raises(MisuseError, match="host: batch 7 has tuples of unequal length"):
        stage.store.submit(Batch(7, op, (make_key("a"),), (0,), ()))


def test_before_attach_and_after_close_it_takes_nothing(stage: Stage) -> None:
    fresh = HostStore(HostConfig(capacity=ALIGN), make_context("host"))
    for store in (fresh, stage.store):
        store.close()
        store.close()
        with pytest.raises(MisuseError, match="not attached or is closed"):
            store.submit(Batch(1, Op.FIND, (make_key("a"),)))
    assert list(fresh.scan()) == []


@pytest.mark.parametrize("capacity", [0, -1, "0B"])
def test_a_capacity_of_nothing_is_refused(capacity: object) -> None:
    with pytest.raises(ValueError, match=r"above 0|negative"):
        HostConfig(capacity=capacity)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"policy": "lfu"}, "'policy' must be in"),
        ({"admit": "never"}, "'admit' must be in"),
        ({"ttl": "soon"}, "expected a time"),
        ({"huge_pages": "on"}, "'huge_pages' must be in"),
        ({"numa_node": -1}, "'numa_node' must be >= 0"),
    ],
)
def test_options_that_mean_nothing_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        HostConfig(capacity=ALIGN, **options)


def test_its_options_reach_the_arena() -> None:
    options = {"policy": "s3fifo", "admit": "second_touch", "ttl": "1h", "huge_pages": "off", "numa_node": 0}
    store = HostStore(HostConfig(capacity=4 * ALIGN, **options), make_context("host"))  # type: ignore[arg-type]
    arena = store.open_arena(ALIGN)
    assert arena.memory.startswith("NUMA node 0: ")
    for number in range(2):
        (slot,) = arena.claim(1)
        arena.publish(make_key("a"), Held(slot, 1))
        arena.release([slot])
        assert len(arena.keys()) == number, "kept from the second time on"
    assert type(arena._policy) is S3Fifo
    assert 3590 < next(iter(arena._ages.values())) - time.monotonic() <= 3600
    store.close()


def test_a_capacity_below_one_chunk_names_the_member() -> None:
    store = HostStore(HostConfig(capacity="1KiB"), make_context("near"))
    with pytest.raises(KvhubError, match="near: capacity of 1024 bytes holds no chunk of 4096 bytes"):
        store.open_arena(4096)
