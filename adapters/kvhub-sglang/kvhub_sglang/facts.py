"""What the KV of this SGLang engine is: its namespace, and every reason to refuse it, told at once."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

import attrs

from kvhub.conditions import PARTS
from kvhub.errors import ConfigError
from kvhub.keys import Namespace
from kvhub.layout import Layout
from kvhub.roles import RoleConfig
from kvhub.weights import model_namespace, weights_revision

WHERE = "kvhub in SGLang"
_WITHOUT = "run it without kvhub"


@attrs.frozen
class Model:
    """What is read of the engine's settings, once."""

    path: str
    revision: str | None
    architectures: tuple[str, ...]
    dtype: str
    kv_dtype: str
    quantization: str | None
    scales: str
    """File with the scales of a quantised KV cache."""
    config: Mapping[str, Any]
    vocabulary: int
    longest: int
    speculative: str | None
    lora: bool
    adapters: tuple[tuple[str, str | None, str | None], ...] = ()
    """LoRA adapters that are loaded at the start: id, name and path."""


def read_model() -> Model:
    """The model of the engine in this process, from SGLang's published settings."""
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.runtime_context import get_server_args

    args = get_server_args()
    model = ModelConfig.from_server_args(args)
    told = json.loads(args.json_model_override_args or "{}")
    return Model(
        path=str(model.model_path),
        revision=getattr(args, "revision", None),
        architectures=tuple(model.hf_config.architectures or ()),
        dtype=str(model.dtype).removeprefix("torch."),
        kv_dtype=str(args.kv_cache_dtype or "auto"),
        quantization=getattr(model, "quantization", None),
        scales=str(getattr(args, "quantization_param_path", None) or ""),
        config=_own(model.hf_text_config.to_dict(), _fresh(args, str(model.model_path)), told),
        vocabulary=int(model.vocab_size),
        longest=int(model.context_len),
        speculative=args.speculative_algorithm,
        lora=bool(args.enable_lora or args.lora_paths),
        adapters=tuple((one.lora_id, one.lora_name, one.lora_path) for one in args.lora_paths or ()),
    )


def _fresh(args: Any, path: str) -> Mapping[str, Any]:
    """The text model's configuration as transformers reads it, which no engine has added to; empty if it cannot."""
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(
            path, revision=getattr(args, "revision", None), trust_remote_code=bool(args.trust_remote_code)
        )
    except Exception:
        return {}
    return dict(config.get_text_config().to_dict())


def _own(used: Mapping[str, Any], fresh: Mapping[str, Any], told: Mapping[str, Any]) -> dict[str, Any]:
    """What the engine uses, without entries that it added for itself: values are the engine's, names the model's or the
    operator's.  Where the model's are not known everything stays, and nothing is shared with other engines."""
    if not fresh:
        return dict(used)
    found = {}
    for name, value in used.items():
        if name in fresh and isinstance(value, Mapping) and isinstance(fresh[name], Mapping):
            inner = told.get(name)
            found[name] = _own(value, fresh[name], inner if isinstance(inner, Mapping) else {}) if value else {}
        elif name in fresh or name in told:
            found[name] = value
    return found


def check_engine(model: Model, storage: Any, *, pages: int, chunk_tokens: int) -> None:
    """Raise ConfigError with every reason why this engine's KV cannot be kept; `pages` is tokens per page."""
    problems = []
    if pages != chunk_tokens:
        problems.append(
            f"--page-size is {pages} and chunk_tokens is {chunk_tokens}: HiCache stores whole pages, so that a page "
            f"has to be a chunk; set --page-size {chunk_tokens}, or chunk_tokens: {pages} for every engine of the pool"
        )
    if model.speculative:
        problems.append(
            f"--speculative-algorithm is {model.speculative}: its pages are keyed by pairs of tokens, or carry a draft "
            f"model's KV; {_WITHOUT}"
        )
    for name, size in (
        ("--attn-cp-size", getattr(storage, "attn_cp_size", 1)),
        ("--dcp-size", getattr(storage, "dcp_size", 1)),
    ):
        if size > 1:
            problems.append(f"{name} is {size}: a page is cut across ranks by position; {_WITHOUT}")
    if problems:
        raise ConfigError(problems, where=WHERE)


def check_role(role: RoleConfig, transports: Collection[str]) -> None:
    """Raise ConfigError with everything that a role asks for and HiCache cannot do."""
    problems = []
    named = sorted({step.member for step in (*role.store, *role.retrieve)} & set(transports))
    for name in named:
        problems.append(
            f"roles.{role.name}: {name} is a transport, and HiCache has storage and no peers; give SGLang a role "
            f"of its own with stores only"
        )
    parts = sorted({step.part for step in role.store if step.part})
    if parts or (role.write_back and len(role.write_back) < len(PARTS)):
        problems.append(
            f"roles.{role.name}: only {', '.join(parts or sorted(role.write_back))} tokens are to be stored, and "
            f"SGLang does not say which tokens it generated; set write_back: [prompt, generated] and leave out part"
        )
    if problems:
        raise ConfigError(problems, where=WHERE)


def check_pool(name: str) -> None:
    """Raise ConfigError for a pool beside the attention's KV."""
    if name != "kv":
        raise ConfigError(
            [
                f"the model keeps a {name} pool beside its attention KV, which cannot be cut into chunks of tokens "
                f"with it; {_WITHOUT}"
            ],
            where=WHERE,
        )


def namespace(
    model: Model, storage: Any, layout: Layout, layers: int, told: Mapping[str, str], chunk: int
) -> Namespace:
    """The namespace of this rank's KV.  Raises ConfigError when the weights cannot be told from others.

    `storage` is HiCache's `HiCacheStorageConfig`, `layers` the whole model's count, `told` the YAML's `model`.
    """
    revision = told.get("revision") or weights_revision(model.path, model.revision)
    if not revision:
        raise ConfigError(
            [
                f"model.revision: cannot tell which weights {model.path!r} has (no local files, no --revision); set "
                f"model.revision in the YAML, and change it whenever the weights change"
            ],
            where=WHERE,
        )
    extra = []
    if model.kv_dtype != "auto" or layout.dtype != model.dtype:
        # Scales, and what a type's short name means, are this engine's.
        extra.append(("kv_cache_dtype", f"sglang {model.kv_dtype} {layout.dtype} {model.scales}".rstrip()))
    if model.quantization:
        extra.append(("quantization", model.quantization))
    coordinates = []
    if storage.tp_size > 1 and not storage.is_mla_model:
        coordinates.append(("tp", int(storage.tp_rank), int(storage.tp_size)))
    if storage.pp_size > 1:
        coordinates.append(("pp", int(storage.pp_rank), int(storage.pp_size)))
    return model_namespace(
        named=told.get("id"),
        architectures=model.architectures,
        revision=revision,
        dtype=model.dtype,
        layers=layers,
        config=model.config,
        chunk_tokens=chunk,
        coordinates=coordinates,
        extra=extra,
    )
