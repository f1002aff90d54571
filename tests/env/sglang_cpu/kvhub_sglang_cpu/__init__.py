"""An SGLang plugin that lets HiCache run where device and host memory are both the CPU's.  Tests only."""

from __future__ import annotations

import os
import sys
from typing import Any


def _unpinned(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
    if "pin_memory" in kwargs:
        kwargs["pin_memory"] = False
    return args, kwargs


def activate() -> None:
    """Bind the CPU copies where the host pools import them from CUDA's package only, never pin memory or reserve it."""
    if os.environ.get("SGLANG_USE_CPU_ENGINE") != "1" or "sglang.srt.managers.scheduler" not in sys.modules:
        return
    import sgl_kernel.kvcacheio as kvcacheio
    from sglang.srt.mem_cache.pool_host import base, mha, mla
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    base.HICACHE_HOST_MEMORY_RESERVE_BYTES = 0  # pools of a few MB need no 10 GB beside them
    for module in (mha, mla):
        for name in vars(kvcacheio):
            if name.startswith("transfer_kv_"):
                setattr(module, name, getattr(kvcacheio, name))
    HookRegistry.register("sglang.srt.mem_cache.pool_host.base.HostKVCache.__init__", _unpinned, HookType.BEFORE)
    if os.environ.get("MOONCAKE_PROTOCOL") == "tcp":
        from sglang.srt.disaggregation.mooncake.conn import MooncakeKVSender

        # Else page numbers go through pinned memory and CUDA events; the engine's other way has neither.
        MooncakeKVSender.supports_host_tensor_indices = False
