"""kvhub-ucx: moves KV chunks between two hubs' arenas over UCX (shared memory, TCP, RDMA).

    transports:
      wire: {use: ucx, listen: "10.0.0.1:7700", secret_env: KVHUB_SECRET}

Importing this package loads no UCX; `UcxTransport.attach` does.  `_libucp.py` is the only file that knows libucp,
`_providers.py` where it comes from, `_fabric.py` what kvhub's wire (`kvhub.wire`) sees of it.
"""

from __future__ import annotations

from kvhub.hookspecs import hookimpl
from kvhub.transport import Transport
from kvhub_ucx.config import Config
from kvhub_ucx.transport import UcxTransport

__all__ = ["Config", "UcxTransport", "kvhub_register_transports"]


@hookimpl
def kvhub_register_transports() -> tuple[type[Transport], ...]:
    return (UcxTransport,)
