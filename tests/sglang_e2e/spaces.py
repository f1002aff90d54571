"""Run in an engine's environment: `spaces.py ENGINE MODEL...` prints the namespace of each model's each variant."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

from kvhub.keys import Namespace

CHUNK = 64
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "half": {"dtype": "bfloat16"},
    "rotary": {"config": {"rope_parameters": {"rope_type": "default", "rope_theta": 20000.0}}},
    "scaled": {"config": {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}}},
    "fp8": {"kv": "fp8_e5m2"},
}


def vllm(model: str, told: dict[str, Any]) -> Namespace:
    from vllm.engine.arg_utils import EngineArgs

    from kvhub_vllm.facts import namespace

    args = EngineArgs(
        model=model, dtype=told.get("dtype", "float32"), hf_overrides=told.get("config", {}), enforce_eager=True
    )
    engine = args.create_model_config()
    layers = [f"layer.{at}" for at in range(engine.hf_text_config.num_hidden_layers)]
    group = SimpleNamespace(kv_cache_spec="attention", layer_names=layers)
    config = SimpleNamespace(model_config=engine, cache_config=SimpleNamespace(cache_dtype=told.get("kv", "auto")))
    return namespace(config, SimpleNamespace(kv_cache_groups=[group]), {}, CHUNK)


def sglang(model: str, told: dict[str, Any]) -> Namespace:
    from kvhub_sglang import facts
    from sglang.srt import runtime_context
    from sglang.srt.server_args import ServerArgs

    from kvhub.layout import Layout

    args = ServerArgs(
        model_path=model, device="cpu", dtype=told.get("dtype", "float32"), kv_cache_dtype=told.get("kv", "auto"),
        json_model_override_args=json.dumps(told.get("config", {})),
    )  # fmt: skip
    runtime_context.get_server_args = lambda: args
    read = facts.read_model()
    layers = int(read.config["num_hidden_layers"])
    dtype = {"fp8_e5m2": "float8_e5m2"}.get(read.kv_dtype, read.dtype)
    layout = Layout("attention", layers, CHUNK, 2, 32, 32, dtype, "clthd", "clthd")
    rank = SimpleNamespace(tp_rank=0, tp_size=1, pp_rank=0, pp_size=1, is_mla_model=False)
    return facts.namespace(read, rank, layout, layers, {}, CHUNK)


def main() -> None:
    engine, *models = sys.argv[1:]
    of = {"vllm": vllm, "sglang": sglang}[engine]
    spaces = {model: {name: of(model, told) for name, told in VARIANTS.items()} for model in models}
    told = {
        model: {name: [space.digest.hex(), space.json] for name, space in each.items()}
        for model, each in spaces.items()
    }
    print("SPACES " + json.dumps(told))


if __name__ == "__main__":
    main()
