"""Offers: what a hub promised to peers, and the leases that its transports take to serve them.

A promise leases the chunks that a prefill said its decode peer may pull, from the moment each is ready until the peer
says that it needs no more, or until the promise's deadline.
"""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import attrs

from kvhub.types import Held, Key

if TYPE_CHECKING:
    from kvhub.hub import Hub

Ready = Callable[[int, list[Held | None]], None]


@attrs.define
class _Promise:
    keys: set[Key]
    until: float
    slots: list[int] = attrs.field(factory=list)


@attrs.define
class _Ticket:
    keys: tuple[Key, ...]
    until: float
    ready: Ready | None
    slots: list[int] = attrs.field(factory=list)


class Offers:
    """The hub's side of `kvhub.transport.Source`; all state is guarded by the hub's lock."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._promises: dict[str, _Promise] = {}
        self._tickets: dict[int, _Ticket] = {}
        self._numbers = itertools.count(1)

    # -- promises --------------------------------------------------------------------------------------------------

    def promise(self, keys: Sequence[Key], seconds: float) -> str:
        """Lease what is ready of `keys`, and what is being filled as soon as it is; the promise's name."""
        name = secrets.token_hex(8)
        promise = _Promise(set(), time.monotonic() + seconds)
        for key in keys:
            slot = self._hub.arena.lease(key)
            if slot is None:
                promise.keys.add(key)
            else:
                promise.slots.append(slot)
        self._promises[name] = promise
        return name

    def published(self, key: Key, slot: int) -> None:
        """A chunk became ready; the caller still has a lease on it and calls `answer` when it has told of all."""
        for promise in self._promises.values():
            if key in promise.keys:
                promise.keys.discard(key)
                self._hub.arena.add_lease(slot)
                promise.slots.append(slot)

    def fulfilled(self, promise: str) -> None:
        with self._hub.lock:
            found = self._promises.pop(promise, None)
            if found is not None:
                self._hub.arena.release(found.slots)

    # -- serving ---------------------------------------------------------------------------------------------------

    def take(self, keys: Sequence[Key], deadline: float, ready: Ready) -> int:
        with self._hub.lock:
            number = next(self._numbers)
            self._tickets[number] = _Ticket(tuple(keys), deadline, ready)
            self.answer()
        # The pump has to learn of the new deadline.
        self._hub.wake()
        return number

    def give_back(self, ticket: int) -> None:
        with self._hub.lock:
            found = self._tickets.pop(ticket, None)
            if found is not None:
                self._hub.arena.release(found.slots)

    def answer(self) -> None:
        """Answer the tickets whose keys are all ready or known not to come.  Under the hub's lock."""
        if not self._tickets:
            return
        now = time.monotonic()
        for number, ticket in list(self._tickets.items()):
            ready = ticket.ready
            if ready is None:
                continue
            if ticket.until > now and any(self._hub.is_filling(key) for key in ticket.keys):
                continue
            found: list[Held | None] = []
            for key in ticket.keys:
                slot = self._hub.arena.lease(key)
                if slot is None:
                    found.append(None)
                else:
                    ticket.slots.append(slot)
                    found.append(self._hub.arena.held(slot))
            ticket.ready = None
            try:
                ready(number, found)
            except BaseException as error:
                # Its leases stay until it gives them back: who failed here may be reading already.
                self._hub.reports.count("ready_errors", reason=type(error).__name__)
                if isinstance(error, KeyboardInterrupt):
                    raise

    # -- time ------------------------------------------------------------------------------------------------------

    def expire(self) -> float:
        """End what is over; when to come back."""
        with self._hub.lock:
            now = time.monotonic()
            for name, promise in list(self._promises.items()):
                if promise.until <= now:
                    self._hub.reports.count("promises_expired")
                    self.fulfilled(name)
            self.answer()
            times = [promise.until for promise in self._promises.values()]
            times += [ticket.until for ticket in self._tickets.values() if ticket.ready is not None]
            return min(times, default=float("inf"))

    def close(self) -> None:
        """Give back everything; transports must have been closed before."""
        with self._hub.lock:
            for name in list(self._promises):
                self.fulfilled(name)
            for number in list(self._tickets):
                self.give_back(number)

    def counts(self) -> dict[str, int]:
        """How many promises and tickets are open."""
        with self._hub.lock:
            return {"promises": len(self._promises), "tickets": len(self._tickets)}
