"""Decode pulls a prompt while prefill computes it: real engines, UCX between them, any prefill with any decode."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from harness.engine import ForkedEngine
from harness.outputs import Output

from e2e.asking import at_rest, flushed, gained, hits, inside, prompt, same
from e2e.conftest import PD, Start

pytestmark = pytest.mark.vllm
STREAMED = PD.replace("lookup: 5s, lease: 20s", "lookup: 5s, lease: 20s, stream_chunks: 2, stream_grace: 30s").replace(
    "{{from: wire, deadline: 10s}}", "{{from: wire, deadline: 60s}}"
)
CHUNKED = {"max_num_batched_tokens": 128, "enable_chunked_prefill": True}
"""Two chunks of a prompt per step."""


def peer_of(prefill: ForkedEngine) -> dict[str, Any]:
    """Where a prefill's hub is, as a front learns it: from an answer."""
    told = prefill.complete(prompt(70, seed=99), max_tokens=1, params={"do_remote_decode": True}, logprobs=None)
    assert told.params is not None
    inside(prefill, "fulfil", promise=told.params["kvhub"]["promise"])
    return {name: told.params["kvhub"][name] for name in ("address", "incarnation")}


def legs(peer: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parameters of both legs, as a front makes them."""
    name = secrets.token_hex(16)
    given = {"do_remote_decode": True, "kvhub": {"promise": name}}
    return given, {"kvhub": {**peer, "promise": name, "streaming": True}}


def both(
    prefill: ForkedEngine, decode: ForkedEngine, peer: dict[str, Any], tokens: Sequence[int], *, wait: float = 0.0
) -> Output:
    """One request, both legs at once; or the prefill leg `wait` seconds later."""
    first, second = legs(peer)
    with ThreadPoolExecutor(2) as pool:

        def run_first() -> None:
            time.sleep(wait)
            prefill.complete(tokens, max_tokens=1, params=first, logprobs=None)

        leg = pool.submit(run_first)
        answer = pool.submit(decode.complete, tokens, max_tokens=12, params=second).result()
        leg.result()
    return answer


def test_pieces_arrive_before_prefill_has_answered(start: Start) -> None:
    """Two prefills, two decodes, every pair: the plain engine's answers, and KV that left before it was all there."""
    plain = start()
    prefills = [start("prefill", STREAMED, **CHUNKED) for _ in range(2)]
    decodes = [start("decode", STREAMED) for _ in range(2)]
    peers = [peer_of(prefill) for prefill in prefills]
    for number, (p, d) in enumerate(((0, 0), (0, 1), (1, 1), (1, 0))):
        tokens = prompt(1400 + 9 * number, seed=number)
        before, early = hits(decodes[d]), inside(prefills[p], "reports").get("streamed_chunks", 0)
        same(plain.complete(tokens, max_tokens=12), both(prefills[p], decodes[d], peers[p], tokens))
        assert gained(before, hits(decodes[d])) == {"wire": len(tokens)}
        # What leaves while its request is not over leaves before its leg's answer.
        assert inside(prefills[p], "reports").get("streamed_chunks", 0) - early >= 2
    for decode in decodes:
        flushed(decode)
        at_rest(decode)
    for prefill in prefills:
        at_rest(prefill)


def test_the_prefill_leg_may_come_later(start: Start) -> None:
    plain, prefill, decode = start(), start("prefill", STREAMED, **CHUNKED), start("decode", STREAMED)
    peer, tokens = peer_of(prefill), prompt(700)
    same(plain.complete(tokens, max_tokens=12), both(prefill, decode, peer, tokens, wait=1.0))
    assert hits(decode) == {"wire": 700}
    assert inside(decode, "reports")["stream_pauses"] > 0
    flushed(decode)
    at_rest(decode)
    at_rest(prefill)


def test_a_leg_that_never_comes_or_is_aborted_costs_computing(start: Start) -> None:
    plain, prefill = start(), start("prefill", STREAMED, **CHUNKED)
    decode = start("decode", STREAMED.replace("stream_grace: 30s", "stream_grace: 300ms"))
    peer, tokens = peer_of(prefill), prompt(1400)
    expected = plain.complete(tokens, max_tokens=12)
    same(expected, decode.complete(tokens, max_tokens=12, params=legs(peer)[1]))
    assert not hits(decode).get("wire")
    decode.forget_prefixes()
    inside(decode, "reset")
    # Other tokens: of those before, prefill may by now take all from the pool, and be done before it is aborted.
    tokens = prompt(1400, seed=1)
    expected = plain.complete(tokens, max_tokens=12)
    first, second = legs(peer)
    with ThreadPoolExecutor(1) as pool:
        asked = {"prompt": tokens, "max_tokens": 1, "params": first, "abort_at_step": 5}
        leg = pool.submit(prefill.run, [asked])
        same(expected, decode.complete(tokens, max_tokens=12, params=second))
        assert leg.result()[0].finish == "abort"
    assert hits(decode).get("wire", 0) < len(tokens)
    flushed(decode)
    at_rest(decode)
    at_rest(prefill)


def test_prefill_killed_mid_prompt(start: Start) -> None:
    """SIGKILL while it computes and decode pulls: decode computes what did not come."""
    plain, decode = start(), start("decode", STREAMED)
    tokens = prompt(1900)
    expected = plain.complete(tokens, max_tokens=12)
    for delay in (0.1, 0.4):
        prefill = start("prefill", STREAMED, **CHUNKED)
        first, second = legs(peer_of(prefill))
        with killed(prefill, delay), ThreadPoolExecutor(1) as pool:
            pool.submit(prefill.complete, tokens, max_tokens=1, params=first, logprobs=None)
            same(expected, decode.complete(tokens, max_tokens=12, params=second))
        decode.forget_prefixes()
        inside(decode, "reset")
    flushed(decode)
    at_rest(decode)


@contextmanager
def killed(engine: ForkedEngine, delay: float) -> Iterator[None]:
    """SIGKILL after a while."""
    timer = threading.Timer(delay, os.kill, (engine.pid, 9))
    timer.start()
    try:
        yield
    finally:
        timer.join()


def test_many_at_once_between_all_pairs(start: Start) -> None:
    """Requests of one prefix in flight on all engines, each with its own pair."""
    plain = start()
    prefills = [start("prefill", STREAMED, **CHUNKED) for _ in range(2)]
    decodes = [start("decode", STREAMED) for _ in range(2)]
    peers = [peer_of(prefill) for prefill in prefills]
    prompts = [prompt(200, seed=1) + prompt(150 + 9 * at, seed=at) for at in range(12)]
    asked: dict[ForkedEngine, list[dict[str, Any]]] = {engine: [] for engine in (*prefills, *decodes)}
    for at, tokens in enumerate(prompts):
        first, second = legs(peers[at % 2])
        asked[prefills[at % 2]].append({"prompt": tokens, "max_tokens": 1, "params": first})
        asked[decodes[at // 2 % 2]].append({"prompt": tokens, "max_tokens": 24, "logprobs": 5, "params": second})
    with ThreadPoolExecutor(4) as pool:
        running = {engine: pool.submit(engine.run, requests) for engine, requests in asked.items()}
        answers = {engine: running[engine].result() for engine in asked}
    expected = plain.run([{"prompt": tokens, "max_tokens": 24, "logprobs": 5} for tokens in prompts])
    for at, theirs in enumerate(expected):
        same(theirs, answers[decodes[at // 2 % 2]][at // 4 * 2 + at % 2])
    for engine in (*decodes, *prefills):
        flushed(engine)
        at_rest(engine)
