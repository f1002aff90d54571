"""A full file system or quota: what was longest unused goes, and the save that met it is tried once more."""

from __future__ import annotations

import errno
import os
import time

import pytest

from kvhub.pool.walk import Removed
from kvhub.testing.region import make_key, make_payload
from kvhub.types import Outcome
from kvhub_nfs import files, room

DONE, FULL = Outcome.DONE, Outcome.FULL
KEY, OTHER, DATA = make_key("one"), make_key("two"), make_payload("one")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_C06_one_refusal_costs_old_chunks_and_no_save(open_pool, failing, code: int) -> None:
    pool = open_pool(workers=1)
    old = {make_key(n): make_payload(n, 3000) for n in range(300)}
    for at in range(0, 300, 30):
        pool.keep(dict([*old.items()][at : at + 30]))
    for key in old:
        os.utime(pool.path(key), (0, time.time() - 3600))
    pool.keep({KEY: DATA})
    failing("writev", code, times=1)
    assert pool.save({OTHER: DATA}).outcomes == (DONE,)
    assert pool.read([OTHER, KEY]) == [DATA, DATA]
    gone = [key for key in old if not pool.path(key).exists()]
    assert 0 < len(gone) < 300 and pool.counts == {"room_sweeps": 1, "room_chunks": len(gone)}


def test_C06_refusals_for_ever_cost_one_more_try_each_and_end_in_full(open_pool, failing, monkeypatch) -> None:
    pool = open_pool(workers=1)
    pool.keep({KEY: DATA})
    os.utime(pool.path(KEY), (0, time.time() - 3600))
    calls = []
    real = files.write_whole
    monkeypatch.setattr(files, "write_whole", lambda path, *a, **b: (calls.append(path), real(path, *a, **b))[1])
    failing("writev", errno.ENOSPC)
    assert pool.save({OTHER: DATA}).outcomes == (FULL,)
    assert pool.counts == {"room_sweeps": 1, "room_chunks": 1}
    home = [path for path in calls if str(pool.home) in path]
    assert len(home) == 2, "once, and once more"
    assert pool.save({OTHER: DATA}).outcomes == (FULL,)
    assert pool.counts == {"room_sweeps": 2, "room_chunks": 1}
    assert pool.save({OTHER: DATA}).outcomes == (FULL,)
    assert pool.counts == {"room_sweeps": 2, "room_chunks": 1}, "there was nothing to remove, so nobody looks again now"


def test_C06_a_pool_that_is_not_to_be_swept_stays_as_it_is(open_pool, failing) -> None:
    pool = open_pool(when_full="drop")
    pool.keep({KEY: DATA})
    os.utime(pool.path(KEY), (0, time.time() - 3600))
    failing("writev", errno.ENOSPC, times=1)
    assert pool.save({OTHER: DATA}).outcomes == (FULL,)
    assert pool.read([KEY]) == [DATA] and pool.counts == {}


def test_C06_no_sweep_outlasts_the_save_that_asked_for_it(open_pool, failing, monkeypatch) -> None:
    pool = open_pool(workers=1)
    asked = []
    monkeypatch.setattr(room, "make_room", lambda medium, size, seconds: (asked.append(seconds), Removed())[1])
    failing("writev", errno.ENOSPC)
    batch = pool.start_save({OTHER: DATA}, deadline=time.monotonic() + 0.5)
    assert pool.wait(batch).outcomes == (FULL,)
    assert 0 < asked[0] <= 0.5
    monkeypatch.setattr(room, "REST_SECONDS", 0.0)
    assert pool.member._rooms is not None
    pool.member._rooms._rest_until = 0.0
    assert pool.save({OTHER: DATA}).outcomes == (FULL,)
    assert asked[1] == room.SWEEP_SECONDS
