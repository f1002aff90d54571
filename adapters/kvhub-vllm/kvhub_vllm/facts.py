"""What the KV of this vLLM engine is: its namespace, and every reason to refuse it, told at once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvhub.errors import ConfigError
from kvhub.keys import Namespace

SAMPLES = 16
SAMPLE_BYTES = 65536
_VOLATILE = ("_name_or_path", "transformers_version", "torch_dtype", "dtype", "use_cache", "architectures")


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
    revision = model.get("revision") or weights_revision(engine)
    if not revision:
        raise ConfigError(
            [
                f"model.revision: cannot tell which weights {engine.model!r} has (no local files, no --revision); set "
                f"model.revision in the YAML, and change it whenever the weights change"
            ],
            where="kvhub in vLLM",
        )
    layers = {name: str(spec) for group in kv_cache_config.kv_cache_groups for name, spec in _layer_specs(group)}
    text = engine.hf_text_config.to_dict()
    facts = {name: value for name, value in text.items() if name not in _VOLATILE}
    extra = []
    if cache.cache_dtype != "auto":
        extra.append(("kv_cache_dtype", str(cache.cache_dtype)))
    if engine.quantization:
        extra.append(("quantization", str(engine.quantization)))
    speculative = getattr(config, "speculative_config", None)
    if speculative is not None:
        extra.append(("speculative", f"{speculative.method} {getattr(speculative, 'model', '')}"))
    return Namespace(
        model=model.get("id") or "+".join(engine.architectures or ["unknown"]),
        revision=revision,
        dtype=str(engine.dtype).removeprefix("torch."),
        groups=json.dumps({"layers": len(layers), "config": facts}, sort_keys=True, default=str),
        chunk_tokens=chunk_tokens,
        extra=extra,
    )


def _layer_specs(group: Any) -> list[tuple[str, Any]]:
    spec = group.kv_cache_spec
    inner = getattr(spec, "kv_cache_specs", None)
    if isinstance(inner, Mapping):
        return list(inner.items())
    return [(name, spec) for name in group.layer_names]


def weights_revision(model_config: Any) -> str:
    """What tells these weights from others: a digest of local files, or the hub's revision; "" if unknown."""
    path = Path(str(model_config.model))
    if path.is_dir():
        return fingerprint(path)
    revision = getattr(model_config, "revision", None)
    return f"revision {revision}" if revision else ""


def fingerprint(folder: Path) -> str:
    """Digest of the weight files in a folder: their sizes and samples spread over each; "" without weights.

    Reading all of a large model would delay the start by minutes.  Weights of another training differ in almost every
    byte, so that 16 samples of 64 KiB per file tell them apart; an adversary who edits single weights in a
    shared folder is not what this is for.
    """
    files = sorted(p for p in folder.iterdir() if p.suffix in (".safetensors", ".bin", ".pt", ".gguf") and p.is_file())
    if not files:
        return ""
    digest = hashlib.sha256()
    for file in files:
        size = file.stat().st_size
        digest.update(size.to_bytes(8, "little"))
        with file.open("rb") as data:
            for at in range(SAMPLES):
                data.seek(max(size - SAMPLE_BYTES, 0) * at // (SAMPLES - 1))
                digest.update(data.read(SAMPLE_BYTES))
    return f"files {digest.hexdigest()[:32]}"
