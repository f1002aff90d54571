"""Fifty requests against the real engine: aborts at any step, too little KV space, shared prefixes."""

from __future__ import annotations

import random
from typing import Any

import pytest

from e2e.asking import at_rest, flushed, hits, inside, prompt
from e2e.conftest import PD, TIERED, Start

pytestmark = pytest.mark.vllm
SMALL = {
    "kv_cache_memory_bytes": 3 << 19,  # 768 tokens
    "max_model_len": 512,
    "max_num_seqs": 6,
    "max_num_batched_tokens": 256,
    "block_size": 32,
}


def requests(count: int, seed: int) -> list[dict[str, Any]]:
    draw = random.Random(seed)
    stems = [prompt(draw.choice((64, 150, 256)), seed=at) for at in range(5)]
    made = []
    for _ in range(count):
        one: dict[str, Any] = {
            "prompt": draw.choice(stems) + prompt(draw.randrange(1, 120), seed=100 + draw.randrange(12)),
            "max_tokens": draw.randrange(1, 90),
            "at_step": draw.randrange(0, 4 * count),
        }
        if draw.random() < 0.3:
            one["abort_at_step"] = one["at_step"] + draw.randrange(0, 30)
        made.append(one)
    return made


def test_fifty_requests_leave_nothing_behind(start: Start) -> None:
    """B08, A12: outputs equal the plain engine's; slots, leases, blocks, descriptors and threads at the baseline."""
    plain, engine = start(**SMALL), start("both", TIERED, **SMALL)
    engine.complete(prompt(40), max_tokens=2)
    flushed(engine)
    before = engine.holdings()
    asked = requests(50, seed=3)
    mine = engine.run(asked, within=300)
    theirs = plain.run([{k: v for k, v in one.items() if k != "abort_at_step"} for one in asked], within=300)
    ended = 0
    for one, other in zip(mine, theirs, strict=True):
        if one.finish == "abort":
            continue
        ended += 1
        assert one.tokens == other.tokens
    assert ended >= 30
    assert hits(engine).get("host", 0) > 0
    assert engine.metrics().total("vllm:num_preemptions_total") > 0
    flushed(engine)
    at_rest(engine)
    after = engine.holdings()
    assert after["threads"] <= before["threads"] + 4, "the pool's workers start with their first batches"
    assert after["descriptors"] <= before["descriptors"] + 8
    assert after["shared_mappings"] == before["shared_mappings"]
    assert "gathers_failed" not in inside(engine, "reports")


def test_aborts_on_both_sides_of_the_wire(start: Start) -> None:
    """B05, B11: a decode that gives up while it pulls, in any step."""
    prefill, decode, plain = start("prefill", PD), start("decode", PD), start()
    prompts = [prompt(300, seed=at % 4) + prompt(50, seed=50 + at) for at in range(16)]
    firsts = prefill.run([{"prompt": p, "max_tokens": 1, "params": {"do_remote_decode": True}} for p in prompts])
    asked = [
        {"prompt": p, "max_tokens": 12, "params": dict(first.params or {}), "at_step": at, "abort_at_step": at + at % 6}
        if at % 2
        else {"prompt": p, "max_tokens": 12, "params": dict(first.params or {}), "at_step": at}
        for at, (p, first) in enumerate(zip(prompts, firsts, strict=True))
    ]
    answers = decode.run(asked)
    expected = plain.run([{"prompt": p, "max_tokens": 12} for p in prompts])
    for mine, theirs in zip(answers, expected, strict=True):
        assert mine.finish == "abort" or mine.tokens == theirs.tokens
    flushed(decode)
    at_rest(decode)
    at_rest(prefill)
