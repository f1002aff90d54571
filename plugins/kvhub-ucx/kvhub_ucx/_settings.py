"""Which UCX settings this plugin chooses, and what a configuration may not do; nothing here touches UCX."""

from __future__ import annotations

import os
from collections.abc import Mapping

from kvhub.wire import addresses
from kvhub_ucx import _providers
from kvhub_ucx.config import Config

# Measured on TCP loopback and shared memory with peer error handling on; see the README's table for the reasons.
_ALWAYS = {
    "RNDV_THRESH": "inf",
    "TCP_TX_SEG_SIZE": "250K",
    "TCP_RX_SEG_SIZE": "256K",
    "TCP_CM_REUSEADDR": "y",
    "MM_ERROR_HANDLING": "y",
    "RCACHE_MAX_UNRELEASED": "1024",
}
# UCX 1.13 aborts the process, by an assertion, when a peer is lost while a zero-copy message to it is half sent on TCP.
_ABORTS_BEFORE = (1, 14)
_WITHOUT_HARDWARE = {"tcp", "self", "posix", "sysv", "cma"}
_TOGETHER = ("TCP_TX_SEG_SIZE", "TCP_RX_SEG_SIZE")


def rdma_devices() -> list[str]:
    """`mlx5_0:1` of every RDMA port of this machine."""
    try:
        return sorted(f"{port.parent.parent.name}:{port.name}" for port in _providers.RDMA_DEVICES.glob("*/ports/*"))
    except OSError:
        return []


def transports(config: Config) -> str:
    """UCX_TLS.  A TCP lane is always there: without one, UCX never learns that a peer on shared memory died."""
    if config.transports == "tcp":
        return "tcp,self"
    if config.transports == "auto":
        return ("ib," if rdma_devices() else "") + "posix,tcp,self"
    names = config.transports.split(",")
    return ",".join(dict.fromkeys([*names, "tcp", "self"]))


def devices(config: Config) -> str:
    """UCX_NET_DEVICES: UCX listens on every interface unless told, so it is told the one that peers are to use."""
    if config.devices != "auto":
        return config.devices
    host = ""
    for text in (config.advertise, config.listen):
        if text and not addresses.is_any(addresses.parse(text)[0]):
            host = str(addresses.resolve(*addresses.parse(text))[1][0])
            break
    if not host:
        return "all"
    name = addresses.interface_of(host)
    if name is None:
        return "all"
    return ",".join([name, *(rdma_devices() if name != "lo" and config.transports != "tcp" else [])])


def choose(
    config: Config, environment: Mapping[str, str] = os.environ, version: tuple[int, ...] = _ABORTS_BEFORE
) -> dict[str, str]:
    """Settings for a libucp of `version`.  What the user set as UCX_* in the environment is left to the user."""
    wanted = {"TLS": transports(config), "NET_DEVICES": devices(config), **_ALWAYS}
    if version < _ABORTS_BEFORE and set(wanted["TLS"].split(",")) <= _WITHOUT_HARDWARE:
        wanted["ZCOPY_THRESH"] = "inf"
    if any(f"UCX_{name}" in environment for name in _TOGETHER):
        # UCX refuses to start when messages that it may send do not fit into what it may receive.
        for name in _TOGETHER:
            del wanted[name]
    return {name: value for name, value in wanted.items() if f"UCX_{name}" not in environment}


def exposed(config: Config) -> str:
    """What UCX itself listens on that other machines can reach, "" when nothing."""
    found = devices(config)
    return "" if found == "lo" else f"UCX on devices={found!r}"
