"""The arena: slots, leases and index, against a plain model of them; shared memory, and what is left of it."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvhub import arena as arena_module
from kvhub.arena import ALIGN, Arena, attach, slot_bytes_for
from kvhub.errors import KvhubError, MisuseError
from kvhub.testing.region import make_key
from kvhub.types import Held, Key


@pytest.fixture
def arena() -> Iterator[Arena]:
    made = Arena(4 * ALIGN, ALIGN)
    yield made
    made.close()


def put(arena: Arena, name: str, **more: bool) -> int:
    """Claim, publish and keep the lease; the slot."""
    (slot,) = arena.claim(1)
    arena.publish(make_key(name), Held(slot, 10), **more)
    return slot


def idle(arena: Arena, *names: str) -> None:
    for name in names:
        arena.release([put(arena, name)])


def names_in(arena: Arena, *names: str) -> list[str]:
    return [name for name in names if make_key(name) in arena]


def test_slots_are_whole_pages_in_one_stretch(arena: Arena) -> None:
    region = arena.region
    assert region.address % ALIGN == 0
    assert (region.slots, region.slot_bytes, region.view.nbytes) == (4, ALIGN, 4 * ALIGN)
    region.slot(2)[:4] = b"kept"
    assert bytes(region.view[2 * ALIGN : 2 * ALIGN + 4]) == b"kept"
    assert region.slot(2, 4).nbytes == 4


@pytest.mark.parametrize(("payload", "slot"), [(1, 4096), (4096, 4096), (4097, 8192), (100_000, 102_400)])
def test_slot_size_is_rounded_up_to_pages(payload: int, slot: int) -> None:
    assert slot_bytes_for(payload) == slot


def test_a_capacity_that_holds_nothing_names_what_would(arena: Arena) -> None:
    with pytest.raises(KvhubError, match=r"pool: capacity of 100 bytes holds no chunk of 4096 bytes; raise it"):
        Arena(100, 4096, name="pool")


def test_C07_more_than_the_machine_or_the_cgroup_has_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena_module, "available_bytes", lambda: 10 * ALIGN)
    with pytest.raises(KvhubError, match="capacity of 45056 bytes is more than the 40960 bytes of memory"):
        Arena(11 * ALIGN, ALIGN)
    Arena(10 * ALIGN, ALIGN).close()


def test_the_least_recently_used_idle_chunk_makes_room(arena: Arena) -> None:
    idle(arena, "a", "b", "c", "d")
    slot = arena.lease(make_key("a"))
    assert slot is not None
    arena.release([slot])
    idle(arena, "e")
    assert names_in(arena, *"abcde") == ["a", "c", "d", "e"]
    assert arena.evictions == 1


def test_what_is_leased_is_never_evicted(arena: Arena) -> None:
    slots = [put(arena, name) for name in "abc"]
    idle(arena, "d", "e")
    assert names_in(arena, *"abcde") == ["a", "b", "c", "e"]
    assert len(arena.claim(9)) == 1
    assert arena.claim(1) == []
    arena.release(slots[:1])
    assert len(arena.claim(1)) == 1


def test_spare_slots_are_left_for_others(arena: Arena) -> None:
    assert len(arena.claim(9, spare=1)) == 3
    assert arena.claim(1, spare=1) == []
    assert len(arena.claim(1)) == 1


def test_leases_add_up_and_the_last_one_frees(arena: Arena) -> None:
    slot = put(arena, "a")
    arena.add_lease(slot)
    assert arena.lease(make_key("a")) == slot
    arena.release([slot, slot])
    assert arena.usage()["leased"] == 1
    arena.release([slot])
    assert (arena.usage()["leased"], arena.usage()["idle"]) == (0, 1)


def test_B03_a_lease_cannot_be_released_twice(arena: Arena) -> None:
    slot = put(arena, "a")
    arena.release([slot])
    with pytest.raises(MisuseError, match=f"slot {slot} has no lease to release"):
        arena.release([slot])
    with pytest.raises(MisuseError, match="no lease to add to"):
        arena.add_lease(slot)
    assert arena.usage()["idle"] == 1


def test_what_is_not_kept_goes_with_its_last_lease(arena: Arena) -> None:
    arena.release([put(arena, "a", keep=False)])
    assert names_in(arena, "a") == []
    assert arena.usage()["free"] == 4


def test_a_second_slot_for_a_key_stays_private_unless_it_replaces(arena: Arena) -> None:
    first = put(arena, "a")
    (second,) = arena.claim(1)
    assert not arena.publish(make_key("a"), Held(second, 20))
    assert arena.lease(make_key("a")) == first
    (third,) = arena.claim(1)
    assert arena.publish(make_key("a"), Held(third, 30), replace=True)
    assert arena.lease(make_key("a")) == third
    assert arena.held(first).length == 10, "whoever reads the old one goes on"
    arena.release([first, first, second, third, third])
    assert arena.usage() == {"total": 4, "free": 3, "idle": 1, "pinned": 0, "leased": 0, "bytes": 30}


def test_a_forgotten_key_is_gone_at_once_and_its_slot_with_the_last_lease(arena: Arena) -> None:
    slot = put(arena, "a")
    assert arena.forget(make_key("a"))
    assert names_in(arena, "a") == []
    assert arena.held(slot).length == 10
    arena.release([slot])
    assert not arena.forget(make_key("a"))
    assert arena.usage()["free"] == 4


def test_runs_end_at_the_first_gap(arena: Arena) -> None:
    idle(arena, "0", "1", "3")
    keys = [make_key(str(number)) for number in range(5)]
    assert arena.run(keys) == 2
    assert len(arena.lease_run(keys)) == 2
    assert arena.usage()["leased"] == 2
    assert arena.lease_run([]) == []
    assert sorted(arena.keys()) == sorted(keys[at] for at in (0, 1, 3))


@pytest.mark.parametrize("case", ["unclaimed", "published"])
def test_only_a_claimed_slot_can_be_published(arena: Arena, case: str) -> None:
    slot = 0 if case == "unclaimed" else put(arena, "a")
    with pytest.raises(MisuseError, match="was not claimed for filling"):
        arena.publish(make_key("b"), Held(slot, 1))
    with pytest.raises(MisuseError, match="holds no chunk"):
        arena.held(3 if slot == 0 else 0)


@pytest.mark.parametrize("seed", range(8))
def test_any_sequence_of_calls_keeps_the_books_right(seed: int) -> None:
    """Against a model: leases by slot, what each leased slot held when it was leased, LRU order of the idle ones."""
    draw = random.Random(seed)
    arena = Arena(6 * ALIGN, ALIGN)
    leased: list[tuple[int, Key | None]] = []
    for _ in range(600):
        move = draw.choice(["claim", "claim", "lease", "lease", "release", "release", "forget"])
        key = make_key(draw.randrange(9))
        if move == "claim":
            for slot in arena.claim(draw.randrange(1, 3)):
                assert slot not in {other for other, _ in leased}, "a leased slot was given to another"
                arena.region.slot(slot)[:32] = key
                arena.publish(key, Held(slot, 32), keep=draw.random() < 0.8, replace=draw.random() < 0.3)
                leased.append((slot, key))
        elif move == "lease" and (slot := arena.lease(key)) is not None:
            leased.append((slot, key))
        elif move == "release" and leased:
            arena.release([leased.pop(draw.randrange(len(leased)))[0]])
        elif move == "forget":
            arena.forget(key)
        assert all(bytes(arena.region.slot(slot, 32)) == whose for slot, whose in leased)
        usage = arena.usage()
        assert usage["leased"] == len({slot for slot, _ in leased})
        assert usage["free"] + usage["idle"] + usage["leased"] == 6
        assert len(arena.keys()) == len(set(arena.keys())) <= 6
    arena.release([slot for slot, _ in leased])
    assert arena.usage()["leased"] == 0
    assert len(arena.claim(6)) == 6
    arena.close()


def test_threads_never_share_a_claimed_slot() -> None:
    arena = Arena(8 * ALIGN, ALIGN)
    faults: list[str] = []

    def work(mark: int) -> None:
        for turn in range(200):
            for slot in arena.claim(2):
                view = arena.region.slot(slot, 8)
                view[:] = bytes([mark]) * 8
                arena.publish(make_key(turn % 5), Held(slot, 8), keep=turn % 3 > 0)
                if bytes(view) != bytes([mark]) * 8:
                    faults.append("torn")
                arena.release([slot])

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    assert arena.usage()["leased"] == 0
    arena.close()


# -- shared memory


def test_another_process_sees_the_same_bytes(arena: Arena) -> None:
    arena.region.slot(1)[:5] = b"hello"
    script = (
        "import sys; from kvhub.arena import attach; view = attach(sys.argv[1], int(sys.argv[2]));"
        "print(bytes(view[4096:4101]).decode()); view[:3] = b'bye'"
    )
    command = [sys.executable, "-c", script, arena.region.name, str(4 * ALIGN)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "hello"
    assert bytes(arena.region.view[:3]) == b"bye"


def test_an_arena_whose_owner_ended_cannot_be_mapped() -> None:
    made = Arena(ALIGN, ALIGN)
    made.close()
    made.close()
    with pytest.raises(KvhubError, match="its owner has ended or is another user"):
        attach(made.region.name, ALIGN)


def test_close_leaves_no_descriptor_and_no_thread_and_spares_readers() -> None:
    before, threads = len(list(Path("/proc/self/fd").iterdir())), threading.active_count()
    made = Arena(64 * ALIGN, ALIGN)
    view = made.region.slot(3)
    view[:4] = b"mine"
    made.close()
    assert bytes(view[:4]) == b"mine", "a view that somebody still holds keeps the memory"
    del view
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert threading.active_count() == threads


def test_B19_a_killed_process_leaves_nothing_in_shared_memory() -> None:
    def seen() -> set[str]:
        return {path.name for folder in ("/dev/shm", "/tmp") for path in Path(folder).glob("*kvhub*")}

    before = seen()
    script = (
        "import sys, time; from kvhub.arena import Arena; arena = Arena(1 << 22, 4096);"
        "arena.region.view[:1] = b'x'; print(arena.region.name, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        name = process.stdout.readline().strip()
        assert attach(name, 1 << 22)[:1] == b"x"
        assert seen() == before, "it never had a name in a file system"
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not os.path.exists(name)  # noqa: PTH110 - a link of /proc, whose target has no path
    assert seen() == before


def test_the_coldest_are_those_that_claims_would_evict_next(arena: Arena) -> None:
    idle(arena, "a", "b", "c")
    arena.release([arena.lease(make_key("a")) or 0])
    assert arena.coldest(2) == [make_key("b"), make_key("c")]
    assert arena.free == 1
    arena.claim(2)
    assert names_in(arena, "a", "b", "c") == ["a", "c"]
