"""What of a vLLM request goes into its first key; None where a request must not be cached at all."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from kvhub import weights
from kvhub.keys import Context, Item


@lru_cache(maxsize=256)
def _identity(name: str, path: str, changed_ns: int) -> str | None:
    return weights.adapter_identity(name, Path(path))


def adapter_identity(lora: Any) -> str | None:
    """Name and content of a LoRA adapter; None when its content cannot be told.

    The number that vLLM gives an adapter depends on the order of loading, so it is no identity; neither is the name
    alone, since an adapter can be reloaded in place.
    """
    path = Path(str(getattr(lora, "lora_path", "") or ""))
    if not path.is_dir():
        return None
    return _identity(str(lora.lora_name), str(path), max(p.stat().st_mtime_ns for p in (path, *path.iterdir())))


def context_of(request: Any) -> Context | None:
    """The context of a vLLM `Request`, or None: then nothing of it is looked up or stored."""
    if getattr(request, "prompt_embeds", None) is not None or not request.prompt_token_ids:
        return None
    adapter = None
    if request.lora_request is not None:
        adapter = adapter_identity(request.lora_request)
        if adapter is None:
            return None
    items = []
    for feature in getattr(request, "mm_features", None) or ():
        identity = getattr(feature, "identifier", None)
        position = getattr(feature, "mm_position", None)
        if not identity or position is None:
            return None
        items.append(Item(int(position.offset), int(position.length), str(identity)))
    return Context(adapter, request.cache_salt, tuple(items))
