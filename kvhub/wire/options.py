"""What every transport of this family lets operators choose, and what a configuration may not do."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from typing import Any

import attrs

from kvhub.errors import KvhubError
from kvhub.units import seconds, size
from kvhub.wire import addresses
from kvhub.wire.stream import client_context, server_context

PATHS = ("auto", "mapped", "put", "message")
LEAST_SECRET = 8


def address(_: Any, field: attrs.Attribute[str], value: str) -> None:
    """An attrs validator: empty, or `host:port`."""
    if value:
        try:
            addresses.parse(value)
        except ValueError as error:
            raise ValueError(f"{field.name}: {error}") from error


def positive(_: Any, field: attrs.Attribute[float], value: float) -> None:
    """An attrs validator: more than 0."""
    if not value > 0:
        raise ValueError(f"{field.name}: must be more than 0, found {value}")


def one_of(*words: str) -> Any:
    """An attrs validator: one of these words, which the schema and messages list."""

    def check(_: Any, field: attrs.Attribute[str], value: str) -> None:
        if value not in words:
            raise ValueError(f"{field.name}: expected one of {', '.join(words)}, found {value!r}")

    check.options = words  # type: ignore[attr-defined]  # as attrs' own validator of words has them, for the schema
    return check


def _guarded(config: WireConfig, field: attrs.Attribute[str], value: str) -> None:
    """An attrs validator: peers of other machines prove who they are.  Names are resolved at start, not here."""
    if value or not config.listen or (config.tls_cert and config.tls_ca):
        return
    try:
        host = addresses.literal(addresses.parse(config.listen)[0])
    except ValueError:
        return  # said of `listen`
    if host is not None and not host.is_loopback:
        raise ValueError(
            f"needed, since other machines can reach listen={config.listen!r}: name the environment variable that "
            "holds the secret of all hubs, or set tls_cert and tls_ca, or listen on 127.0.0.1"
        )


def option(help: str, **more: Any) -> Any:
    """An attrs field with its help; `more` is what `attrs.field` takes."""
    return attrs.field(metadata={"help": help}, **more)


@attrs.frozen(kw_only=True)
class WireConfig:
    """Every option has a default that is safe on one machine."""

    listen: str = option(
        "host:port of the control connection; port 0 takes a free one; empty: serve no peers",
        default="127.0.0.1:0",
        validator=address,
    )
    advertise: str = option(
        "host:port that peers should use, where it is not the one listened on (port 0: the real one)",
        default="",
        validator=address,
    )
    secret_env: str = option(
        "name of the environment variable with the secret that all hubs share; needed beyond loopback",
        default="",
        validator=_guarded,
    )
    tls_cert: str = option("PEM file with this hub's certificate chain; TLS is used when it is set", default="")
    tls_key: str = option("PEM file with its key, where it is not in tls_cert", default="")
    tls_ca: str = option(
        "PEM file with the authority that peers' certificates must be of; makes certificates mutual", default=""
    )
    path: str = option(
        "how payloads move: auto, mapped (same machine: the puller reads the peer's arena), put (the peer writes into "
        "ours) or message",
        default="auto",
        validator=one_of(*PATHS),
    )
    checksum: str = option(
        "XXH3-128 of every payload: wire (wherever it leaves the memory of this machine) or always",
        default="wire",
        validator=one_of("wire", "always"),
    )
    handshake_timeout: float = option(
        "longest time from connect to a paired link", default=3.0, converter=seconds, validator=positive
    )
    transfer_timeout: float = option(
        "longest time of one pull, whatever its deadline", default=30.0, converter=seconds, validator=positive
    )
    stop_timeout: float = option(
        "how long a peer has to acknowledge that it stopped sending, before the link is cut",
        default=0.2,
        converter=seconds,
        validator=positive,
    )
    heartbeat: float = option(
        "how often a link is asked whether it lives; three silences in a row cut it",
        default=5.0,
        converter=seconds,
        validator=positive,
    )
    most_queued_bytes: int = option(
        "payload bytes asked for and not yet ended, over all peers; beyond it pulls end with FULL",
        default=16 * 2**30,
        converter=size,
        validator=positive,
    )
    most_peers: int = option("peers that may be connected to this hub at once", default=256, validator=positive)


def secret(config: WireConfig, where: str, exposed: str, environment: Mapping[str, str] = os.environ) -> bytes:
    """The shared secret, empty where none is needed.

    `exposed` says what of this hub other machines can reach, "" when nothing.  Raises KvhubError where the hub could
    be reached by strangers.
    """
    if config.secret_env:
        value = environment.get(config.secret_env, "")
        if len(value) < LEAST_SECRET:
            found = f"has {len(value)} characters" if value else "is not set"
            raise KvhubError(
                f"{where}.secret_env: environment variable {config.secret_env} {found}; "
                f"set it to the same secret of at least {LEAST_SECRET} characters on every hub"
            )
        return value.encode()
    if exposed and not (config.tls_cert and config.tls_ca):
        raise KvhubError(
            f"{where}: {exposed} can be reached from other machines and there is no secret; set secret_env to the "
            "name of an environment variable that holds one, or tls_cert and tls_ca, or listen on 127.0.0.1"
        )
    return b""


def listens_beyond(config: WireConfig) -> bool:
    """Whether the control connection can be reached from other machines."""
    return bool(config.listen) and not addresses.is_loopback(addresses.parse(config.listen)[0])


@attrs.frozen
class Tls:
    """Both ends of TLS; None in each where it is not used."""

    server: ssl.SSLContext | None = None
    client: ssl.SSLContext | None = None


def tls(config: WireConfig, where: str) -> Tls:
    """Contexts made of the files.  Raises KvhubError that names what cannot be read or does not fit."""
    if not config.tls_cert:
        if config.tls_key or config.tls_ca:
            raise KvhubError(
                f"{where}: tls_key and tls_ca are of no use without tls_cert; set it to this hub's PEM file"
            )
        return Tls()
    files = (config.tls_cert, config.tls_key, config.tls_ca)
    try:
        return Tls(server_context(*files), client_context(*files))
    except OSError as error:
        raise KvhubError(
            f"{where}: TLS cannot start with tls_cert={config.tls_cert!r} tls_key={config.tls_key!r} "
            f"tls_ca={config.tls_ca!r}: {error}; give PEM files that this process may read and a key that fits"
        ) from error


def advertised(config: WireConfig, where: str, host: str, port: int) -> str:
    """What peers are told, given the address that was really bound.  Raises KvhubError when nobody could use it."""
    if config.advertise:
        name, number = addresses.parse(config.advertise)
        if addresses.literal(name) is not None and addresses.is_any(name):
            raise KvhubError(
                f"{where}.advertise: {config.advertise!r} is no address of one machine; name the one to dial"
            )
        if listens_beyond(config) and addresses.literal(name) is not None and addresses.is_loopback(name):
            raise KvhubError(
                f"{where}.advertise: {config.advertise!r} is loopback, while listen={config.listen!r} serves other "
                "machines: each of them would dial itself; advertise an address that they can reach"
            )
        return addresses.show(name, number or port)
    if not addresses.is_any(host):
        return addresses.show(host, port)
    found = addresses.routable()
    if len(found) == 1:
        return addresses.show(found[0], port)
    have = f"has several addresses ({', '.join(found)})" if found else "has no address that other machines can reach"
    raise KvhubError(
        f"{where}.listen: {config.listen!r} is every interface and this machine {have}; "
        "set advertise to the host:port that peers should use"
    )
