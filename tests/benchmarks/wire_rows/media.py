"""The four media, and what each row has to be told so that it uses that one and no other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from wire_rows import netns
from wire_rows.netns import Namespaces

UCX_DEFAULTS = {
    "UCX_TCP_TX_SEG_SIZE": "8K",
    "UCX_TCP_RX_SEG_SIZE": "64K",
    "UCX_RNDV_THRESH": "auto",
    "UCX_MM_ERROR_HANDLING": "n",
}
"""What UCX 1.21 does when nobody sets anything (`ucx_info -c`); the plugin leaves these alone when it finds them."""

LARGE_SEGMENTS = {"UCX_TCP_TX_SEG_SIZE": "250K", "UCX_TCP_RX_SEG_SIZE": "256K"}


@attrs.frozen
class Medium:
    """Where the bytes go."""

    name: str
    title: str
    ucx: dict[str, str]
    """UCX_* for `ucx_perftest`; all else is UCX's own."""
    ours: dict[str, Any]
    """Options of the kvhub-ucx transport."""
    nixl: dict[str, str]
    """UCX_* for NIXL."""
    server_host: str = "127.0.0.1"
    puller_host: str = "127.0.0.1"
    server_enter: Sequence[str] = ()
    """Put before a command that is to run at the server's end."""
    puller_enter: Sequence[str] = ()

    @property
    def network(self) -> bool:
        return self.name in ("tcp", "veth")

    def options(self, package: str) -> dict[str, Any]:
        """Options of a kvhub transport."""
        options = dict(self.ours) if package == "kvhub_ucx" else {}
        if self.server_enter:
            options["secret_env"] = "KVHUB_BENCH_SECRET"
        return options


_LOOPBACK = {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "lo"}
_TCP = {"transports": "tcp", "require": "tcp"}
_CMA = {"UCX_TLS": "cma,tcp,self", "UCX_NET_DEVICES": "lo"}


def tcp() -> Medium:
    return Medium("tcp", "TCP loopback", _LOOPBACK, _TCP, _LOOPBACK)


def shm() -> Medium:
    return Medium("shm", "shared memory", {"UCX_TLS": "posix,self"}, {}, {"UCX_NET_DEVICES": "lo"})


def cma() -> Medium:
    return Medium(
        "cma", "CMA (process_vm_readv/writev)", _CMA, {"transports": "cma", "path": "put", "require": "cma"}, _CMA
    )


def veth(spaces: Namespaces) -> Medium:
    return Medium(
        "veth",
        f"TCP over veth between two network namespaces, MTU {netns.MTU}",
        {"UCX_TLS": "tcp,self"},
        _TCP,
        {"UCX_TLS": "tcp,self"},
        server_host=netns.SERVER_HOST,
        puller_host=netns.PULLER_HOST,
        server_enter=spaces.enter(spaces.server),
        puller_enter=spaces.enter(spaces.puller),
    )
