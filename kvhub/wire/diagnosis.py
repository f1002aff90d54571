"""What `kvhub doctor` tells of a wire's addresses and of what keeps strangers out."""

from __future__ import annotations

from collections.abc import Iterator

from kvhub.findings import Finding, failed, passed, warned
from kvhub.wire import addresses
from kvhub.wire.options import WireConfig, listens_beyond


def findings(config: WireConfig, address: str) -> Iterator[Finding]:
    """`address` is what peers are told, "" where the wire does not listen or could not start."""
    if not config.listen:
        yield passed("address", "listens to nobody, and only pulls")
        return
    if address:
        yield _address(config, address)
    elif config.advertise:
        yield from _unknown(config.advertise)
    yield _guarded(config)


def _address(config: WireConfig, address: str) -> Finding:
    what, (host, _) = "address", addresses.parse(address)
    for problem in _unknown(address):
        return problem
    known = addresses.literal(host.partition("%")[0])
    family = f"IPv{known.version}" if known is not None else "a name"
    told = f"listens on {config.listen}; peers dial {address} ({family})"
    if addresses.is_loopback(host):
        return warned(
            what,
            f"{told}, which is loopback: only peers on this machine reach it",
            "with peers on others, set listen and advertise to an address of this machine "
            f"({', '.join(addresses.routable()) or 'it has none but loopback'})",
        )
    if known is not None and addresses.interface_of(host) is None:
        return warned(
            what,
            f"{told}, which is no address of this machine",
            "right behind address translation only; otherwise advertise one of "
            f"{', '.join(addresses.routable()) or 'its addresses, of which it has none now'}",
        )
    return passed(what, told)


def _unknown(address: str) -> Iterator[Finding]:
    try:
        addresses.resolve(*addresses.parse(address))
    except OSError as error:
        yield failed(
            "address",
            f"peers are told {address}, and that name cannot be resolved here: {error.strerror}",
            "advertise an address, or a name that every machine resolves",
        )


def _guarded(config: WireConfig) -> Finding:
    what = "access"
    if config.tls_cert and config.tls_ca:
        return passed(what, "peers prove themselves by certificates")
    if config.secret_env:
        return passed(what, f"peers prove that they know the secret in {config.secret_env}")
    try:
        beyond = listens_beyond(config)
    except OSError:
        beyond = True
    if beyond:
        return failed(
            what,
            f"listens on {config.listen}, where others reach it, without a secret",
            "set secret_env, or tls_cert and tls_ca",
        )
    return passed(what, "only this machine reaches it, so no secret is needed")
