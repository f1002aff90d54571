"""What the KV of this vLLM engine is: its namespace, and every reason to refuse it, told at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvhub.errors import ConfigError
from kvhub.keys import Namespace
from kvhub.weights import model_namespace, weights_revision


def check_model(config: Any) -> None:
    """Raise ConfigError for a model whose state cannot be cut into chunks of tokens."""
    model = config.model_config
    if model.is_hybrid or model.has_inner_state or model.is_attention_free:
        raise ConfigError(
            [
                f"{'+'.join(model.architectures or ['the model'])} keeps recurrent state beside or instead of "
                f"attention KV, which cannot be cut into chunks of tokens; run it without kvhub"
            ],
            where="kvhub in vLLM",
        )


def check_engine(config: Any, kv_cache_config: Any, role: str, stores: bool, retrieves: bool) -> None:
    """Raise ConfigError with every flag of the engine that contradicts what kvhub is asked to do."""
    problems = []
    transfer, parallel = config.kv_transfer_config, config.parallel_config
    if transfer.kv_role == "kv_consumer" and stores:
        problems.append(
            f"kv_role is kv_consumer, which never stores, but role {role} has a store list; set kv_role to kv_both"
        )
    if transfer.kv_role == "kv_producer" and retrieves:
        problems.append(
            f"kv_role is kv_producer, which never loads, but role {role} has a retrieve list; set kv_role to kv_both"
        )
    if getattr(transfer, "kv_load_failure_policy", "recompute") != "recompute":
        problems.append(
            f"kv_load_failure_policy is {transfer.kv_load_failure_policy}: a chunk that cannot be loaded would "
            f"fail the request; set it to recompute"
        )
    for name in ("tensor_parallel_size", "pipeline_parallel_size", "decode_context_parallel_size",
                 "prefill_context_parallel_size"):  # fmt: skip
        if getattr(parallel, name, 1) > 1:
            problems.append(f"{name} is {getattr(parallel, name)}: this adapter serves one rank; set it to 1")
    groups = kv_cache_config.kv_cache_groups
    kinds = sorted({type(spec).__name__ for group in groups for spec in specs(group)})
    state = [kind for kind in kinds if "Attention" not in kind and kind != "SlidingWindowSpec"]
    if state:
        problems.append(
            f"the model keeps state that is no attention KV ({', '.join(state)}), which cannot be cut into chunks of "
            f"tokens; run it without kvhub"
        )
    cross = [kind for kind in kinds if "Cross" in kind or "Encoder" in kind]
    if cross:
        problems.append(f"the model has {', '.join(cross)}: encoder KV is not keyed by tokens; run it without kvhub")
    if len(groups) != 1 and not state and not cross:
        problems.append(
            f"the engine splits its layers into {len(groups)} KV groups with block tables of their own; set "
            f"--disable-hybrid-kv-cache-manager so that all layers share one"
        )
    if problems:
        raise ConfigError(problems, where=f"kvhub in vLLM, role {role}")


def specs(group: Any) -> list[Any]:
    """The KV specs of a group's layers: one for all, or one per layer where vLLM keeps them apart."""
    spec = group.kv_cache_spec
    inner = getattr(spec, "kv_cache_specs", None)
    return list(inner.values()) if isinstance(inner, Mapping) else [spec]


def namespace(config: Any, kv_cache_config: Any, model: Mapping[str, str], chunk_tokens: int) -> Namespace:
    """The namespace of this engine's KV.  Raises ConfigError when the weights cannot be told from others."""
    engine, cache = config.model_config, config.cache_config
    revision = model.get("revision") or weights_revision(str(engine.model), getattr(engine, "revision", None))
    if not revision:
        raise ConfigError(
            [
                f"model.revision: cannot tell which weights {engine.model!r} has (no local files, no --revision); set "
                f"model.revision in the YAML, and change it whenever the weights change"
            ],
            where="kvhub in vLLM",
        )
    layers = {name: str(spec) for group in kv_cache_config.kv_cache_groups for name, spec in _layer_specs(group)}
    extra = []
    if cache.cache_dtype != "auto":
        extra.append(("kv_cache_dtype", str(cache.cache_dtype)))
    if engine.quantization:
        extra.append(("quantization", str(engine.quantization)))
    speculative = getattr(config, "speculative_config", None)
    if speculative is not None:
        extra.append(("speculative", f"{speculative.method} {getattr(speculative, 'model', '')}"))
    return model_namespace(
        named=model.get("id"),
        architectures=engine.architectures,
        revision=revision,
        dtype=str(engine.dtype).removeprefix("torch."),
        layers=len(layers),
        config=engine.hf_text_config.to_dict(),
        chunk_tokens=chunk_tokens,
        extra=extra,
    )


def _layer_specs(group: Any) -> list[tuple[str, Any]]:
    spec = group.kv_cache_spec
    inner = getattr(spec, "kv_cache_specs", None)
    if isinstance(inner, Mapping):
        return list(inner.items())
    return [(name, spec) for name in group.layer_names]
