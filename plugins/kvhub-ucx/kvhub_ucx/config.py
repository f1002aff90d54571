"""The options of the `ucx` transport."""

from __future__ import annotations

import re
from typing import Any

import attrs

from kvhub.units import seconds, size
from kvhub_ucx import _addresses
from kvhub_ucx._providers import PROVIDERS

_TRANSPORTS = re.compile(r"^[a-z0-9_]+(,[a-z0-9_]+)*$")


def _address(_: Any, field: attrs.Attribute[str], value: str) -> None:
    if value:
        try:
            _addresses.parse(value)
        except ValueError as error:
            raise ValueError(f"{field.name}: {error}") from error


def _provider(_: Any, __: Any, value: str) -> None:
    if value not in PROVIDERS:
        raise ValueError(f"provider: expected one of {', '.join(PROVIDERS)}, found {value!r}")


def _transports(_: Any, __: Any, value: str) -> None:
    if not _TRANSPORTS.match(value):
        raise ValueError(f"transports: expected auto, tcp, or names as in UCX_TLS ('rc,tcp'), found {value!r}")


def _action(_: Any, __: Any, value: str) -> None:
    if value not in ("refuse", "warn"):
        raise ValueError(f"require_action: expected refuse or warn, found {value!r}")


def _positive(_: Any, field: attrs.Attribute[float], value: float) -> None:
    if not value > 0:
        raise ValueError(f"{field.name}: must be more than 0, found {value}")


def _option(help: str, **more: Any) -> Any:
    return attrs.field(metadata={"help": help}, **more)


@attrs.frozen(kw_only=True)
class Config:
    """Every option has a default that is safe on one machine."""

    listen: str = _option(
        "host:port of the control connection; port 0 takes a free one; empty: serve no peers",
        default="127.0.0.1:0",
        validator=_address,
    )
    advertise: str = _option(
        "host:port that peers should use, where it is not the one listened on (port 0: the real one)",
        default="",
        validator=_address,
    )
    secret_env: str = _option(
        "name of the environment variable with the secret that all hubs share; needed beyond loopback",
        default="",
    )
    provider: str = _option(
        "where libucp comes from: auto, ucxx, wheel (libucx-cu12), ucx-py or system",
        default="auto",
        validator=_provider,
    )
    transports: str = _option(
        "auto (shared memory on one machine, RDMA where there is any, TCP), tcp, or names as in UCX_TLS",
        default="auto",
        validator=_transports,
    )
    devices: str = _option(
        "network devices of the data lanes, as in UCX_NET_DEVICES; auto: that of the address listened on",
        default="auto",
    )
    require: str = _option(
        "pair only where a data lane is one of these UCX transports ('rc_mlx5,dc_mlx5'); empty: any",
        default="",
    )
    require_action: str = _option(
        "what to do where that lane is missing: refuse to pair, or warn, count it and go on",
        default="refuse",
        validator=_action,
    )
    handshake_timeout: float = _option(
        "longest time from connect to a paired link", default=3.0, converter=seconds, validator=_positive
    )
    transfer_timeout: float = _option(
        "longest time of one pull, whatever its deadline", default=30.0, converter=seconds, validator=_positive
    )
    stop_timeout: float = _option(
        "how long a peer has to acknowledge that it stopped sending, before the link is cut",
        default=0.2,
        converter=seconds,
        validator=_positive,
    )
    most_queued_bytes: int = _option(
        "payload bytes asked for and not yet ended, over all peers; beyond it pulls end with FULL",
        default=16 * 2**30,
        converter=size,
        validator=_positive,
    )
    most_peers: int = _option("peers that may be connected to this hub at once", default=256, validator=_positive)
