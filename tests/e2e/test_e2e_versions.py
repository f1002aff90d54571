"""An older release of the engine, the engine's own processes, and the plugin entry point."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness.engine import Zygote
from harness.outputs import difference, widest_gap
from harness.paths import model
from harness.serving import Engine, connector

from e2e.asking import at_rest, flushed, hits, inside, prompt, same, turn
from e2e.conftest import PD, TIERED

pytestmark = pytest.mark.vllm


def test_the_oldest_supported_release(tmp_path: Path, pool: Path) -> None:
    """0.27.1: block tables that the adapter follows by itself, loads that start before the pass."""
    with Zygote(older=True) as older:
        settings = {
            "kv_cache_memory_bytes": 3 << 19,
            "max_model_len": 512,
            "max_num_batched_tokens": 128,
            "block_size": 32,
        }

        def start(name: str, role: str | None, yaml: str = TIERED, **more: object):  # type: ignore[no-untyped-def]
            config = tmp_path / f"{name}.yaml"
            config.write_text(yaml.format(pool=pool))
            transfer = {"kv_transfer_config": connector(config, role)} if role else {}
            return older.engine(model("tiny-llama"), tmp_path / f"{name}.log", **{**transfer, **more})

        with (
            start("plain", None, **settings) as plain,
            start("both", "both", **settings) as both,
            start("prefill", "prefill", PD) as prefill,
            start("decode", "decode", PD) as decode,
        ):
            prompts = [prompt(150, seed=1) + prompt(30 * at, seed=at) for at in range(1, 7)]
            asked = [{"prompt": p, "max_tokens": 60, "logprobs": 5, "at_step": at} for at, p in enumerate(prompts)]
            expected = plain.run(asked)
            for _ in range(2):
                for mine, theirs in zip(both.run(asked), expected, strict=True):
                    same(theirs, mine)
                flushed(both)
                both.forget_prefixes()
            assert hits(both)["host"] > 600
            at_rest(both)
            both.forget_prefixes()
            assert inside(both, "spoil") > 10, "the negative control"
            wrong = both.run(asked[-1:])[0]
            assert difference(expected[-1], wrong) is not None
            for tokens in prompts[:3]:
                same(plain.complete(tokens, max_tokens=12), turn(prefill, decode, tokens, max_tokens=12))
            assert hits(decode)["wire"] > 0


def test_scheduler_and_worker_in_processes_of_their_own(zygote: Zygote, tmp_path: Path, pool: Path) -> None:
    """`vllm serve` as users start it: the worker maps the arena of the engine core's hub; found by entry point."""
    config = tmp_path / "kvhub.yaml"
    config.write_text(TIERED.format(pool=pool))
    transfer = connector(config, "both")
    del transfer["kv_connector_module_path"]
    env = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    served = Engine("served", model("tiny-llama"), tmp_path / "served.log", transfer=transfer, block_size=64, env=env)
    tokens = prompt(400)
    with served, zygote.engine(model("tiny-llama"), tmp_path / "plain.log", block_size=64) as plain:
        expected = plain.complete(tokens, max_tokens=24, logprobs=5)
        served.ready()
        assert difference(expected, served.complete(tokens, max_tokens=24)) is None
        served.forget_prefixes()
        again = served.complete(tokens, max_tokens=24)
        assert difference(expected, again) is None
        assert widest_gap(expected, again) < 2e-5
        assert again.cached >= 384
        assert served.metrics().total("kvhub:hit_tokens_total", source="host") >= 384
