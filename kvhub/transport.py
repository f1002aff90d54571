"""`Transport`: a member that moves chunks between two hubs' arenas.

A LOAD batch with a `peer` pulls chunks by key out of the peer's arena into ours.  FIND and SAVE are not used: what
a prefill promised is said in the request's parameters, and chunks are offered rather than pushed.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from kvhub.member import Member
from kvhub.types import Held, Key, Peer


class Source(Protocol):
    """The hub as a serving transport sees it: leases on ready chunks of the local arena.  Thread-safe."""

    def take(self, keys: Sequence[Key], deadline: float, ready: Callable[[int, list[Held | None]], None]) -> int:
        """Lease chunks for a peer that asked for them; returns a ticket at once.

        `ready(ticket, found)` is called exactly once, from any thread (also from inside this call), as soon as
        every key is either ready or known to be absent, or at `deadline` (`time.monotonic()`): keys that are
        still being filled are waited for, since a decode may ask before the prefill's copy has ended.
        `found[i]` is None for a key that is not to be had.
        """

    def give_back(self, ticket: int) -> None:
        """End the leases of a ticket; idempotent.  Call it only when no read of the slots can be under way."""

    def fulfilled(self, promise: str) -> None:
        """The peer says that it needs nothing more of this promise; its leases end now."""


class Transport(Member):
    """Member + address, connect, forget, serve."""

    @classmethod
    def rehearsal(cls, config: Any) -> tuple[Any, Any]:
        """The options for two members on this machine, at free ports: one to serve, one to pull from it.

        For `kvhub doctor` and `kvhub bench`, which may run beside an engine that has the configured port.
        """
        return config, config

    @abc.abstractmethod
    def address(self) -> str:
        """`host:port` that peers should use, known after `attach`; empty when this hub does not listen."""

    @abc.abstractmethod
    def serve(self, source: Source) -> None:
        """Answer peers' pulls from `source`, from now until `close`.  Called once, after `attach`."""

    @abc.abstractmethod
    def connect(self, peer: Peer) -> None:
        """Begin pairing in the background; a LOAD for an unknown peer does so by itself.  Never blocks."""

    @abc.abstractmethod
    def forget(self, peer: Peer) -> None:
        """Drop the pairing; LOADs under way end with FAILED.  Never blocks."""

    @abc.abstractmethod
    def fulfil(self, peer: Peer) -> None:
        """Tell the peer that `peer.promise` is done with, whatever came of it.  Best effort, never blocks."""
