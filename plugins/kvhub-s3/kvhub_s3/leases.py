"""Leases as small objects: `<seconds> <holder>`, running from the object's time on the server's clock.

Best effort.  Where the server refuses to overwrite, one of several takers gets a lease; where it ignores the condition
each looks again and the last writer has it.  An expired one is removed first, since not every server replaces under a
condition; so two may get it in the same moment, which what a lease guards must bear.
"""

from __future__ import annotations

from typing import NamedTuple

from kvhub_s3 import failures
from kvhub_s3.client import Client

UNREADABLE_SECONDS = 60.0
"""How long an object that says nothing counts."""


class _Lease(NamedTuple):
    holder: str
    until: float


def claim(client: Client, key: str, holder: str, seconds: float, now: float) -> bool:
    """Whether `holder` has the lease now.  Raises `Failure`."""
    said = f"{seconds} {holder}".encode()
    there = _read(client, key)
    if there is not None:
        if there.holder == holder:
            return client.put(key, said)
        if now < there.until:
            return False
        client.delete(key)
    try:
        if not client.put(key, said, create=True):
            return False
    except (failures.Refused, failures.ServerError):  # a server that knows no conditions
        client.put(key, said)
    there = _read(client, key)
    return there is not None and there.holder == holder


def release(client: Client, key: str, holder: str) -> None:
    """Remove the lease if `holder` has it.  Raises `Failure`."""
    there = _read(client, key)
    if there is not None and there.holder == holder:
        client.delete(key)


def _read(client: Client, key: str) -> _Lease | None:
    there = client.small(key, 4096)
    if there is None:
        return None
    number, _, holder = there[0].decode(errors="replace").partition(" ")
    try:
        seconds = float(number)
    except ValueError:
        seconds = UNREADABLE_SECONDS
    return _Lease(holder, there[1].modified + seconds)
