"""The options of the `ucx` transport."""

from __future__ import annotations

import re
from typing import Any

import attrs

from kvhub.wire.options import WireConfig, one_of, option
from kvhub_ucx._providers import PROVIDERS

_TRANSPORTS = re.compile(r"^[a-z0-9_]+(,[a-z0-9_]+)*$")


def _transports(_: Any, __: Any, value: str) -> None:
    if not _TRANSPORTS.match(value):
        raise ValueError(f"transports: expected auto, tcp, or names as in UCX_TLS ('rc,tcp'), found {value!r}")


@attrs.frozen(kw_only=True)
class Config(WireConfig):
    """Every option has a default that is safe on one machine."""

    provider: str = option(
        "where libucp comes from: auto, ucxx, wheel (libucx-cu12), ucx-py or system",
        default="auto",
        validator=one_of(*PROVIDERS),
    )
    transports: str = option(
        "auto (shared memory on one machine, RDMA where there is any, TCP), tcp, or names as in UCX_TLS",
        default="auto",
        validator=_transports,
    )
    devices: str = option(
        "network devices of the data lanes, as in UCX_NET_DEVICES; auto: that of the address listened on",
        default="auto",
    )
    require: str = option(
        "pair only where a data lane is one of these UCX transports ('rc_mlx5,dc_mlx5'); empty: any",
        default="",
    )
    require_action: str = option(
        "what to do where that lane is missing: refuse to pair, or warn, count it and go on",
        default="refuse",
        validator=one_of("refuse", "warn"),
    )
