"""Several processes: forks, writers that are killed, and what they leave."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from s3server import FaultProxy, Server

from kvhub.testing.region import make_key
from kvhub.types import Outcome
from kvhub_s3 import uploads

KEY = make_key("other hub")
LARGE = (64 << 20) + 4096
"""Above one request's size."""
PATIENT = {"part_size": "24MiB", "load_timeout": "60s", "save_timeout": "60s", "stall_timeout": "30s"}
"""The proxy takes the whole answer before it hands it on, in Python, on a machine that may be busy with other tests."""
Starts = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def other_hub(server: Server, bucket: str, prefix: str) -> Iterator[Starts]:
    started: list[subprocess.Popen[str]] = []

    def start(word: str, *more: object, endpoint: str = "") -> subprocess.Popen[str]:
        script = str(Path(__file__).parent / "other_hub.py")
        command = [sys.executable, script, endpoint or server.endpoint, bucket, prefix, word, *map(str, more)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_hub_may_be_opened_after_a_fork(other_hub: Starts) -> None:
    said = other_hub("fork-first").communicate(timeout=60)[0].splitlines()
    assert said == ["child: well", "child ended with 0", "parent: well"]


def test_a_fork_with_an_open_hub_hangs_nobody(other_hub: Starts) -> None:
    """obstore's threads stay in the parent; the child is told so, ends by itself, and the parent goes on."""
    said = other_hub("fork-after").communicate(timeout=60)[0].splitlines()
    assert said[0].startswith("child: Forked, other: bucket ")
    assert "open the hub in the child only, or start the child with spawn" in said[0]
    assert said[1:] == ["child ended with 0", "parent: well"]


def unfinished(server: Server, bucket: str, prefix: str) -> list[uploads.Upload]:
    return list(uploads.unfinished(server.rest(bucket), f"{prefix}/"))


def test_a_large_chunk_goes_up_in_parts(open_pool, proxy: FaultProxy, server, bucket, prefix) -> None:
    pool = open_pool(endpoint=proxy.endpoint, slots=2, slot_bytes=LARGE, **PATIENT)
    pool.patience = 90.0
    payload = bytes(range(256)) * (LARGE // 256)
    pool.keep({KEY: payload})
    parts = [request for request in proxy.seen if "partNumber" in request.target]
    assert len(parts) == 3
    done = pool.load([KEY])
    assert (done.outcomes, done.reason) == ((Outcome.DONE,), "")
    right = pool.bytes_of(pool.half, done.lengths[0]) == payload
    assert right, "told without both values: to explain how two of 64 MiB differ takes pytest minutes"
    assert unfinished(server, bucket, prefix) == []


def test_C11_a_failed_part_leaves_nothing(open_pool, proxy: FaultProxy, server, bucket, prefix) -> None:
    pool = open_pool(endpoint=proxy.endpoint, slots=2, slot_bytes=LARGE, **PATIENT)
    second = {"methods": ("PUT",), "only": lambda request: "partNumber=2" in request.target}
    with proxy.failing("answer", status=403, code="AccessDenied", **second):
        done = pool.save({KEY: bytes(LARGE)})
    assert (done.outcomes, done.reason) == ((Outcome.FAILED,), "Denied")
    assert pool.find([KEY]) == (Outcome.MISS,)
    end = time.monotonic() + 5.0
    while unfinished(server, bucket, prefix) and time.monotonic() < end:
        time.sleep(0.05)
    assert unfinished(server, bucket, prefix) == []


def test_C02_C11_a_killed_writer_leaves_nothing_visible(
    other_hub: Starts, open_pool, proxy: FaultProxy, server, bucket, prefix, monkeypatch
) -> None:
    """Its key is a miss, can be written at once, and its upload is aborted by a hub that starts a day later."""
    with proxy.failing("hang", methods=("PUT",), only=lambda request: "partNumber=3" in request.target) as fault:
        writer = other_hub("save", LARGE, endpoint=proxy.endpoint)
        end = time.monotonic() + 30.0
        while not fault.hits and time.monotonic() < end:
            time.sleep(0.02)
        assert fault.hits, "the writer did not come to its third part"
        writer.kill()
    pool = open_pool()
    assert pool.find([KEY]) == (Outcome.MISS,)
    assert pool.load([KEY]).outcomes == (Outcome.MISS,)
    pool.keep({KEY: b"written anew"})
    assert len(unfinished(server, bucket, prefix)) == 1, "another hub's upload, which may go on"
    monkeypatch.setattr(uploads, "AGE_SECONDS", -3600.0)
    later = open_pool()
    end = time.monotonic() + 10.0
    while "swept_uploads" not in later.counts and time.monotonic() < end:
        time.sleep(0.02)
    assert later.counts["swept_uploads"] == 1
    assert unfinished(server, bucket, prefix) == []
    assert later.read([KEY]) == [b"written anew"]


def test_losing_a_race_of_writers_is_no_failure(open_pool) -> None:
    """The server refuses to overwrite, and the probe found that out."""
    pools = [open_pool() for _ in range(2)]
    assert all(pool.member._refuses_to_overwrite for pool in pools)
    for number in range(10):
        key = make_key(number)
        batches = [(pool, pool.start_save({key: b"x" * 20000})) for pool in pools]
        assert all(pool.wait(batch).outcomes[0].good for pool, batch in batches)
    assert pools[0].member.write(KEY.hex(), bytes(4096), memoryview(b"first"))
    assert not pools[1].member.write(KEY.hex(), bytes(4096), memoryview(b"second"))
    assert pools[1].member.replace(KEY.hex(), bytes(4096), memoryview(b"third"))


@pytest.mark.parametrize(
    "answer",
    [{"status": 200, "code": "", "headers": ('ETag: "x"',)}, {"status": 501, "code": "NotImplemented"}],
    ids=["ignores", "refuses"],
)
def test_a_server_that_knows_no_conditions_is_written_to_without(open_pool, proxy: FaultProxy, answer) -> None:
    """Whether it ignores the condition or refuses it."""
    with proxy.failing("answer", methods=("PUT",), only=lambda request: "if-none-match" in request.head, **answer):
        pool = open_pool(endpoint=proxy.endpoint)
        proxy.seen.clear()
        pool.keep({KEY: b"x" * 5000})
        assert pool.read([KEY]) == [b"x" * 5000]
    assert not any("if-none-match" in request.head for request in proxy.seen)
