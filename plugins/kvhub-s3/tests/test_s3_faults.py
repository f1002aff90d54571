"""What a bucket does to hubs, and what they make of it: the end, its bound in time, its counter, and the recovery."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from s3server import FaultProxy

from kvhub.testing import Driver, Dropping, Full, Hanging, Raising, Slow, Torn
from kvhub.testing.region import make_key, make_payload
from kvhub.types import Op, Outcome
from kvhub_s3.client import MOST_TRIES
from kvhub_s3.download import Downloads
from kvhub_s3.failures import BadTls

DONE, KEPT, MISS, CORRUPT, FAILED, LATE, FULL = (
    Outcome.DONE, Outcome.KEPT, Outcome.MISS, Outcome.CORRUPT, Outcome.FAILED, Outcome.LATE, Outcome.FULL,
)  # fmt: skip
KEY, OTHER, DATA = make_key("one"), make_key("two"), make_payload("one")
STALL, SAVE = 0.6, 1.5
MARGIN = 2.0
"""What a busy machine may add to a bound."""
READS = ("GET", "HEAD")
SKEW = "<RequestTime>20260101T010000Z</RequestTime><ServerTime>2026-01-01T00:00:00Z</ServerTime>"


@pytest.fixture
def far(request, open_pool, proxy: FaultProxy, monkeypatch):
    """A pool behind the proxy, with one chunk in it and little patience; `by obstore` reads without our own sockets."""
    if getattr(request, "param", "") == "by obstore":
        monkeypatch.setattr(Downloads, "get", cannot)
    pool = open_pool(
        endpoint=proxy.endpoint, connect_timeout=STALL, stall_timeout=STALL, load_timeout=SAVE, save_timeout=SAVE
    )
    pool.keep({KEY: DATA})
    proxy.seen.clear()
    return pool


def cannot(*arguments: object) -> None:
    raise BadTls("made up")


def timed(call: Callable[[], object]) -> tuple[object, float]:
    before = time.monotonic()
    return call(), time.monotonic() - before


def tries(proxy: FaultProxy, method: str) -> int:
    return sum(request.method == method for request in proxy.seen)


@pytest.mark.parametrize(
    ("kind", "more", "reason", "bound"),
    [
        ("answer", {"status": 503}, "SlowDown", 1.0),
        ("answer", {"status": 500, "code": "InternalError"}, "ServerError", 1.0),
        ("answer", {"status": 403, "code": "AccessDenied"}, "Denied", 0.0),
        ("answer", {"status": 404, "code": "NoSuchBucket"}, "NoBucket", 0.0),
        ("answer", {"status": 400, "code": "ExpiredToken"}, "Denied", 0.0),
        ("answer", {"status": 301, "code": "PermanentRedirect"}, "WrongRegion", 0.0),
        ("answer", {"status": 405, "code": "MethodNotAllowed"}, "Refused", 0.0),
        ("hang", {}, "Timeout", STALL),
        ("stall", {}, "Timeout", STALL),
        ("reset", {}, "Broken", 1.0),
        ("close", {}, "Broken", 1.0),
        ("cut", {}, "Broken", 1.0),
    ],
    ids=lambda value: str(value) if isinstance(value, str) else "",
)
@pytest.mark.parametrize("far", ["direct", pytest.param("by obstore", marks=pytest.mark.slow)], indirect=True)
def test_C16_C18_a_load_ends_in_time_and_says_why(far, proxy, kind, more, reason, bound) -> None:
    """No answer is ever taken for "not there", nothing is removed, and all is well when the fault is over."""
    with proxy.failing(kind, methods=("GET",), **more):
        done, took = timed(lambda: far.load([KEY]))
    assert (done.outcomes, done.reason) == ((FAILED,), reason)
    assert took < bound + MARGIN
    assert 1 <= tries(proxy, "GET") <= MOST_TRIES + 1, "one more on a connection that the server had closed"
    assert tries(proxy, "DELETE") == 0
    assert far.counts["io_errors"] == 1
    assert far.read([KEY]) == [DATA]


@pytest.mark.parametrize(("kind", "bound"), [("answer", 1.0), ("hang", SAVE), ("reset", 1.0), ("close", 1.0)])
def test_C16_a_save_ends_in_time_and_may_be_done_again(far, proxy, kind, bound) -> None:
    with proxy.failing(kind, methods=("PUT",)):
        done, took = timed(lambda: far.save({OTHER: DATA}))
    assert done.outcomes == (FAILED,)
    assert took < bound + MARGIN
    assert 1 <= tries(proxy, "PUT") <= MOST_TRIES
    assert far.find([OTHER]) == (MISS,)
    far.keep({OTHER: DATA})
    assert far.read([OTHER, KEY]) == [DATA, DATA]


@pytest.mark.parametrize("kind", ["answer", "reset", "close", "cut"])
@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_C16_what_passes_by_itself_is_tried_again(far, proxy, kind, method) -> None:
    with proxy.failing(kind, methods=(method,), times=2) as fault:
        done = far.load([KEY]) if method == "GET" else far.save({OTHER: DATA})
    assert done.outcomes[0].good, done.reason
    if kind != "cut" or method == "GET":  # an answer to a PUT has no body that could be cut
        assert fault.hits == 2
        stale = method == "GET" and kind in ("reset", "close")
        assert far.counts["retries"] == 2 - stale, "a kept connection that was closed is no failure"
    assert far.counts.get("throttled", 0) == (2 if kind == "answer" else 0)
    assert "io_errors" not in far.counts


@pytest.mark.parametrize("kind", ["answer", "hang"])
def test_C16_no_try_goes_beyond_the_deadline(far, proxy, kind) -> None:
    with proxy.failing(kind, methods=READS):
        deadline = time.monotonic() + 0.1
        batches = [far.submit(Op.FIND, [KEY], deadline=deadline), far.submit(Op.LOAD, [KEY], [40], deadline=deadline)]
        ends, took = timed(lambda: [far.wait(batch) for batch in batches])
    assert [done.outcomes for done in ends] == [(LATE,), (LATE,)] if kind == "hang" else [(FAILED,), (FAILED,)]
    assert took < 0.1 + MARGIN / 2
    assert far.read([KEY]) == [DATA]


def test_C16_a_dripping_answer_is_left(far, proxy) -> None:
    with proxy.failing("drip", methods=("GET",), seconds=0.01):
        batch = far.submit(Op.LOAD, [KEY], [40], deadline=time.monotonic() + 0.3)
        done, took = timed(lambda: far.wait(batch))
    assert done.outcomes[0] in (FAILED, LATE)
    assert took < SAVE + MARGIN
    assert far.read([KEY]) == [DATA]


@pytest.mark.parametrize(
    ("code", "text", "words"),
    [
        ("AccessDenied", "", "check the credentials and the policy"),
        ("RequestTimeTooSkewed", SKEW, "this machine's clock is +3600 s from the server's"),
        ("", "", "does not permit this (403)"),
    ],
)
def test_C17_a_refusal_is_no_miss_and_shows_in_health(far, proxy, code, text, words) -> None:
    assert far.member.healthy() == ""
    with proxy.failing("answer", status=403, code=code, text=text):
        find, load, save = far.run(Op.FIND, [KEY]), far.load([KEY]), far.save({OTHER: DATA})
        assert words in far.member.healthy()
    assert (find.outcomes, load.outcomes, save.outcomes) == ((FAILED,),) * 3
    assert load.reason == ("ClockSkew" if text else "Denied")
    assert far.counts["denied"] == 3
    assert tries(proxy, "GET") == 2, "a refusal is not asked for again, only once for its reason"
    assert far.read([KEY]) == [DATA]
    assert far.member.healthy() == ""


@pytest.mark.parametrize(
    ("status", "code"), [(507, ""), (403, "QuotaExceeded"), (507, "XMinioStorageFull"), (400, "InsufficientStorage")]
)
def test_C06_a_bucket_over_its_quota_is_full_and_serves(far, proxy, status, code) -> None:
    with proxy.failing("answer", methods=("PUT",), status=status, code=code):
        done = far.save({OTHER: DATA})
        assert (done.outcomes, done.reason) == ((FULL,), "ENOSPC")
        assert far.read([KEY]) == [DATA]
    assert tries(proxy, "PUT") == 1, "trying again makes no room"
    assert far.counts.get("denied", 0) == 0
    assert far.save({OTHER: DATA}).outcomes == (DONE,)


def test_reads_are_left_to_obstore_where_it_can_and_we_cannot(open_pool, proxy, monkeypatch) -> None:
    """It may trust other authorities than Python does."""
    monkeypatch.setattr(Downloads, "get", cannot)
    pool = open_pool(endpoint=proxy.endpoint)
    assert pool.member._client._downloads is None
    pool.keep({KEY: DATA})
    assert pool.read([KEY, OTHER]) == [DATA, None]


def test_a_proxy_of_the_environment_is_used(open_pool, proxy, monkeypatch) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", proxy.endpoint)
    pool = open_pool()
    pool.keep({KEY: DATA})
    assert pool.read([KEY]) == [DATA]
    assert {"GET", "HEAD", "PUT"} <= {request.method for request in proxy.seen}


def test_C21_the_server_may_come_and_go(far, proxy) -> None:
    proxy.stop()
    done = far.load([KEY])
    assert done.outcomes == (FAILED,) and done.reason in ("Unreachable", "Broken")
    assert far.save({OTHER: DATA}).outcomes == (FAILED,)
    proxy.start()
    assert far.read([KEY]) == [DATA]
    far.keep({OTHER: DATA})


def test_C03_another_etag_means_another_object_and_stays(far, proxy, objects) -> None:
    """Between the damaged read and the removal somebody stored it anew, as far as the answers tell."""
    context = far.member.context
    stored = bytearray(objects.read(context, KEY) or b"")
    stored[-1] ^= 1
    objects.write(context, KEY, bytes(stored))
    with proxy.failing("etag", methods=("HEAD",)):
        assert far.load([KEY]).outcomes == (CORRUPT,)
    assert tries(proxy, "DELETE") == tries(proxy, "POST") == 0
    assert objects.read(context, KEY) == bytes(stored)
    assert far.load([KEY]).outcomes == (CORRUPT,)
    assert objects.read(context, KEY) is None


def test_C03_a_failing_removal_is_counted_and_no_more(far, proxy, objects) -> None:
    context = far.member.context
    objects.write(context, KEY, b"spoilt")
    with proxy.failing("answer", methods=("DELETE", "POST"), status=403, code="AccessDenied"):
        assert far.load([KEY]).outcomes == (CORRUPT,)
    assert far.counts["integrity_errors"] == far.counts["io_errors"] == 1
    assert objects.read(context, KEY) == b"spoilt"


def test_C22_many_keys_are_asked_for_side_by_side(open_pool, proxy) -> None:
    pool = open_pool(endpoint=proxy.endpoint, workers=8)
    keys = [make_key(n) for n in range(64)]
    with proxy.failing("slow", methods=("HEAD",), seconds=0.05):
        found, took = timed(lambda: pool.find(keys))
    assert found == (MISS,) * 64
    assert took < 64 * 0.05 / 2, "one after the other that takes 3.2 s"
    assert proxy.most_connections <= 2 * 8, "what reads and what writes have connections of their own"


def test_C24_descriptors_stay_bounded(open_pool, proxy) -> None:
    pool = open_pool(endpoint=proxy.endpoint, workers=4)
    pool.keep({KEY: DATA})
    descriptors = Path("/proc/self/fd")
    before = len([*descriptors.iterdir()])
    batches = [pool.submit(Op.LOAD, [KEY] * 10, range(32, 42)) for _ in range(50)]
    assert all(pool.wait(batch).outcomes == (DONE,) * 10 for batch in batches)
    # The proxy is in this process, too: two descriptors for each connection and one behind it.
    assert len([*descriptors.iterdir()]) - before <= 3 * 2 * 4


@pytest.mark.parametrize("wrap", [Slow, Hanging, Raising, Torn, Dropping, Full], ids=lambda wrap: wrap.__name__)
def test_a_store_that_misbehaves_is_well_again_afterwards(open_pool, wrap) -> None:
    """The wrappers that hubs are tried with take a bucket store like any other."""
    pool = open_pool(attach=False)
    more = {Slow: (0.1,), Raising: (OSError("raised"),)}.get(wrap, ())
    broken = wrap(pool.member, *more)
    driver = Driver(broken, patience=5.0)
    driver.attach()
    broken.broken = False
    driver.keep({KEY: DATA})
    broken.broken = True
    if wrap not in (Hanging, Raising, Dropping):
        driver.load([KEY])
    broken.broken = False
    assert driver.read([KEY]) == [DATA]
    driver.close()
