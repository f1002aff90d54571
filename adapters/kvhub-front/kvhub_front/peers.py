"""What prefill engines have said of themselves: where their hubs are, so that a decode leg need not wait to be told."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

NAME = "kvhub"
"""kvhub's entry in the engines' transfer parameters."""


class Peers:
    """Hubs by their engine's URL, learnt from answers of prefill legs."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, str]] = {}
        self._before: dict[str, set[tuple[str, str]]] = {}

    def told(self, url: str, params: Mapping[str, Any] | None) -> None:
        """A prefill leg answered with these parameters."""
        entry = (params or {}).get(NAME)
        if not isinstance(entry, Mapping):
            return
        hub = (entry.get("address"), entry.get("incarnation"))
        if not (isinstance(hub[0], str) and isinstance(hub[1], str)):
            return
        peer, before = (hub[0], hub[1]), self._before.setdefault(url, set())
        if self._known.get(url) == peer:
            return
        if peer in before:
            # One that was replaced is back: several hubs behind one URL, and no telling which of them is next.
            self._known.pop(url, None)
            return
        before.add(peer)
        self._known[url] = peer

    def forget(self, url: str) -> None:
        """The engine failed; if it comes back it is another hub."""
        known = self._known.pop(url, None)
        if known is not None:
            # The same hub may have failed one request only.
            self._before[url].discard(known)

    def promise(self, url: str) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """Entries for the prefill and the decode leg of a request whose legs run at the same time.

        None while the engine's hub is not known: its first requests run one leg after the other.
        """
        known = self._known.get(url)
        if known is None:
            return None
        name = secrets.token_hex(16)
        address, incarnation = known
        return {"promise": name}, {
            "address": address,
            "incarnation": incarnation,
            "promise": name,
            "streaming": True,
        }
