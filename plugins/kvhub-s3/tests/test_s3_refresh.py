"""What is used stays young: the rule that stands in for times of use, which S3 does not note."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from kvhub.testing.region import make_key, make_payload
from kvhub.testing.stage import until
from kvhub_s3 import refresh

KEY, TAIL = make_key("one"), make_key("tail")


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch):
    """Let it be two days later, as far as the rule can tell."""
    return lambda: monkeypatch.setattr(refresh, "time", SimpleNamespace(time=lambda: time.time() + 2 * 86400))


def puts(proxy) -> int:
    return sum(method == "PUT" and path.partition("?")[0].endswith(".kv") for method, path, *_ in proxy.seen)


def test_C21_an_old_chunk_that_is_used_is_put_anew_and_nothing_else(open_pool, proxy, objects, later) -> None:
    pool = open_pool(endpoint=proxy.endpoint)
    data = make_payload("one", pool.member.context.chunk_bytes)
    pool.keep({KEY: data, make_key("idle"): data, TAIL: data[:1000]})
    before = objects.read(pool.member.context, KEY)
    proxy.seen.clear()
    assert pool.read([KEY]) == [data]
    later()
    assert pool.read([TAIL, KEY]) == [data[:1000], data]
    until(lambda: pool.counts.get("refreshed") == 1, 20.0, "it is put anew")
    assert puts(proxy) == 1, "neither what is young, nor a tail, nor what nobody used"
    assert objects.read(pool.member.context, KEY) == before
    assert pool.read([KEY]) == [data]


def test_C21_what_is_refused_or_turned_off_costs_nothing_else(open_pool, proxy, later) -> None:
    pool, off = open_pool(endpoint=proxy.endpoint), open_pool(endpoint=proxy.endpoint, refresh="0s")
    reader = open_pool(endpoint=proxy.endpoint, writes=False)
    data = make_payload("one", pool.member.context.chunk_bytes)
    pool.keep({KEY: data})
    later()
    proxy.seen.clear()
    assert off.read([KEY]) == reader.read([KEY]) == [data]
    with proxy.failing("answer", methods=("PUT",), status=403, code="AccessDenied"):
        assert pool.read([KEY]) == [data]
        until(lambda: pool.counts.get("refreshes_refused") == 1, 20.0, "it is refused")
    assert puts(proxy) == 1 and pool.read([KEY]) == [data]
