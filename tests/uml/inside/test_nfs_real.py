"""A directory store on real NFS: what clients see of each other; late errors, stale handles, and a silent server."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from kvhub import workers
from kvhub.testing.region import make_key, make_payload
from kvhub.testing.stage import until
from kvhub.types import Op, Outcome
from uml.inside.conftest import DEFAULT, OLD, QUOTA, SERVER, SMALL, A, B

DONE, MISS, FULL, FAILED, LATE = Outcome.DONE, Outcome.MISS, Outcome.FULL, Outcome.FAILED, Outcome.LATE
SOON = 5.0
MIB = 1 << 20


@pytest.mark.parametrize("io", ["buffered", "direct"])
@pytest.mark.parametrize("length", [4096, 30_001, 32_768])
def test_what_one_client_saves_another_loads(open_pool, io: str, length: int) -> None:
    writer, reader = open_pool(A, io=io), open_pool(B, io=io)
    key, data = make_key(f"{io} {length}"), make_payload(f"{io} {length}", length)
    writer.keep({key: data})
    assert (reader.find([key]), reader.read([key])) == ((DONE,), [data])
    writer.remove([key])
    until(lambda: reader.load([key]).outcomes == (MISS,), SOON, "removed for everybody")


def test_chunks_past_the_page_cache_are_whole_on_the_server(open_pool) -> None:
    writer = open_pool(A, io="direct", slot_bytes=2 * MIB)
    key, data = make_key("direct"), make_payload("direct", MIB + 12_345)
    writer.keep({key: data})
    assert (SERVER / "kv" / writer.path(key).relative_to(A)).read_bytes()[4096:] == data
    assert open_pool(B, io="direct", slot_bytes=2 * MIB).read([key]) == [data]


def test_a_miss_is_no_longer_one_once_another_client_has_saved(open_pool) -> None:
    writer, reader = open_pool(A), open_pool(B)
    key = make_key("looked up too early")
    assert reader.find([key]) == (MISS,)
    writer.keep({key: b"x" * 100})
    until(lambda: reader.find([key]) == (DONE,), SOON, "seen with lookupcache=positive")
    assert reader.read([key]) == [b"x" * 100]


def test_default_options_remember_a_miss_and_a_save_there_is_harmless(open_pool) -> None:
    """Why the documentation asks for `lookupcache=positive`."""
    writer, reader = open_pool(A), open_pool(DEFAULT)
    key, beside = make_key("remembered"), make_key("remembered, beside")
    for each in (key, beside):
        writer.keep({each: b"y" * 50})
        writer.remove([each])
        assert reader.find([each]) == (MISS,)
        writer.keep({each: b"x" * 100})
    assert reader.find([key]) == (MISS,)
    assert reader.save({key: b"x" * 100}).outcomes[0] in (DONE, Outcome.KEPT)
    assert reader.read([key]) == [b"x" * 100]
    # The first client holds a handle of the file that was replaced: a miss for a moment, never other bytes.
    seen = []
    until(lambda: seen.append(writer.read([key])[0]) or seen[-1], SOON, "seen again")
    assert set(seen) <= {None, b"x" * 100}
    print("misses before it was seen again:", len(seen) - 1, dict(writer.counts))


@pytest.mark.parametrize("fsync", [False, True])
@pytest.mark.parametrize(("root", "reason"), [(SMALL, "ENOSPC"), (QUOTA, "EDQUOT")])
def test_C06_a_full_export_publishes_nothing_short_and_recovers(
    open_pool, root: Path, reason: str, fsync: bool
) -> None:
    """NFS takes the writes and tells of the full disk or quota when the file is flushed or closed."""
    pool = open_pool(root, slot_bytes=2 * MIB, fsync=fsync, workers=2)
    behind = SERVER / root.name
    kept = {make_key(f"{fsync} {n}"): make_payload(f"{fsync} {n}", 2 * MIB) for n in range(8)}
    done = {key: pool.save({key: data}) for key, data in kept.items()}
    ends = {key: completion.outcomes[0] for key, completion in done.items()}
    assert set(ends.values()) == {DONE, FULL}
    assert {completion.reason for completion in done.values()} == {"", reason}
    good = [key for key, outcome in ends.items() if outcome is DONE]
    assert [*pool.read(good)] == [kept[key] for key in good]
    sizes = {path.name: path.stat().st_size for path in behind.rglob("*.kv")}
    assert sizes == {f"{key.hex()}.kv": 4096 + 2 * MIB for key in good}
    # A file that is unlinked before its last reference is gone stays for a moment, under a name of the client's.
    left = behind.glob
    until(lambda: not [path for path in left("*/.tmp/*/*") if path.is_file()], SOON, "nothing unfinished stays")
    pool.remove(good[:2])
    late = make_key(f"{fsync} late")
    until(lambda: pool.save({late: b"z" * 1000}).outcomes == (DONE,), SOON, "room again")
    pool.remove([*good, late])


def test_C19_files_whose_handles_are_stale_are_misses_and_can_be_saved_again(open_pool) -> None:
    pool = open_pool(OLD)
    kept = {make_key(f"stale {n}"): make_payload(f"stale {n}") for n in range(4)}
    pool.keep(kept)
    assert pool.read([*kept]) == [*kept.values()]
    for path in {pool.path(key).parent.parent for key in kept}:
        shutil.rmtree(SERVER / "kv" / path.relative_to(OLD))
    for _ in range(3):
        found = pool.load([*kept])
        assert set(found.outcomes) <= {MISS, FAILED}, found
    until(lambda: pool.load([*kept]).outcomes == (MISS,) * 4, 60.0, "misses")
    until(lambda: set(pool.save(kept).outcomes) <= {DONE, Outcome.KEPT}, 60.0, "saved again")
    assert pool.read([*kept]) == [*kept.values()]


def test_C19_a_server_that_is_silent_costs_deadlines_and_comes_back(open_pool, cut, monkeypatch) -> None:
    monkeypatch.setattr(workers, "STUCK_SECONDS", 0.5)
    pool, other = open_pool(B, workers=2), open_pool(A)
    kept = {make_key(f"silent {n}"): make_payload(f"silent {n}") for n in range(6)}
    pool.keep(kept)
    cut("b")
    slowest, ends = 0.0, []
    for n in range(8):
        start = time.monotonic()
        batch = pool.submit(Op.FIND, [make_key(f"never seen {n}")], deadline=time.monotonic() + 0.3)
        slowest = max(slowest, time.monotonic() - start)
        ends.append(pool.wait(batch).outcomes[0])
        assert time.monotonic() - start < 0.3 + SOON
    assert slowest < 0.5, "submit never waits"
    assert set(ends) <= {LATE, FAILED}
    assert other.read([*kept]) == [*kept.values()], "the other client goes on"
    cut("")
    until(lambda: pool.find([*kept]) == (DONE,) * 6, 200.0, "it answers again")
    assert pool.read([*kept]) == [*kept.values()]
    until(lambda: pool.member.healthy() == "", 200.0, "all workers came back")


def test_close_is_bounded_while_the_server_is_silent(open_pool, cut) -> None:
    pool = open_pool(B, workers=2)
    pool.keep({make_key("closing"): b"x" * 100})
    cut("b")
    for n in range(4):
        pool.submit(Op.FIND, [make_key(f"closing {n}")])
    assert pool.close() < 5.0 + SOON
