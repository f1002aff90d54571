"""Refuses a vLLM that this adapter was not tested with, or whose connector API differs from what it relies on."""

from __future__ import annotations

import inspect
from typing import Any

from kvhub.errors import ConfigError

TESTED = ((0, 27), (0, 33))
"""From the first version on, below the second."""
RELIED_ON: dict[str, tuple[str, ...]] = {
    "__init__": ("vllm_config", "role", "kv_cache_config"),
    "get_num_new_matched_tokens": ("request", "num_computed_tokens"),
    "update_state_after_alloc": ("request", "blocks", "num_external_tokens"),
    "build_connector_meta": ("scheduler_output",),
    "update_connector_output": ("connector_output",),
    "request_finished": ("request", "block_ids"),
    "register_kv_caches": ("kv_caches",),
    "bind_connector_metadata": ("connector_metadata",),
    "start_load_kv": ("forward_context",),
    "wait_for_save": (),
    "get_finished": ("finished_req_ids",),
    "get_block_ids_with_load_errors": (),
    "build_connector_worker_meta": (),
    "get_handshake_metadata": (),
    "set_xfer_handshake_metadata": ("metadata",),
}
"""Methods of the engine's base class and the arguments that it will pass by name or position."""


def check_version(connector: type, *, allow_untested: bool) -> str:
    """The engine's name and version.  Raises ConfigError for one outside the tested range or with another API."""
    import vllm

    version = str(vllm.__version__)
    problems = list(differences(connector.__mro__[1]))
    if not _tested(version) and not allow_untested:
        first, last = (".".join(map(str, bound)) for bound in TESTED)
        problems.append(
            f"vLLM {version} is outside the range that kvhub-vllm was tested with, >={first},<{last}; install another "
            f"kvhub-vllm, or set kv_connector_extra_config.allow_untested to true"
        )
    if problems:
        raise ConfigError(problems, where="kvhub in vLLM")
    return f"vllm {version}"


def _tested(version: str) -> bool:
    try:
        found = tuple(int(part) for part in version.split("+")[0].split(".")[:2])
    except ValueError:
        return False
    return TESTED[0] <= found < TESTED[1]


def differences(base: Any) -> list[str]:
    """How the engine's connector class differs from what this adapter overrides; empty when it does not."""
    found = []
    for name, wanted in RELIED_ON.items():
        method = getattr(base, name, None)
        if method is None:
            found.append(f"{base.__name__}.{name} is gone")
            continue
        has = [p for p in inspect.signature(method).parameters.values() if p.name not in ("self", "cls")]
        plain = [p.name for p in has if p.kind in (p.POSITIONAL_OR_KEYWORD, p.POSITIONAL_ONLY)]
        required = [p.name for p in has if p.default is p.empty and p.name in plain]
        if tuple(plain[: len(wanted)]) != wanted or len(required) > len(wanted):
            found.append(f"{base.__name__}.{name}({', '.join(plain)}), expected ({', '.join(wanted)})")
    for name in vars(base):
        if getattr(getattr(base, name), "__isabstractmethod__", False) and name not in RELIED_ON | {
            "wait_for_layer_load": (), "save_kv_layer": (),
        }:  # fmt: skip
            found.append(f"{base.__name__}.{name} is a new method that a connector must have")
    return found
