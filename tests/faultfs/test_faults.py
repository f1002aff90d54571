"""What a failing file system costs: result, counter, time, recovery; and that good data stay whatever happens."""

from __future__ import annotations

import time

import pytest

from kvhub import workers
from kvhub.testing.region import make_key, make_payload
from kvhub.testing.stage import until
from kvhub.types import Op, Outcome

DONE, MISS, FAILED, FULL, LATE = Outcome.DONE, Outcome.MISS, Outcome.FAILED, Outcome.FULL, Outcome.LATE
KEY, OTHER, DATA = make_key("one"), make_key("two"), make_payload("one")
SOON = 2.0
"""Seconds that a call which hangs must not cost anybody else, on a busy machine."""


@pytest.mark.parametrize("op", ["open", "read"])
def test_C19_ESTALE_once_is_read_again_and_for_ever_is_a_miss(open_pool, faults, op: str) -> None:
    pool = open_pool()
    pool.keep({KEY: DATA})
    faults.fail(op, "ESTALE", times=1)
    assert pool.read([KEY]) == [DATA]
    faults.fail(op, "ESTALE")
    assert pool.load([KEY]).outcomes == (MISS,)
    faults.clear()
    assert pool.read([KEY]) == [DATA]
    # The kernel itself opens a path anew after ESTALE, so one ESTALE of an open does not get as far as the store.
    assert pool.counts == {"stale_handles": 2 if op == "read" else 1}
    assert pool.stored(faults, KEY) == DATA


@pytest.mark.parametrize("code", ["EIO", "EMFILE", "EACCES", "ETIMEDOUT"])
@pytest.mark.parametrize("op", ["open", "read"])
def test_C03_an_error_of_a_read_fails_that_chunk_and_removes_nothing(open_pool, faults, op: str, code: str) -> None:
    pool = open_pool(workers=1)
    pool.keep({KEY: DATA, OTHER: DATA})
    faults.fail(op, code, times=1)
    done = pool.load([KEY, OTHER])
    assert (done.outcomes, done.reason, pool.counts) == ((FAILED, DONE), code, {"io_errors": 1})
    assert pool.stored(faults, KEY) == DATA
    assert pool.read([KEY]) == [DATA]


@pytest.mark.parametrize(
    ("op", "code", "outcome"),
    [
        ("create", "ENOSPC", FULL),
        ("write", "ENOSPC", FULL),
        ("write", "EDQUOT", FULL),
        ("write", "EIO", FAILED),
        ("fsync", "EDQUOT", FULL),
        ("fsync", "EIO", FAILED),
        ("flush", "ENOSPC", FULL),
        ("flush", "EIO", FAILED),
        ("rename", "EIO", FAILED),
        ("rename", "EDQUOT", FULL),
        ("mkdir", "ENOSPC", FULL),
    ],
)
def test_C06_an_error_of_a_write_is_never_published_and_loads_go_on(open_pool, faults, op, code, outcome) -> None:
    pool = open_pool(fsync=True)
    pool.keep({KEY: DATA})
    faults.fail(op, code)
    for _ in range(3):
        done = pool.save({OTHER: DATA})
        assert (done.outcomes, done.reason) == ((outcome,), code)
        assert (pool.find([OTHER]), pool.read([KEY])) == ((MISS,), [DATA])
    faults.clear()
    assert pool.unfinished(faults) == []
    assert pool.stored(faults, OTHER) is None
    assert pool.save({OTHER: DATA}).outcomes == (DONE,)
    assert pool.read([OTHER]) == [DATA]
    # Nothing is old enough to make room, and that is looked for once.
    if outcome is FAILED:
        assert pool.counts == {"io_errors": 3}
    else:
        assert pool.counts["room_sweeps"] == 1 and not pool.counts["room_chunks"]


def test_C06_what_cannot_be_removed_either_is_counted_and_swept_later(open_pool, faults) -> None:
    pool = open_pool()
    faults.fail("rename", "ENOSPC")
    faults.fail("unlink", "EIO")
    assert pool.save({KEY: DATA}).outcomes == (FULL,)
    assert pool.counts == {"io_errors": 1, "room_sweeps": 1}
    assert len(pool.unfinished(faults)) == 1
    assert pool.find([KEY]) == (MISS,)


def test_C03_short_reads_and_writes_are_continued(open_pool, faults) -> None:
    pool = open_pool()
    faults.short("write", 5000)
    faults.short("read", 3000)
    pool.keep({KEY: DATA})
    assert pool.read([KEY]) == [DATA]
    assert (faults.count("write") > 2, faults.count("read") > 4) == (True, True)


@pytest.mark.parametrize("op", ["open", "read"])
def test_C19_a_load_that_hangs_costs_one_worker(open_pool, faults, op: str) -> None:
    """Its slot stays lent, its deadline is the caller's; everybody else is served, and then it ends."""
    pool = open_pool(workers=2)
    pool.keep({KEY: DATA, OTHER: DATA})
    faults.hang(op, times=1)
    before = faults.count(op)
    hung = pool.submit(Op.LOAD, [KEY], [60], deadline=time.monotonic() + 0.05)
    until(lambda: faults.count(op) == before + 1, SOON, "it hangs")
    start = time.monotonic()
    assert pool.find([KEY, OTHER]) == (DONE, DONE)
    assert pool.read([OTHER]) == [DATA]
    assert pool.save({make_key("three"): DATA}).outcomes == (DONE,)
    assert time.monotonic() - start < SOON
    assert hung in pool.under_way
    faults.clear()
    assert pool.wait(hung).outcomes == (DONE,)
    assert pool.bytes_of(60, len(DATA)) == DATA


@pytest.mark.parametrize("op", ["write", "fsync", "flush", "rename"])
def test_C19_a_save_that_hangs_publishes_nothing_before_its_end(open_pool, faults, op: str) -> None:
    pool = open_pool(workers=2, fsync=True)
    pool.keep({KEY: DATA})
    faults.hang(op, times=1)
    before = faults.count(op)
    hung = pool.start_save({OTHER: DATA})
    until(lambda: faults.count(op) == before + 1, SOON, "it hangs")
    # Nobody can look into the directory that a rename is at: the kernel holds its lock.
    assert pool.find([KEY] if op == "rename" else [OTHER, KEY])[:1] == ((DONE,) if op == "rename" else (MISS,))
    assert pool.read([KEY]) == [DATA]
    faults.clear()
    assert pool.wait(hung).outcomes == (DONE,)
    assert pool.read([OTHER]) == [DATA]


def test_C19_a_server_that_answers_nobody_costs_two_pools_of_workers_and_no_time(
    open_pool, faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "STUCK_SECONDS", 0.1)
    pool = open_pool(workers=2)
    kept = {make_key(n): make_payload(n) for n in range(8)}
    pool.keep(kept)
    faults.hang("getattr")
    for key in kept:
        done = pool.wait(pool.submit(Op.FIND, [key], deadline=time.monotonic() + 0.05))
        assert done.outcomes in ((LATE,), (FAILED,))
    until(lambda: pool.counts["stuck_calls"] == 4, SOON, "all workers are written off, and their successors")
    start = time.monotonic()
    for key in kept:
        done = pool.wait(pool.submit(Op.LOAD, [key], [50], deadline=time.monotonic() + 60))
        assert (done.outcomes, done.reason) == ((FAILED,), "stuck")
    assert time.monotonic() - start < SOON
    assert pool.member.healthy().startswith("4 calls have not returned")
    faults.clear()
    until(lambda: pool.member.healthy() == "", SOON, "they returned")
    assert pool.read([*kept]) == [*kept.values()]


def test_close_is_bounded_with_a_dead_server(open_pool, faults, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvhub.store.CLOSE_SECONDS", 1.5)
    pool = open_pool(workers=2)
    pool.keep({KEY: DATA})
    faults.hang("open")
    pool.submit(Op.LOAD, [KEY], [60])
    assert pool.close() < 1.5 + SOON


def test_a_mount_that_hangs_at_start_is_refused_in_time(open_pool, faults, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvhub.store.OPEN_SECONDS", 0.3)
    faults.hang("getattr")
    with pytest.raises(Exception, match="pool: the store did not answer within"):
        open_pool()
