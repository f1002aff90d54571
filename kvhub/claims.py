"""Does a member claim what it cannot do?  What can be seen without moving a chunk; the contract's laws see the rest.

A false claim costs data or hits without a sound: a store that says it is the arena is never written to, one that says
it scans makes housekeeping believe that it is empty.
"""

from __future__ import annotations

from kvhub.errors import KvhubError
from kvhub.member import Member
from kvhub.store import BlockingStore, Store
from kvhub.transport import Transport
from kvhub.types import Capabilities

_STORES_ONLY = ("persistent", "removes", "scans", "arena", "codecs")


def check(name: str, member: Member, arena: type[Store] | None = None) -> None:
    """Raise KvhubError where an attached member's capabilities contradict what it is.

    `arena` is the one class that may claim to be the hub's own memory.
    """
    claims = member.capabilities
    if not isinstance(claims, Capabilities):
        raise KvhubError(
            f"{name}: its capabilities are an object of {type(claims).__name__}; "
            "return kvhub.types.Capabilities, or ask the plugin's authors to"
        )
    if member.capabilities != claims:
        raise KvhubError(f"{name}: its capabilities changed between two looks, and are fixed from attach on; {_TELL}")
    if problem := _problem(member, claims, arena):
        raise KvhubError(f"{name}: claims {problem}; {_TELL}")


_TELL = "this is a fault of the plugin, tell its authors"


def _problem(member: Member, claims: Capabilities, arena: type[Store] | None) -> str:
    most = claims.max_chunk_bytes
    if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
        return f"max_chunk_bytes={most!r}, which is no size"
    if isinstance(member, Transport):
        wrong = [word for word in _STORES_ONLY if getattr(claims, word)]
        return f"{wrong[0]}, which a transport cannot be or do: it keeps nothing" if wrong else ""
    if claims.arena and not (arena is not None and isinstance(member, arena)):
        return "arena, and is not the host tier: nothing would ever be saved to it"
    if claims.scans and isinstance(member, Store) and _has(member, "scan") is Store.scan:
        return "scans, and does not define scan()"
    if isinstance(member, BlockingStore):
        if claims.scans and _has(member, "names") is BlockingStore.names:
            return "scans, and does not define names()"
        if claims.removes and _has(member, "drop") is BlockingStore.drop:
            return "removes, and does not define drop()"
    return ""


def _has(member: Member, method: str) -> object:
    """The class's own method; a wrapper that passes everything on has none, and may pass on what it likes."""
    return getattr(type(member), method, None)
