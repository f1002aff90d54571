"""Every attention kind: what a hit gives is what computing gives, from memory and from the pool, tails included."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness.engine import EngineError
from harness.outputs import difference

from e2e.asking import at_rest, flushed, gained, hits, inside, prompt, same
from e2e.conftest import POOL_ONLY, TIERED, Start

pytestmark = pytest.mark.vllm
FIRST, MORE = prompt(300), prompt(45, seed=2)


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-qwen3", "tiny-gemma3", "tiny-mla-dense"])
def test_the_next_turn_takes_prompt_and_answer(start: Start, name: str) -> None:
    """F11: prompt and generated tokens hit, the tail shorter than a chunk included; a restarted engine has the pool."""
    plain, engine = start(name=name), start("both", TIERED, name=name)
    one = engine.complete(FIRST, max_tokens=50)
    same(plain.complete(FIRST, max_tokens=50), one)
    assert one.cached == 0
    flushed(engine)

    engine.forget_prefixes()
    before = hits(engine)
    second = [*FIRST, *one.tokens, *MORE]
    expected = plain.complete(second, max_tokens=30)
    two = engine.complete(second, max_tokens=30)
    same(expected, two)
    known = len(FIRST) + 50 - 1
    cuttable = inside(engine, "layout") != "opaque"
    kept = known if cuttable else known // 64 * 64
    assert two.cached == kept
    assert gained(before, hits(engine)) == {"host": kept}
    flushed(engine)
    at_rest(engine)

    again = start("both", POOL_ONLY, name=name)
    three = again.complete(second, max_tokens=30)
    same(expected, three)
    assert three.cached >= len(second) // 64 * 64
    assert set(hits(again)) == {"pool"}
    at_rest(again)


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-qwen3", "tiny-gemma3", "tiny-mla-dense"])
def test_wrong_kv_shows(start: Start, name: str) -> None:
    """The negative control: without it, equal outputs would prove nothing.  A reset of the host tier mends it."""
    plain, engine = start(name=name), start("both", TIERED, name=name)
    engine.complete(FIRST, max_tokens=1)
    flushed(engine)
    engine.forget_prefixes()
    assert inside(engine, "spoil") >= 4
    wrong = engine.complete(FIRST, max_tokens=40)
    assert wrong.cached >= 256
    expected = plain.complete(FIRST, max_tokens=40)
    assert difference(expected, wrong) is not None
    assert inside(engine, "reset")
    before = hits(engine)
    same(expected, engine.complete(FIRST, max_tokens=40))
    assert set(gained(before, hits(engine))) == {"pool"}


def test_a_model_with_recurrent_state_is_refused(start: Start) -> None:
    """A18: such state cannot be cut into chunks of tokens."""
    with pytest.raises(EngineError, match=r"keeps recurrent state .* run it without kvhub"):
        start("both", name="tiny-granite-hybrid")


def test_a_block_size_that_does_not_divide_the_chunk_is_refused(start: Start) -> None:
    with pytest.raises(EngineError, match=r"chunk_tokens of 64 is no multiple of the engine's block of 96"):
        start("both", block_size=96)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ({"kv_role": "kv_consumer"}, r"kv_role is kv_consumer, which never stores.*set kv_role to kv_both"),
        ({"kv_role": "kv_producer"}, r"kv_role is kv_producer, which never loads.*set kv_role to kv_both"),
        ({"kv_load_failure_policy": "fail"}, r"kv_load_failure_policy is fail.*set it to recompute"),
        ({"kv_connector_extra_config": {"role": "both", "confg": "x"}}, r"(?s)confg: unknown.*config: required"),
    ],
)
def test_flags_that_contradict_the_role_are_refused(
    zygote: object, start: Start, tmp_path: Path, pool: Path, flags: dict[str, object], told: str
) -> None:
    """E09: at start, naming the flag; the launcher that starts a decode as kv_consumer is told."""
    from harness.serving import connector

    config = tmp_path / "kvhub.yaml"
    config.write_text(TIERED.format(pool=pool))
    with pytest.raises(EngineError, match=told):
        start(None, kv_transfer_config={**connector(config, "both"), **flags})


def test_other_settings_of_the_engine(start: Start) -> None:
    """Blocks of 32 in chunks of 64, prefix caching off, prompts cut into small pieces: all at once."""
    settings = {"block_size": 32, "enable_prefix_caching": False, "max_num_batched_tokens": 96, "max_num_seqs": 4}
    plain, engine = start(**settings), start("both", TIERED, **settings)
    for seed in (5, 6):
        one = engine.complete(prompt(333, seed), max_tokens=20)
        same(plain.complete(prompt(333, seed), max_tokens=20), one)
    flushed(engine)
    requests = [{"prompt": prompt(333, seed), "max_tokens": 20, "logprobs": 5} for seed in (5, 6, 7, 5)]
    for mine, theirs in zip(engine.run(requests), plain.run(requests), strict=True):
        same(theirs, mine)
    assert hits(engine)["host"] >= 3 * 320
    at_rest(engine)


def test_bf16_blocks_of_any_packing(start: Start) -> None:
    """What the canary cannot read moves in whole blocks: hits still equal the engine's own prefix cache."""
    plain, engine = start(dtype="bfloat16"), start("both", TIERED, dtype="bfloat16")
    engine.complete(FIRST, max_tokens=1)
    plain.complete(FIRST, max_tokens=1)
    flushed(engine)
    engine.forget_prefixes()
    mine, theirs = engine.complete(FIRST, max_tokens=24), plain.complete(FIRST, max_tokens=24)
    assert mine.cached >= theirs.cached == 256
    if mine.cached == theirs.cached:
        same(theirs, mine)
    at_rest(engine)
