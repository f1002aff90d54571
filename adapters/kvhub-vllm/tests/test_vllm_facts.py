"""The namespace of an engine, and the reasons to refuse one, all at once."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvhub.errors import ConfigError
from kvhub_vllm.facts import check_engine, check_model, namespace


class FullAttentionSpec:
    def __init__(self, block_size: int = 64) -> None:
        self.block_size = block_size

    def __str__(self) -> str:
        return f"full {self.block_size}"


class MambaSpec(FullAttentionSpec):
    pass


def caches(*specs: Any) -> SimpleNamespace:
    groups = [SimpleNamespace(kv_cache_spec=spec, layer_names=[f"layer.{at}"]) for at, spec in enumerate(specs)]
    return SimpleNamespace(kv_cache_groups=groups)


def config(folder: Path | str, **given: Any) -> SimpleNamespace:
    transfer = {"kv_role": "kv_both", "kv_load_failure_policy": "recompute"}
    parallel = {"tensor_parallel_size": 1, "pipeline_parallel_size": 1}
    model = {
        "model": str(folder),
        "revision": None,
        "dtype": "torch.float32",
        "quantization": None,
        "architectures": ["LlamaForCausalLM"],
        "hf_text_config": SimpleNamespace(to_dict=lambda: {"rope_theta": given.get("rope", 1e4)}),
        "is_hybrid": False,
        "has_inner_state": False,
        "is_attention_free": False,
    }
    for name, value in given.items():
        for part in (transfer, parallel, model):
            if name in part:
                part[name] = value
    return SimpleNamespace(
        kv_transfer_config=SimpleNamespace(**transfer),
        parallel_config=SimpleNamespace(**parallel),
        model_config=SimpleNamespace(**model),
        cache_config=SimpleNamespace(cache_dtype=given.get("cache_dtype", "auto")),
        speculative_config=given.get("speculative"),
    )


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    (tmp_path / "model.safetensors").write_bytes(bytes(range(256)) * 4096)
    return tmp_path


def test_all_problems_are_told_at_once(weights: Path) -> None:
    wrong = config(weights, kv_role="kv_consumer", kv_load_failure_policy="fail", tensor_parallel_size=2)
    with pytest.raises(ConfigError) as told:
        check_engine(wrong, caches(FullAttentionSpec(), MambaSpec()), "decode", stores=True, retrieves=True)
    text = str(told.value)
    for part in ("kv_consumer", "kv_both", "recompute", "tensor_parallel_size is 2", "MambaSpec"):
        assert part in text
    assert len(told.value.problems) == 4


def test_several_groups_are_refused_by_naming_the_flag(weights: Path) -> None:
    with pytest.raises(ConfigError, match="--disable-hybrid-kv-cache-manager"):
        check_engine(config(weights), caches(FullAttentionSpec(), FullAttentionSpec()), "both", True, True)


@pytest.mark.parametrize(("role", "stores", "retrieves"), [("kv_producer", True, False), ("kv_consumer", False, True)])
def test_a_flag_that_does_not_contradict_is_fine(weights: Path, role: str, stores: bool, retrieves: bool) -> None:
    check_engine(config(weights, kv_role=role), caches(FullAttentionSpec()), "both", stores, retrieves)


@pytest.mark.parametrize("what", ["is_hybrid", "has_inner_state", "is_attention_free"])
def test_A18_models_with_other_state_are_refused(weights: Path, what: str) -> None:
    with pytest.raises(ConfigError, match="LlamaForCausalLM keeps recurrent state"):
        check_model(config(weights, **{what: True}))


def test_A06_A07_everything_that_changes_the_kv_changes_the_namespace(weights: Path, tmp_path: Path) -> None:
    kinds = caches(FullAttentionSpec())

    def digest(model: dict[str, str] | None = None, chunk: int = 64, **given: Any) -> bytes:
        return namespace(config(weights, **given), kinds, model or {}, chunk).digest

    same = digest()
    assert digest() == same
    others = [
        digest(dtype="torch.bfloat16"),
        digest(cache_dtype="fp8_e4m3"),
        digest(rope=5e5),
        digest(quantization="awq"),
        digest(speculative=SimpleNamespace(method="eagle", model="x")),
        digest({"revision": "r2"}),
        digest({"id": "other"}),
        digest(chunk=128),
    ]
    assert len({same, *others}) == 9
    (weights / "model.safetensors").write_bytes(bytes(range(255, -1, -1)) * 4096)
    assert digest() != same


def test_the_same_weights_elsewhere_share(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    copy = tmp_path_factory.mktemp("copy")
    (copy / "model.safetensors").write_bytes((weights / "model.safetensors").read_bytes())
    kinds = caches(FullAttentionSpec())
    assert namespace(config(weights), kinds, {}, 64).digest == namespace(config(copy), kinds, {}, 64).digest


def test_weights_that_cannot_be_told_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"model\.revision: cannot tell which weights 'org/model' has"):
        namespace(config("org/model"), caches(FullAttentionSpec()), {}, 64)
    assert (
        namespace(config("org/model", revision="abc"), caches(FullAttentionSpec()), {}, 64).revision == "revision abc"
    )
