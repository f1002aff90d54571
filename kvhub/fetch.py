"""Fetch: brings what a search found into slots, one order per source, all sources at once; or a stream."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import attrs

from kvhub.search import Search
from kvhub.stream import Stream
from kvhub.types import Held

if TYPE_CHECKING:
    from kvhub.hub import Hub


class Fetch:
    """The loading of one request.  `over` is None while it runs, then how many leading tokens are in slots."""

    def __init__(self, hub: Hub, search: Search, computed: int, tokens: int) -> None:
        assert search.found is not None
        self.hub = hub
        self.search = search
        self.chunk_tokens = search.chain.chunk_tokens
        self.first = max(computed // self.chunk_tokens, search.first)
        self.tokens = min(search.found.tokens, tokens)
        self.helds: dict[int, Held] = {}
        """What is in a leased slot, by chunk number."""
        self.over: int | None = None
        self._running = 0
        self._stopped = False
        self._stream: Stream | None = None

    def start(self) -> None:
        """Send one order per source.  Called under the hub's lock."""
        search, orders = self.search, dict[str, list[int]]()
        last = -(-self.tokens // self.chunk_tokens)
        for chunk in range(self.first, last):
            slot = search.slots.get(chunk)
            if slot is not None:
                self.helds[chunk] = self.hub.arena.held(slot)
            else:
                at = chunk - search.first
                name = search.origin[at] if at < len(search.origin) else search.tail_origin
                orders.setdefault(name, []).append(chunk)
        self._running = 1 + len(orders)
        steps = {step.name: step for step in self.hub.route.retrieve}
        for name, chunks in orders.items():
            step = steps[name]
            peer = search.peer if step.is_transport else None
            keys = [self._key(chunk) for chunk in chunks]
            if peer is not None and peer.streaming:
                came = partial(self._piece, name, chunks, keys)
                self._stream = Stream(self.hub, step, peer, keys, came, self._one_over)
                self._stream.start()
            else:
                self.hub.orders.load(name, keys, step.deadline, partial(self._arrived, name, chunks, keys), peer=peer)
        self._one_over()

    def _arrived(self, name: str, chunks: list[int], keys: list[bytes], helds: list[Held | None]) -> None:
        self._take(name, chunks, keys, helds)
        self._one_over()

    def _piece(self, name: str, chunks: list[int], keys: list[bytes], at: int, helds: list[Held | None]) -> None:
        self._take(name, chunks[at : at + len(helds)], keys[at : at + len(helds)], helds)

    def _key(self, chunk: int) -> bytes:
        keys = self.search.chain.keys
        full = self.search.first + len(self.search.origin)
        if chunk < full:
            return keys[chunk]
        assert self.search.tail_key is not None
        return self.search.tail_key

    def _take(self, name: str, chunks: Sequence[int], keys: Sequence[bytes], helds: list[Held | None]) -> None:
        """Keep what arrived whole; what nobody wants any more goes where the route keeps it."""
        found = self.search.found
        assert found is not None
        tenant = self.search.chain.tenant
        fresh: list[tuple[bytes, Held]] = []
        unwanted: list[int] = []
        for chunk, key, held in zip(chunks, keys, helds, strict=True):
            if held is None:
                continue
            tail = chunk >= self.search.first + len(self.search.origin)
            count = found.tail if tail else self.chunk_tokens
            if not self.hub.measure.fits(held.layout, count, held.length):
                self.hub.reports.count("faults", member=name, reason="length")
                self.hub.orders.doubt(name, key)
                self.hub.arena.release((held.slot,))
                continue
            if tenant or (self.hub.sinks.numbered and not tail):
                # A key is of one tenant: what was found by a request's key is of the request's.
                held = attrs.evolve(held, number=-1 if tail else chunk, tenant=tenant)
            if self.hub.arena.publish(key, held, keep=self.hub.keeps):
                self.hub.offers.published(key, held.slot)
                # A part is named by what is in it and asked for by one peer: stores would keep it for nobody.
                if not tail:
                    fresh.append((key, held))
            if self._stopped:
                unwanted.append(held.slot)
                continue
            self.helds[chunk] = held
            self.search.slots[chunk] = held.slot
        self.hub.offers.answer()
        self.hub.sinks.arrived(fresh, name)
        self.hub.arena.release(unwanted)

    def _one_over(self) -> None:
        self._running -= 1
        if self._running or self._stopped:
            return
        chunk = self.first
        while chunk in self.helds and chunk * self.chunk_tokens < self.tokens:
            chunk += 1
        self.over = min(chunk * self.chunk_tokens, self.tokens)
        if self.over < self.tokens:
            self.hub.reports.count("short_fetches")
        self.hub.reports.count("fetches")
        self.hub.answered.set()

    def stop(self) -> None:
        """Nobody wants the result any more; what arrives later is kept only where the route keeps it."""
        self._stopped = True
        if self._stream is not None:
            self._stream.stop()
