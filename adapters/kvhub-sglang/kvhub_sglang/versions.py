"""Refuses an SGLang that this adapter was not tested with, or whose HiCache differs from what it relies on."""

from __future__ import annotations

import inspect
from importlib import metadata
from pkgutil import resolve_name
from typing import Any

from kvhub.errors import ConfigError
from kvhub_sglang import VERSIONS, __version__
from kvhub_sglang.facts import WHERE

TESTED = ((0, 5, 23), (0, 5, 24))
"""From the first version on, below the second."""
STORAGE: dict[str, tuple[str, ...]] = {
    "register_mem_pool_host": ("mem_pool_host",),
    "register_mem_host_pool_v2": ("host_pool", "host_pool_name"),
    "on_host_pools_registered": (),
    "batch_exists": ("keys", "extra_info"),
    "batch_exists_v2": ("keys", "pool_transfers", "extra_info"),
    "batch_get_v1": ("keys", "host_indices", "extra_info"),
    "batch_set_v1": ("keys", "host_indices", "extra_info"),
    "batch_get_v2": ("transfers", "extra_info"),
    "batch_set_v2": ("transfers", "extra_info"),
    "batch_get": ("keys", "target_locations", "target_sizes"),
    "batch_set": ("keys", "values", "target_locations", "target_sizes"),
    "get": ("key", "target_location", "target_sizes"),
    "set": ("key", "value", "target_location", "target_sizes"),
    "exists": ("key",),
    "clear": (),
    "get_stats": (),
}
"""Methods of `HiCacheStorage` and the arguments that the engine passes by name or position."""
FUNCTIONS: dict[str, tuple[str, ...]] = {
    "sglang.srt.mem_cache.utils.get_hash_str": ("token_ids", "prior_hash", "page_size"),
    "sglang.srt.mem_cache.utils.storage_namespace_seed": ("extra_key", "cache_salt"),
    "sglang.srt.managers.cache_controller.HiCacheController.write_storage": (
        "host_indices", "token_ids", "hash_value", "prefix_keys",
    ),
    "sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller.HybridCacheController.write_storage": (
        "host_indices", "token_ids", "hash_value", "prefix_keys",
    ),
    "sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller.HybridCacheController.parse_storage_backend_extra_config":
        ("storage_backend_extra_config",),
    "sglang.srt.managers.schedule_batch.Req.__init__": (
        "rid", "origin_input_text", "origin_input_ids", "sampling_params",
    ),
    "sglang.srt.managers.scheduler.Scheduler.load_lora_adapter": ("recv_req",),
}  # fmt: skip
"""Functions that `hooks` listens to."""
CONFIG = ("tp_rank", "tp_size", "pp_rank", "pp_size", "is_mla_model", "enable_storage_metrics", "extra_config")
"""Fields of `HiCacheStorageConfig`."""


def check_version(storage: type, config: Any, *, allow_untested: bool) -> str:
    """The engine's name and version.  Raises ConfigError for one outside the tested range or with another interface."""
    version = metadata.version("sglang")
    problems = [*differences(storage), *_functions(), *_fields(config), *unhooked()]
    if not tested(version) and not allow_untested:
        problems.append(
            f"SGLang {version} is outside the range that kvhub-sglang {__version__} was tested with, {VERSIONS}; "
            f"install another kvhub-sglang, or set allow_untested to true in --hicache-storage-backend-extra-config"
        )
    elif problems:
        problems = [f"SGLang {version} and kvhub-sglang {__version__} do not fit: {problem}" for problem in problems]
    if problems:
        raise ConfigError(problems, where=WHERE)
    return f"sglang {version}"


def tested(version: str) -> bool:
    """Whether a version is in the tested range."""
    try:
        found = tuple(int(part) for part in version.split("+")[0].split(".")[:3])
    except ValueError:
        return False
    return TESTED[0] <= found < TESTED[1]


def differences(base: Any) -> list[str]:
    """How the engine's storage class differs from what this adapter overrides; empty when it does not."""
    found = []
    for name, wanted in STORAGE.items():
        method = getattr(base, name, None)
        found += [f"{base.__name__}.{name} is gone"] if method is None else _signature(method, name, wanted)
    for name in sorted(getattr(base, "__abstractmethods__", ())):
        if name not in STORAGE:
            found.append(f"{base.__name__}.{name} is a new method that a backend must have")
    return found


def _functions() -> list[str]:
    found = []
    for path, wanted in FUNCTIONS.items():
        try:
            function = resolve_name(path)
        except (ImportError, AttributeError):
            found.append(f"{path} is gone")
            continue
        found += _signature(function, path, wanted)
    return found


def _signature(function: Any, name: str, wanted: tuple[str, ...]) -> list[str]:
    has = [p for p in inspect.signature(function).parameters.values() if p.name not in ("self", "cls")]
    plain = [p.name for p in has if p.kind in (p.POSITIONAL_OR_KEYWORD, p.POSITIONAL_ONLY)]
    required = [p.name for p in has if p.default is p.empty and p.name in plain]
    if tuple(plain[: len(wanted)]) != wanted or len(required) > len(wanted):
        return [f"{name}({', '.join(plain)}), expected ({', '.join(wanted)})"]
    return []


def _fields(config: Any) -> list[str]:
    return [f"HiCacheStorageConfig.{name} is gone" for name in CONFIG if not hasattr(config, name)]


def unhooked() -> list[str]:
    """What SGLang did not hook although it was asked to; without hooks no page would ever be found."""
    from kvhub_sglang.hooks import targets

    return [
        f"{target} is not hooked; let SGLang load the plugin kvhub (unset SGLANG_PLUGINS, or name kvhub in it)"
        for target in targets()
        if not hasattr(resolve_name(target), "__wrapped__")
    ]
