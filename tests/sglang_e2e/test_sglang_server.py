"""The real server, end to end: served by the pool after a restart; by nothing but itself where the pool is damaged."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e.asking import NOISE, prompt
from harness.outputs import difference, widest_gap
from harness.sglang import PAGE, Answer, SglangEngine

from sglang_e2e.conftest import Begin

pytestmark = pytest.mark.sglang
LONG = prompt(700)
MADE = 40
WHOLE = (len(LONG) - 1) // PAGE * PAGE
Chunks = Callable[[], list[Path]]


@pytest.fixture(scope="module")
def plain(begin: Begin) -> SglangEngine:
    return begin("plain", plain=True)


@pytest.fixture(scope="module")
def engine(begin: Begin, plain: SglangEngine) -> SglangEngine:
    """With short deadlines: what a test must wait for it waits for by asking again."""
    one = begin("kvhub", lookup="1s", deadline="1s")
    plain.ready()
    one.ready()
    return one


@pytest.fixture(scope="module")
def expected(plain: SglangEngine, engine: SglangEngine) -> Answer:
    return plain.generate(LONG, max_tokens=MADE)


def same(one: Answer, other: Answer) -> None:
    assert difference(one, other) is None
    assert len(one.logprobs) == len(other.logprobs) == MADE
    assert widest_gap(one, other) <= NOISE


def wait_for(chunks: Chunks, count: int) -> None:
    until = time.monotonic() + 30
    while len(chunks()) < count:
        assert time.monotonic() < until, f"{len(chunks())} chunks in the pool, {count} were due"
        time.sleep(0.05)


def test_a_second_run_after_a_restart_is_served_by_the_pool(
    engine: SglangEngine, expected: Answer, chunks: Chunks
) -> None:
    """Prompt and generated tokens are there; the answer and its logprobs are the plain engine's."""
    first = engine.generate(LONG, max_tokens=MADE)
    assert first.storage == 0
    same(expected, first)
    wait_for(chunks, (len(LONG) + MADE - 1) // PAGE)
    engine.stop()
    engine.start()
    engine.ready()
    again = engine.generate(LONG, max_tokens=MADE)
    assert (again.storage, again.device) == (WHOLE, 0)
    same(expected, again)
    until = time.monotonic() + 20
    while engine.metrics().total("kvhub:hit_tokens_total", source="pool") != WHOLE:
        assert time.monotonic() < until, "the hub's counters are not among the server's metrics"
        time.sleep(0.1)
    longer = [*LONG, *expected.tokens, *prompt(20, 3)]
    turn = engine.generate(longer, max_tokens=8)
    # What the device still has comes first; generated tokens are behind it in the pool.
    assert turn.cached == (len(LONG) + MADE - 1) // PAGE * PAGE


def test_A05_a_salt_shares_with_itself_only(engine: SglangEngine, expected: Answer) -> None:
    """The tree names the chains of tenants by itself; the pool must keep them apart, and find each again."""
    for salt, found in (("t1", 0), ("t2", 0), ("t1", WHOLE), (None, WHOLE)):
        engine.forget_prefixes()
        answer = engine.generate(LONG, max_tokens=MADE, **({"cache_salt": salt} if salt else {}))
        assert answer.storage == found, f"salt {salt}"
        same(expected, answer)
        time.sleep(1.0)


def test_a_damaged_chunk_ends_the_hit_and_is_computed(engine: SglangEngine, expected: Answer, chunks: Chunks) -> None:
    """Pitfall 1: SGLang does not check what it reads.  Every chunk is damaged, each in another place."""
    for at, path in enumerate(chunks()):
        data = bytearray(path.read_bytes())
        place = 4096 + (at * 7919 + 5) % (len(data) - 4096)
        data[place] ^= 1 << at % 8
        path.write_bytes(data)
    engine.forget_prefixes()
    answer = engine.generate(LONG, max_tokens=MADE)
    assert answer.storage == 0
    same(expected, answer)


def test_what_is_missing_is_computed(engine: SglangEngine, expected: Answer, chunks: Chunks) -> None:
    """Half of the chunks vanish: a shorter hit, or none, and the same answer."""
    engine.forget_prefixes()
    engine.generate(LONG, max_tokens=MADE)
    wait_for(chunks, WHOLE // PAGE)
    engine.forget_prefixes()
    whole = engine.generate(LONG, max_tokens=MADE)
    assert whole.storage == WHOLE
    for path in chunks()[::2]:
        path.unlink()
    engine.forget_prefixes()
    answer = engine.generate(LONG, max_tokens=MADE)
    assert answer.storage < WHOLE
    same(expected, answer)


def test_a_pool_that_hangs_costs_at_most_its_deadlines(engine: SglangEngine, expected: Answer, chunks: Chunks) -> None:
    """Every chunk is a FIFO that nobody writes: what opens it the naive way hangs for ever."""
    wait_for(chunks, WHOLE // PAGE)
    for path in chunks():
        path.unlink()
        os.mkfifo(path)
    engine.forget_prefixes()
    begun = time.monotonic()
    answer = engine.generate(LONG, max_tokens=MADE)
    assert answer.storage == 0
    same(expected, answer)
    assert time.monotonic() - begun < 30
    for path in chunks():
        path.unlink()
    engine.forget_prefixes()
    same(expected, engine.generate(LONG, max_tokens=MADE))
