"""Collecting: what goes, what stays, and how sweepers share the work."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from kvhub.pool.gc import Limits, Report, collect, need
from kvhub.pool.medium import SHARDS, Entry, Medium, Room
from kvhub.pool.pace import Pace, Stopped
from kvhub.pool.tally import Notes
from kvhub_nfs import DirectoryStore
from pool.conftest import Run
from pool.house import DAY, NAMESPACE, OTHER, House, name_of

SIZE = 5096
"""Of the chunks that `House.add` makes."""


def gc_of(medium: Medium, most: int, **limits: float) -> Report:
    return collect(medium, Limits(most=most, **limits), Pace())  # type: ignore[arg-type]


def test_below_the_high_mark_nothing_goes(house: House, medium: Medium) -> None:
    house.add(range(50))
    done = gc_of(medium, SIZE * 56)
    assert done.removed.chunks == 0 and done.wanted == 0 and (done.chunks, done.bytes) == (50, 50 * SIZE)


def test_C21_above_the_high_mark_the_longest_unused_go_down_to_the_low_mark(house: House, medium: Medium) -> None:
    for number in range(100):
        house.add([number], unused=2 * DAY - 900 * number)
    done = gc_of(medium, SIZE * 100)
    assert house.found() == {name_of(number) for number in range(20, 100)}
    assert (done.removed.chunks, done.left_chunks, done.left_bytes) == (20, 80, 80 * SIZE)
    assert done.wanted == done.removed.bytes == 20 * SIZE
    assert gc_of(medium, SIZE * 100).removed.chunks == 0


def test_chunks_of_one_minute_go_no_further_than_the_low_mark(house: House, medium: Medium) -> None:
    house.add(range(200), unused=DAY)
    done = gc_of(medium, SIZE * 200, high=0.5, low=0.5)
    assert 100 - 1 <= len(house.found()) <= 101 and done.removed.chunks + len(house.found()) == 200


def test_the_time_of_use_counts_over_all_namespaces(house: House, medium: Medium) -> None:
    house.add(range(30), unused=3 * DAY)
    house.add(range(30), unused=DAY, namespace=OTHER)
    gc_of(medium, SIZE * 60, high=0.6, low=0.5)
    assert len(house.found(NAMESPACE)) == 0 and len(house.found(OTHER)) == 30


def test_F03_nothing_young_is_collected(house: House, medium: Medium) -> None:
    house.add(range(20), unused=30.0)
    house.add(range(20, 40), unused=700.0)
    done = gc_of(medium, SIZE)
    assert house.found() == {name_of(number) for number in range(20)} and done.removed.chunks == 20


def test_F03_a_chunk_that_is_used_between_listing_and_removal_stays(
    house: House, medium: Medium, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = house.add(range(20))
    remove = medium.remove

    def touched_first(space: str, entries: list[Entry]) -> list[Entry]:
        if names[7] in [entry.name for entry in entries]:
            os.utime(house.path(names[7]))
        return remove(space, entries)

    monkeypatch.setattr(medium, "remove", touched_first)
    done = collect(medium, Limits(unused_for=3600.0), Pace())
    assert house.found() == {names[7]}
    assert done.removed.chunks == 19 and (done.left_chunks, done.left_bytes) == (1, SIZE)


def test_F03_a_reader_of_a_collected_chunk_has_its_bytes_to_the_end(house: House, medium: Medium) -> None:
    [name] = house.add([1])
    with house.path(name).open("rb") as reader:
        assert collect(medium, Limits(unused_for=60.0), Pace()).removed.chunks == 1
        assert len(reader.read()) == SIZE


def test_what_is_unused_for_too_long_goes_from_a_pool_with_room(house: House, medium: Medium) -> None:
    house.add(range(10), unused=8 * DAY)
    house.add(range(10, 20), unused=6 * DAY)
    done = collect(medium, Limits(unused_for=7 * DAY), Pace())
    assert house.found() == {name_of(number) for number in range(10, 20)} and done.removed.chunks == 10


def test_free_space_is_kept() -> None:
    assert need(Limits(keep_free=0.1), 900, Room(1000, 101)) == 0
    assert need(Limits(keep_free=0.1), 900, Room(1000, 40)) == 70
    assert need(Limits(keep_free=500.0), 900, Room(1000, 40)) == 510
    assert need(Limits(keep_free=0.1), 30, Room(1000, 40)) == 30, "no more than the pool has"
    assert need(Limits(keep_free=0.1), 900, None) == 0


def test_a_dry_run_changes_nothing(house: House, medium: Medium) -> None:
    house.add(range(40))
    before = sorted(house.root.rglob("*"))
    done = collect(medium, Limits(most=SIZE * 20), Pace(), dry=True)
    medium.close()
    assert done.removed.chunks in range(15, 40) and len(house.found()) == 40
    assert [path for path in sorted(house.root.rglob("*")) if ".kvhub" not in path.parts] == before
    assert not (house.root / ".kvhub" / "notes").exists() and not (house.root / ".kvhub" / "leases").exists()


def test_C11_what_dead_writers_left_is_cleared(house: House, medium: Medium) -> None:
    house.add(range(3), unused=1.0)
    owner = house.home() / ".tmp" / "elsewhere-1-2-3-aa"
    owner.mkdir(parents=True)
    (owner / "5").write_bytes(b"half")
    for path in (owner / "5", owner):
        house.age(path, 2 * DAY)
    assert collect(medium, Limits(unused_for=DAY), Pace()).leftovers == 2
    assert not owner.exists() and len(house.found()) == 3


def test_accounting_survives_and_counts_what_was_there_before(house: House, medium: Medium, run: Run) -> None:
    house.add(range(30))
    gc_of(medium, SIZE * 30)
    assert run("stats")[1]["chunks"] == len(house.found())
    house.add(range(100, 110))
    assert run("stats")[1]["chunks"] == len(house.found()) - 10, "notes tell of when they were taken"
    assert run("stats", "--exact")[1]["chunks"] == len(house.found())
    assert run("stats")[1]["bytes"] == house.used_bytes()


def test_what_another_sweeper_measured_is_not_listed_again(
    house: House, medium: Medium, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.add(range(30))
    started = medium.now()
    gc_of(medium, SIZE * 100)
    monkeypatch.setattr(medium, "entries", None)
    done = collect(medium, Limits(most=SIZE * 100), Pace(), since=started - 1)
    assert done.chunks == 30


def test_two_sweepers_remove_what_one_would(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(400):
        house.add([number], unused=5 * DAY - 600 * number)
    start, done = threading.Barrier(4), list[Report]()

    def sweep() -> None:
        with DirectoryStore.medium(DirectoryStore.Config(root=house.root)) as mine:
            start.wait()
            done.append(collect(mine, Limits(most=SIZE * 400), Pace()))

    threads = [threading.Thread(target=sweep) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) == 4
    left = house.found()
    assert sum(report.removed.chunks for report in done) == 400 - len(left)
    assert 315 <= len(left) <= 325, "within the chunks of one bin of the low mark"
    assert left >= {name_of(number) for number in range(85, 400)}, "the youngest stay"


def test_C11_a_shard_of_a_dead_sweeper_is_taken_over(
    house: House, medium: Medium, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.add(range(60))
    assert medium.claim(f"sweep-{name_of(0)[:2]}", "dead", 2.0)
    before = time.monotonic()
    done = collect(medium, Limits(unused_for=60.0), Pace())
    assert done.removed.chunks == 60 and time.monotonic() - before >= 1.0


def test_a_stop_ends_between_chunks_and_the_next_round_goes_on(house: House, medium: Medium) -> None:
    house.add(range(60))
    pace, remove, removed = Pace(), medium.remove, list[int]()

    def stop_soon(space: str, entries: list[Entry]) -> list[Entry]:
        gone = remove(space, entries)
        removed.append(len(gone))
        if sum(removed) >= 20:
            pace.stop()
        return gone

    medium.remove = stop_soon  # type: ignore[method-assign, assignment]
    with pytest.raises(Stopped):
        collect(medium, Limits(unused_for=60.0), pace)
    assert len(house.found()) == 60 - sum(removed) > 0
    assert list((house.root / ".kvhub" / "leases").iterdir()) == []
    medium.remove = remove  # type: ignore[method-assign]
    assert collect(medium, Limits(unused_for=60.0), Pace()).removed.chunks == 60 - sum(removed)


def test_a_rate_is_kept(house: House, medium: Medium) -> None:
    house.add(range(60))
    before = time.monotonic()
    collect(medium, Limits(unused_for=60.0), Pace(rate=30.0))
    assert time.monotonic() - before >= 0.9, "60 chunks at 30 a second, of which one second's worth may go at once"


def test_collecting_leaves_no_file_of_its_own(house: House, medium: Medium) -> None:
    house.add(range(30))
    collect(medium, Limits(unused_for=60.0), Pace())
    medium.close()
    assert house.stray() == [] and house.found() == set()
    assert sum(tally.chunks for shard in SHARDS for tally in Notes(medium).get(shard).values()) == 0
    assert Path(house.home(), "namespace.json").exists()
