"""Offers: what a hub promised to peers, and the leases that its transports take to serve them.

A promise leases the chunks that a prefill said its decode peer may pull, from the moment each is ready until the peer
says that it needs no more, or until the promise's deadline.

A stream is a promise that is made before its chunks are: it names all that a request will bring, and a pull waits for
those that have not been computed yet, until the request has brought them or has ended.
"""

from __future__ import annotations

import itertools
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import attrs

from kvhub.types import Held, Key

if TYPE_CHECKING:
    from kvhub.hub import Hub

Ready = Callable[[int, list[Held | None]], None]
EARLY_PART, EARLY_MOST = 0.1, 0.25
"""How long before a pull's deadline it is answered with what is ready: part of its time, and seconds at most.  What is
answered at the deadline itself comes too late for the peer, which then takes it for the fault of the wire."""
MOST_FULFILLED = 1024


@attrs.define
class _Promise:
    keys: set[Key]
    """To be leased when they become ready."""
    until: float
    slots: list[int] = attrs.field(factory=list)
    stream: tuple[Key, ...] = ()
    """Of a request that is still being computed: all that it will bring."""
    bringing: frozenset[Key] = frozenset()
    """The same, to be looked up in."""
    passed: int = 0
    """Of these, how many are ready, being filled, or will not come."""
    unwanted: bool = False
    """The peer said that it needs nothing of a stream that goes on; other pulls may."""


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
        self._to_come: Counter[Key] = Counter()
        self._fulfilled: OrderedDict[str, None] = OrderedDict()
        """Promises that a peer let go of before they were made."""
        self._numbers = itertools.count(1)

    # -- promises --------------------------------------------------------------------------------------------------

    def promise(self, keys: Sequence[Key], seconds: float, name: str = "") -> str:
        """Lease what is ready of `keys`, and what is being filled as soon as it is; the promise's name.

        With the `name` of a stream: the request has ended, and this is what it leaves for the peer.
        """
        with self._hub.lock:
            name = name or secrets.token_hex(8)
            until = time.monotonic() + seconds
            promise = self._promises.setdefault(name, _Promise(set(), until))
            if promise.stream:
                self._pass(promise, len(promise.stream))
                promise.stream, promise.until = (), until
                promise.keys &= set(keys)
                if promise.unwanted:
                    del self._promises[name]
                self.answer()
            else:
                self._lease(promise, keys)
            return name

    def announce(self, name: str, keys: Sequence[Key]) -> bool:
        """A request that was given the promise's `name` will bring these chunks; False when the name is taken."""
        with self._hub.lock:
            if name in self._promises:
                self._hub.reports.count("streams_refused")
                return False
            promise = self._promises[name] = _Promise(set(), float("inf"), stream=tuple(keys), bringing=frozenset(keys))
            self._to_come.update(promise.stream)
            if name in self._fulfilled:
                del self._fulfilled[name]
                promise.unwanted = True
            else:
                self._lease(promise, keys)
            self._hub.reports.count("streams")
            return True

    def brought(self, name: str, chunks: int) -> None:
        """The first `chunks` of a stream are ready or being filled; those that are neither will not come."""
        with self._hub.lock:
            promise = self._promises.get(name)
            if promise is not None and promise.passed < min(chunks, len(promise.stream)):
                self._pass(promise, chunks)
                self.answer()

    def break_off(self, name: str) -> None:
        """The request of a stream ended without a promise; idempotent, and nothing for a stream that became one."""
        with self._hub.lock:
            promise = self._promises.get(name)
            if promise is not None and promise.stream:
                self._pass(promise, len(promise.stream))
                del self._promises[name]
                self._hub.arena.release(promise.slots)
                self.answer()

    def _lease(self, promise: _Promise, keys: Sequence[Key]) -> None:
        for key in keys:
            slot = self._hub.arena.lease(key, use=False)
            if slot is None:
                promise.keys.add(key)
            else:
                promise.slots.append(slot)

    def _pass(self, promise: _Promise, chunks: int) -> None:
        over = promise.stream[promise.passed : chunks]
        promise.passed += len(over)
        for key in over:
            self._to_come[key] -= 1
            if not self._to_come[key]:
                del self._to_come[key]

    def published(self, key: Key, slot: int) -> None:
        """A chunk became ready; the caller still has a lease on it and calls `answer` when it has told of all."""
        for promise in self._promises.values():
            if key in promise.keys:
                promise.keys.discard(key)
                self._hub.arena.add_lease(slot)
                promise.slots.append(slot)

    def fulfilled(self, promise: str) -> None:
        with self._hub.lock:
            found = self._promises.get(promise)
            if found is None:
                # Perhaps a decode that had everything, and was quicker than the prefill that it was to get it from.
                self._fulfilled[promise] = None
                while len(self._fulfilled) > MOST_FULFILLED:
                    self._fulfilled.popitem(last=False)
                return
            slots, found.slots = found.slots, []
            found.keys.clear()
            if found.stream:
                found.unwanted = True
            else:
                del self._promises[promise]
            self._hub.arena.release(slots)

    # -- serving ---------------------------------------------------------------------------------------------------

    def take(self, keys: Sequence[Key], deadline: float, ready: Ready) -> int:
        with self._hub.lock:
            number = next(self._numbers)
            left = max(deadline - time.monotonic(), 0.0)
            self._tickets[number] = _Ticket(tuple(keys), deadline - min(EARLY_PART * left, EARLY_MOST), ready)
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
            if ticket.until > now and any(self._is_to_come(key) for key in ticket.keys):
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
            self._count_early(ticket.keys, found)
            try:
                ready(number, found)
            except BaseException as error:
                # Its leases stay until it gives them back: who failed here may be reading already.
                self._hub.reports.count("ready_errors", reason=type(error).__name__)
                if isinstance(error, KeyboardInterrupt):
                    raise

    def _is_to_come(self, key: Key) -> bool:
        return self._hub.is_filling(key) or (key in self._to_come and key not in self._hub.arena)

    def _count_early(self, keys: Sequence[Key], found: Sequence[Held | None]) -> None:
        """Count what leaves before its prompt is done."""
        for promise in self._promises.values():
            if promise.stream:
                mine = promise.bringing
                count = sum(held is not None and key in mine for key, held in zip(keys, found, strict=True))
                if count:
                    self._hub.reports.count("streamed_chunks", count)

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
            for number in list(self._tickets):
                self.give_back(number)
            for name in list(self._promises):
                self.fulfilled(name)
                self.break_off(name)

    def counts(self) -> dict[str, int]:
        """How many promises and tickets are open."""
        with self._hub.lock:
            return {"promises": len(self._promises), "tickets": len(self._tickets)}
