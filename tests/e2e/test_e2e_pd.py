"""Prefill and decode in processes of their own, UCX between them, decode writing back to a pool."""

from __future__ import annotations

import pytest
from harness.outputs import difference

from e2e.asking import at_rest, flushed, gained, hits, inside, prompt, same, turn
from e2e.conftest import PD, Start

pytestmark = pytest.mark.vllm


def test_a_conversation_crosses_the_wire_once(start: Start) -> None:
    """Only the new suffix crosses; prefill, which keeps nothing, has the history from the pool, answers included."""
    prefill, decode, plain = start("prefill", PD), start("decode", PD), start()
    said: list[int] = []
    for number, length in enumerate((333, 70, 5, 120)):
        known = len(said)
        said += prompt(length, seed=number)
        prefill.forget_prefixes()
        decode.forget_prefixes()
        before = hits(prefill), hits(decode)
        answer = turn(prefill, decode, said)
        same(plain.complete(said, max_tokens=40), answer)
        flushed(decode)
        at_prefill, at_decode = gained(before[0], hits(prefill)), gained(before[1], hits(decode))
        if number:
            assert at_prefill == {"pool": known - 1}, "the last token of an answer has no KV yet"
            assert at_decode["host"] >= (known - 1) // 64 * 64
            assert at_decode.get("wire", 0) <= len(said) - (known - 1) // 64 * 64
        else:
            assert at_decode == {"wire": length}
        said += answer.tokens
    assert inside(prefill, "reports")["prompt_tokens"] == inside(decode, "reports")["prompt_tokens"]
    at_rest(decode)
    at_rest(prefill)


@pytest.mark.parametrize("wire", ["use: ucx", "use: ucx, path: put, transports: cma", "use: tcp, path: message"])
def test_every_path_brings_the_same(start: Start, wire: str) -> None:
    """Read from the peer's arena, written by the peer, or sent over sockets: the answer is the plain engine's."""
    yaml = PD.replace("use: ucx, ", "").replace("path: message", wire)
    prefill, decode, plain = start("prefill", yaml), start("decode", yaml), start()
    tokens = prompt(300)
    answer = turn(prefill, decode, tokens)
    same(plain.complete(tokens, max_tokens=40), answer)
    assert hits(decode) == {"wire": 300}
    at_rest(decode)
    at_rest(prefill)


def test_wrong_kv_on_the_wire_shows(start: Start) -> None:
    """The negative control: what decode pulls is what its answer comes from."""
    prefill, decode, plain = start("prefill", PD), start("decode", PD), start()
    tokens = prompt(300)
    first = prefill.complete(tokens, max_tokens=1, params={"do_remote_decode": True})
    assert inside(prefill, "spoil") >= 5
    wrong = decode.complete(tokens, max_tokens=40, params=dict(first.params or {}))
    assert hits(decode) == {"wire": 300}
    assert difference(plain.complete(tokens, max_tokens=40), wrong) is not None


def test_B12_prompts_around_a_block_release_both_sides(start: Start) -> None:
    prefill, decode, plain = start("prefill", PD), start("decode", PD), start()
    for length in (1, 2, 63, 64, 65, 127, 128, 129):
        tokens = prompt(length, seed=length)
        same(plain.complete(tokens, max_tokens=8), turn(prefill, decode, tokens, max_tokens=8))
    flushed(decode)
    at_rest(decode)
    at_rest(prefill)


def test_many_at_once(start: Start) -> None:
    """Several requests of one prefix in flight on both sides."""
    prefill, decode, plain = start("prefill", PD), start("decode", PD), start()
    prompts = [prompt(200, seed=1) + prompt(20 + 9 * at, seed=at) for at in range(12)]
    firsts = prefill.run([{"prompt": p, "max_tokens": 1, "params": {"do_remote_decode": True}} for p in prompts])
    asked = [
        {"prompt": p, "max_tokens": 24, "logprobs": 5, "params": dict(first.params or {}), "at_step": at}
        for at, (p, first) in enumerate(zip(prompts, firsts, strict=True))
    ]
    answers = decode.run(asked)
    expected = plain.run([{"prompt": p, "max_tokens": 24, "logprobs": 5} for p in prompts])
    for mine, theirs in zip(answers, expected, strict=True):
        same(theirs, mine)
    flushed(decode)
    at_rest(decode)
    at_rest(prefill)


def test_B06_a_decode_that_never_asks_costs_the_prefill_its_lease_only(start: Start) -> None:
    prefill = start("prefill", PD.replace("lease: 20s", "lease: 1s"))
    first = prefill.complete(prompt(200), max_tokens=1, params={"do_remote_decode": True})
    assert first.params and first.params["kvhub"]["tokens"] == 200
    at_rest(prefill)


def test_B06_a_decode_that_refuses_lets_the_prefill_go(start: Start) -> None:
    """Aborted before its first step, or never to be cached: the prefill is told at once, not by its lease."""
    prefill, decode = start("prefill", PD.replace("lease: 20s", "lease: 300s")), start("decode", PD)
    first = prefill.complete(prompt(200), max_tokens=1, params={"do_remote_decode": True})
    assert inside(prefill, "counts")["promises"] == 1
    asked = {"prompt": prompt(200), "max_tokens": 4, "params": dict(first.params or {}), "abort_at_step": 0}
    assert decode.run([asked])[0].finish == "abort"
    at_rest(prefill)


def test_B17_a_restarted_prefill_is_paired_again(start: Start) -> None:
    """Its old promises are answered by computing, its new ones by the wire."""
    prefill, decode, plain = start("prefill", PD), start("decode", PD), start()
    tokens = prompt(200)
    same(plain.complete(tokens, max_tokens=8), turn(prefill, decode, tokens, max_tokens=8))
    stale = prefill.complete(prompt(220, seed=3), max_tokens=1, params={"do_remote_decode": True}).params
    prefill.kill()
    other = decode.complete(prompt(220, seed=3), max_tokens=8, params=dict(stale or {}))
    same(plain.complete(prompt(220, seed=3), max_tokens=8), other)
    fresh = start("prefill", PD)
    before = hits(decode)
    tokens = prompt(260, seed=4)
    same(plain.complete(tokens, max_tokens=8), turn(fresh, decode, tokens, max_tokens=8))
    assert gained(before, hits(decode)) == {"wire": 260}
    at_rest(decode)
