"""Listens, through SGLang's plugin framework, to the functions that see a page's tokens and its hash together.

    mem_cache.utils.get_hash_str            lookups, and a decode's own write-back: tokens, hash before, hashes
    ...Controller.write_storage             what is written out: tokens, hashes, the hashes of the whole prefix
    mem_cache.utils.storage_namespace_seed  what `extra_key` and `cache_salt` a chain begins with
    ...parse_storage_backend_extra_config   has the engine hand over those prefixes, without a setting for it
    schedule_batch.Req                      which requests have an adapter, and what they carry for it
    scheduler.Scheduler.load_lora_adapter   adapters that are loaded while the engine runs

Nothing is changed but the configuration that is parsed, and a listener that fails says so in a counter and goes no
further.
"""

from __future__ import annotations

import sys
import threading
from array import array
from collections.abc import Sequence
from typing import Any, Protocol

from kvhub.keys import Context
from kvhub_sglang.ledger import Ledger

_UTILS = "sglang.srt.mem_cache.utils"
_BASE = "sglang.srt.managers.cache_controller.HiCacheController"
_HYBRID = "sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller.HybridCacheController"
_REQUEST = "sglang.srt.managers.schedule_batch.Req.__init__"
_SCHEDULER = "sglang.srt.managers.scheduler"
_LOAD = f"{_SCHEDULER}.Scheduler.load_lora_adapter"
OURS = "kvhub_sglang"
PREFIX_KEYS = 4
"""Where the parsed configuration says whether prefixes are handed over."""


class Listener(Protocol):
    """A backend that wants to know."""

    ledger: Ledger

    def context_of(self, extra_key: str | None, cache_salt: str | None) -> Context | None:
        """The context of a request; None where its KV must not be kept."""

    def request_made(self, extra_key: str | None, adapter: str | None) -> None:
        """The engine made a request of this final `extra_key` and adapter id."""

    def adapter_loaded(self, adapter: str, name: str | None, path: str | None) -> None:
        """The engine loaded an adapter."""

    def failed(self, error: Exception) -> None:
        """A hook could not make sense of what it heard."""


_listeners: list[Listener] = []
_lock = threading.Lock()
_installed = False


def listen(listener: Listener) -> None:
    """Begin to tell `listener`."""
    with _lock:
        _listeners.append(listener)


def forget(listener: Listener) -> None:
    """Stop telling it; idempotent."""
    with _lock:
        if listener in _listeners:
            _listeners.remove(listener)


def install() -> None:
    """Register the hooks with SGLang; it applies them before the engine starts.  Idempotent.

    Applying them imports what they hook: seconds, in processes that never schedule anything.  There nothing is hooked.
    """
    global _installed
    if _SCHEDULER not in sys.modules:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    if _installed:
        return
    _installed = True
    HookRegistry.register(f"{_UTILS}.get_hash_str", _hashed, HookType.AFTER)
    HookRegistry.register(f"{_UTILS}.storage_namespace_seed", _seeded, HookType.AFTER)
    HookRegistry.register(f"{_HYBRID}.parse_storage_backend_extra_config", _parsed, HookType.AFTER)
    for controller in (_BASE, _HYBRID):
        HookRegistry.register(f"{controller}.write_storage", _written, HookType.BEFORE)
    HookRegistry.register(_REQUEST, _made, HookType.AFTER)
    HookRegistry.register(_LOAD, _loaded, HookType.AFTER)


def targets() -> tuple[str, ...]:
    """What is hooked, as SGLang's registry names it."""
    return (
        f"{_UTILS}.get_hash_str", f"{_UTILS}.storage_namespace_seed", f"{_BASE}.write_storage",
        f"{_HYBRID}.write_storage", f"{_HYBRID}.parse_storage_backend_extra_config", _REQUEST, _LOAD,
    )  # fmt: skip


def _tell(note: Any, *arguments: Any) -> None:
    for listener in tuple(_listeners):
        try:
            note(listener, *arguments)
        except Exception as error:
            listener.failed(error)


def _hashed(result: Any, token_ids: Any, prior_hash: str | None = None, page_size: int | None = None) -> None:
    if _listeners:
        hashes = [result] if isinstance(result, str) else result
        _tell(_note_hashes, token_ids, prior_hash or "", hashes)


def _note_hashes(listener: Listener, token_ids: Any, prior: str, hashes: Sequence[str]) -> None:
    tokens = _plain(token_ids)
    if tokens is not None and hashes:
        listener.ledger.note(tokens, prior, hashes)


def _plain(token_ids: Any) -> array[int] | None:
    """A copy of the ids; None for keys of pairs, which speculative decoding uses."""
    if getattr(token_ids, "is_bigram", False):
        return None
    raw = getattr(token_ids, "raw_token_ids", None)
    ids = raw() if raw is not None else getattr(token_ids, "token_ids", token_ids)
    return array("q", ids[: len(token_ids)])


def _seeded(result: str | None, extra_key: str | None, cache_salt: str | None) -> None:
    if result is not None:
        _tell(lambda listener: listener.ledger.note_seed(result, listener.context_of(extra_key, cache_salt)))


def _written(
    controller: Any,
    host_indices: Any,
    token_ids: Any,
    hash_value: Any = None,
    prefix_keys: Any = None,
    *_: Any,
    **__: Any,
) -> None:
    if _listeners and hash_value:
        # Without a prefix the chain may begin anywhere; the ledger takes it for a root, and finds out if it is none.
        _tell(_note_hashes, token_ids, prefix_keys[-1] if prefix_keys else "", hash_value)


def _parsed(result: tuple[Any, ...], *_: Any, **__: Any) -> tuple[Any, ...] | None:
    if str(result[0].get("module_path", "")).split(".")[0] != OURS:
        return None
    return (*result[:PREFIX_KEYS], True, *result[PREFIX_KEYS + 1 :])


def _made(_: None, request: Any, *__: Any, **___: Any) -> None:
    if _listeners:
        _tell(lambda listener: listener.request_made(request.extra_key, request.lora_id))


def _loaded(result: Any, _: Any, asked: Any, *__: Any, **___: Any) -> None:
    if _listeners and result.success:
        _tell(lambda listener: listener.adapter_loaded(asked.lora_id, asked.lora_name, asked.lora_path))
