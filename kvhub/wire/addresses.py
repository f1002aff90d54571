"""`host:port` texts, and which of this machine's addresses a peer could use."""

from __future__ import annotations

import fcntl
import ipaddress
import re
import socket
import struct
from pathlib import Path

_FORM = re.compile(r"^(?:\[([^\]]+)\]|([^:\[\]]+)):(\d{1,5})$")
_SIOCGIFADDR = 0x8915
_LISTENS = "0A"
"""TCP_LISTEN in the columns of proc(5)."""


def parse(text: str) -> tuple[str, int]:
    """(host, port) of `10.0.0.1:7700`, `[::1]:7700`, `[fe80::1%eth0]:7700` or `name:7700`.  Raises ValueError."""
    match = _FORM.match(text)
    if match is None or int(match[3]) > 65535:
        raise ValueError(f"expected host:port, with an IPv6 host in brackets as in '[::1]:7700', found {text!r}")
    return match[1] or match[2], int(match[3])


def valid(text: str) -> bool:
    """Whether `parse` reads it and a peer could listen there."""
    try:
        return parse(text)[1] > 0
    except ValueError:
        return False


def show(host: str, port: int) -> str:
    """The text that `parse` reads."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def literal(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address that `host` writes, None for a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def resolve(host: str, port: int) -> tuple[socket.AddressFamily, tuple[object, ...]]:
    """First address of `host`; asks the resolver for names, so it may block for them.  Raises OSError."""
    flags = socket.AI_NUMERICHOST if literal(host) else 0
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)[0]
    return family, address


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`.  Raises OSError for a name that nobody knows."""
    address = literal(str(resolve(host, 0)[1][0]))
    return address is not None and address.is_loopback


def is_any(host: str) -> bool:
    """Whether listening on `host` means every interface."""
    address = literal(host)
    return address is not None and address.is_unspecified


def interfaces() -> list[tuple[str, str]]:
    """(interface, address) of this machine: IPv4 and IPv6, loopback included, link-local not."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(sock, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue
            found.append((name, socket.inet_ntoa(answer[20:24])))
    try:
        lines = Path("/proc/net/if_inet6").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        digits, _, _, _, _, name = line.split()
        address = ipaddress.IPv6Address(bytes.fromhex(digits))
        if not address.is_link_local:
            found.append((name, str(address)))
    return found


def owner_of(here: tuple[object, ...], there: tuple[object, ...]) -> int | None:
    """User id behind the other end of a TCP connection of this machine; None when that end is not to be seen here.

    `here` and `there` are what `getsockname` and `getpeername` say.  Source: the columns of /proc/net/tcp, proc(5).
    """
    wanted = [_proc_form(there), _proc_form(here)]
    for table in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if [_mapped_form(fields[1]), _mapped_form(fields[2])] == wanted:
                return int(fields[7])
    return None


def owner_of_port(port: int) -> str:
    """Who listens on a TCP port of this machine, as `process 42 (python3)`; "" where that is not to be seen."""
    sockets = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]
        except OSError:
            continue
        rows = (line.split() for line in lines)
        sockets |= {row[9] for row in rows if row[3] == _LISTENS and int(row[1].rpartition(":")[2], 16) == port}
    for process in sorted(Path("/proc").glob("[0-9]*")) if sockets else ():
        try:
            if any(_socket_of(descriptor) in sockets for descriptor in (process / "fd").iterdir()):
                return f"process {process.name} ({(process / 'comm').read_text().strip()})"
        except OSError:
            continue
    return ""


def _socket_of(descriptor: Path) -> str:
    try:
        return str(descriptor.readlink()).removeprefix("socket:[").removesuffix("]")
    except OSError:  # closed meanwhile, as the one is that lists them
        return ""


def _proc_form(address: tuple[object, ...]) -> str:
    packed = ipaddress.ip_address(str(address[0]).partition("%")[0]).packed
    words = [packed[at : at + 4][::-1].hex().upper() for at in range(0, len(packed), 4)]
    return _mapped_form(f"{''.join(words)}:{int(str(address[1])):04X}")


def _mapped_form(text: str) -> str:
    """An IPv4 address is written alike where a dual-stack socket has it as IPv6."""
    return text.removeprefix("0000000000000000FFFF0000")


def interface_of(host: str) -> str | None:
    """The interface that has this address, None when no one has."""
    address = literal(host.partition("%")[0])
    for name, text in interfaces():
        if address is not None and literal(text) == address:
            return name
    return "lo" if address is not None and address.is_loopback else None


def routable() -> list[str]:
    """Addresses that other machines might reach, IPv4 first."""
    found = [text for _, text in interfaces() if not ipaddress.ip_address(text).is_loopback]
    return sorted(found, key=lambda text: ":" in text)
