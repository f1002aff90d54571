"""Several hubs on one directory, as real processes, some of which are killed."""

from __future__ import annotations

import os
import random
import signal
import time
from hashlib import sha256
from pathlib import Path

import pytest

from kvhub.testing.region import make_key, make_payload
from kvhub.types import Outcome

DONE, MISS = Outcome.DONE, Outcome.MISS


def test_C01_two_writers_one_key(open_pool, other_hub) -> None:
    """Payloads of 64 and 32 KiB under one key, removed now and then: no error, no torn read, nothing unfinished."""
    writers = [other_hub("put", "contended", length, 400) for length in (65536, 32768)]
    pool = open_pool()
    key, wide = make_key("contended"), pool.region.slot_bytes
    whole = {length: sha256(make_payload("contended", length)).digest() for length in (65536, 32768)}
    for writer in writers:
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        writer.stdin.write("go\n")
        writer.stdin.flush()
    outcomes: list[Outcome] = []
    while any(writer.poll() is None for writer in writers):
        done = pool.load([key])
        outcomes += done.outcomes
        if done.outcomes == (DONE,):
            assert done.lengths[0] <= wide
            assert sha256(pool.bytes_of(pool.half, done.lengths[0])).digest() in whole.values()
    assert {writer.stdout.readline() for writer in writers} == {"bad 0\n"}
    assert set(outcomes) <= {DONE, MISS}
    assert set(pool.counts) <= {"conflicts"}
    assert pool.unfinished() == []


@pytest.mark.parametrize("entry", ["C02", "C11"])
def test_C02_C11_a_writer_killed_half_way(pool, other_hub, entry: str) -> None:
    """Half of a chunk is written and its writer killed: a miss at once, writable at once, its bytes given back."""
    writer = other_hub("stop_in_write", "half", 2**20)
    assert writer.stdout.readline() == "half\n"
    key = make_key("half")
    assert pool.find([key]) == (MISS,)
    (left,) = pool.unfinished()
    assert left.stat().st_size == (2**20 + 4096) // 2
    os.kill(writer.pid, signal.SIGKILL)
    writer.wait()
    assert (pool.find([key]), pool.read([key])) == ((MISS,), [None])
    assert pool.save({key: make_payload("half")}).outcomes == (DONE,)
    assert pool.read([key]) == [make_payload("half")]


def test_C11_a_dead_writers_bytes_are_reclaimed_and_a_live_ones_stay(open_pool, other_hub) -> None:
    dead, alive = (other_hub("stop_in_write", name, 2**19) for name in ("dead", "alive"))
    for writer in (dead, alive):
        assert writer.stdout.readline() == "half\n"
    os.kill(dead.pid, signal.SIGKILL)
    # Not waited for: a zombie is as dead, and its pid still answers.
    time.sleep(0.05)
    pool = open_pool()
    assert pool.counts == {"swept_files": 1}
    (left,) = pool.unfinished()
    assert f"-{alive.pid}-" in left.parent.name
    assert not [path for path in left.parent.parent.iterdir() if f"-{dead.pid}-" in path.name]


@pytest.mark.timeout(60)
def test_promise_4_kills_at_random_instants(open_pool, other_hub) -> None:
    """A writer killed at any instant leaves whole chunks, all that it reported among them, or nothing."""
    chance = random.Random(4)
    pool = open_pool()
    length = 32 * 8192
    told = {}
    writer = other_hub("lives")
    for kill in range(30):
        tag = f"life {kill}"
        writer.stdin.write(f"{tag}\n")
        writer.stdin.flush()
        pid = int(writer.stdout.readline())
        time.sleep(chance.uniform(0.0, 0.03))
        os.kill(pid, signal.SIGKILL)
        told[tag] = 0
        while (said := writer.stdout.readline()) != "killed\n":
            told[tag] = int(said.removeprefix("saved "))
    assert sum(told.values()) > 0
    reader = open_pool(slots=2)
    files = {path.name: path for path in pool.home.glob("??/??/*")}
    assert len(files) >= sum(told.values())
    for tag, count in told.items():
        for number in range(count + 9):
            name = f"{tag} {number}"
            path = files.pop(f"{make_key(name).hex()}.kv", None)
            assert path is not None or number >= count, f"{name} was reported as saved and is not there"
            if path is not None:
                data = path.read_bytes()
                assert len(data) == 4096 + length and data[4096:] == sha256(name.encode()).digest() * 8192
    assert files == {}
    assert reader.unfinished() == []


def test_C12_found_means_loadable_with_a_failing_writer(pool, other_hub) -> None:
    """Of two writers of a key one fails in its data write; what it began leaves no trace."""
    writer = other_hub("fail_in_write", "both")
    assert writer.communicate()[0] == "FAILED EIO\n"
    key = make_key("both")
    assert (pool.find([key]), pool.read([key])) == ((MISS,), [None])
    assert pool.unfinished() == []
    pool.keep({key: make_payload("both")})
    assert other_hub("fail_in_write", "both").communicate()[0] == "KEPT \n"
    assert (pool.find([key]), pool.read([key])) == ((DONE,), [make_payload("both")])


def test_A27_reading_while_the_same_key_is_written_slowly(open_pool, monkeypatch) -> None:
    """1 MiB in 64 KiB pieces, a millisecond apart, while it is read over and over: a miss or all of it."""
    writev = os.writev

    def slowly(fd: int, buffers: list[memoryview]) -> int:
        time.sleep(0.001)
        return writev(fd, [memoryview(b"".join(buffers))[:65536]])

    def slowly_on(fd: int, data: memoryview) -> int:
        time.sleep(0.001)
        return writev(fd, [data[:65536]])

    monkeypatch.setattr(os, "writev", slowly)
    monkeypatch.setattr(os, "write", slowly_on)
    writer, reader = open_pool(slots=2), open_pool(slots=2)
    key, data = make_key("slow"), make_payload("slow", writer.region.slot_bytes)
    outcomes = set()
    for _ in range(20):
        batch = writer.start_save({key: data})
        while batch not in writer.ended:
            found = reader.read([key])[0]
            outcomes.add(found is None)
            assert found in (None, data)
            writer.poll()
        assert reader.read([key]) == [data]
        writer.ended.clear()
        writer.remove([key])
    assert outcomes, "nothing was read while writing"


def test_C24_few_descriptors(other_hub) -> None:
    """500 loads at once with 64 descriptors: no error; with none left: FAILED, and well again afterwards."""
    said = other_hub("few_descriptors", 500).communicate()[0].splitlines()
    assert said == ["200 300 500 True", "FAILED EMFILE", "DONE"]


def test_C06_a_full_file_system(other_hub, tmp_path: Path, private_mount) -> None:
    """Full: stores are dropped, reads go on, nothing stays unfinished, and it recovers by itself."""
    hub = other_hub("fill", wrapper=private_mount(f"mount -t tmpfs -o size=3m kv {tmp_path}"))
    outcomes, reasons, *rest = hub.communicate()[0].splitlines()
    assert outcomes.split()[:8] == ["DONE"] * 8 and outcomes.split()[-5:] == ["FULL"] * 5
    assert reasons == "ENOSPC"
    assert rest == ["reads True", "unfinished 0", "again DONE"]


def test_C06_C08_a_full_file_system_is_swept_and_the_save_tried_once_more(
    other_hub, tmp_path: Path, private_mount
) -> None:
    """What was longest unused goes, nothing that was used a moment ago, and a save is good that met no room."""
    hub = other_hub("sweep", wrapper=private_mount(f"mount -t tmpfs -o size=6m kv {tmp_path}"))
    assert hub.communicate()[0].splitlines() == [
        "young 1 0 True",
        "late DONE True",
        "gone True True True 1",
        "in time True",
        "left 0",
    ]
