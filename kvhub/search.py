"""Search: which leading tokens of a prompt can be had, and from where; asks the steps of a route in order.

Runs on the hub's pump, driven by completions; nothing here waits.  A search leases what it found in the arena at
once; what it found elsewhere is a hint until `hub.fetch` has loaded it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import attrs

from kvhub.keys import Chain
from kvhub.tail import common_tokens, kept_tokens
from kvhub.types import Completion, Found, Held, Key, Op, Outcome, Peer

if TYPE_CHECKING:
    from kvhub.hub import Hub
    from kvhub.router import BoundStep

FIRST_WINDOW = 128
"""Keys of the first FIND to a store; doubled while all were there, so that a long miss costs one short question."""


class Search:
    """One request's search.  `found` is None while it runs."""

    def __init__(
        self,
        hub: Hub,
        chain: Chain,
        *,
        computed: int,
        limit: int,
        peer: Peer | None,
        promised: int,
        tails: bool = True,
    ) -> None:
        self.hub = hub
        self.chain = chain
        self.limit = limit
        self.peer = peer
        self.promised = promised
        self.tails = tails
        self.first = computed // chain.chunk_tokens
        self.found: Found | None = None
        self.slots: dict[int, int] = {}
        """Leased slots by chunk number; the tail, if any, under the number behind the last full chunk."""
        self.origin: list[str] = []
        """Member that each chunk from `first` on comes from."""
        self.tail_key: Key | None = None
        self.tail_origin = ""
        self.tail_tokens = 0
        """Tokens that the tail holds, of which the prompt may share fewer."""
        self._have: list[str] = []
        self._deadline = 0.0
        self._orders: list[int] = []
        self._passed: set[str] = set()
        """Stores whose conditions left them out."""
        self._over = False
        self._told: Callable[[], None] = lambda: None

    # -- full chunks -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin; also called inline for a route that asks nobody but the arena."""
        size = self.chain.chunk_tokens
        self._deadline = time.monotonic() + self.hub.limits.lookup
        self._have = [""] * max(min(len(self.chain.keys), self.limit // size) - self.first, 0)
        self._step(0)

    def _key(self, at: int) -> Key:
        return self.chain.keys[self.first + at]

    def _run(self) -> int:
        for count, name in enumerate(self._have):
            if not name:
                return count
        return len(self._have)

    def _step(self, number: int) -> None:
        steps = self.hub.route.retrieve
        while number < len(steps) and self._run() < len(self._have) and not self._over:
            step = steps[number]
            if step.is_arena:
                self._from_arena(step.name)
            elif step.is_transport:
                self._from_peer(step.name)
            elif self._passes_by(step):
                self._passed.add(step.name)
            else:
                self._ask(step, number, FIRST_WINDOW)
                return
            number += 1
        self._tail_from(0)

    def _from_arena(self, name: str) -> None:
        missing = [at for at, who in enumerate(self._have) if not who]
        if not self.slots:
            run = self.hub.arena.lease_run([self._key(at) for at in missing])
            for at, slot in zip(missing, run, strict=False):
                self.slots[self.first + at] = slot
                self._have[at] = name
            missing = missing[len(run) :]
        for at in missing:
            single = self.hub.arena.lease(self._key(at))
            if single is not None:
                self.slots[self.first + at] = single
                self._have[at] = name

    def _from_peer(self, name: str) -> None:
        if self.peer is None:
            return
        for at, who in enumerate(self._have):
            if not who and (self.first + at + 1) * self.chain.chunk_tokens <= self.promised:
                self._have[at] = name

    def _ask(self, step: BoundStep, number: int, window: int) -> None:
        start = self._run()
        asked = [at for at in range(start, min(start + window, len(self._have))) if not self._have[at]]
        asked = [at for at in asked if not self.hub.orders.doubted(step.name, self._key(at))]
        left = self._deadline - time.monotonic()
        if not asked or left <= 0:
            self._step(number + 1)
            return

        def answered(completion: Completion) -> None:
            if self._over:
                return
            for at, outcome in zip(asked, completion.outcomes, strict=True):
                if outcome == Outcome.DONE:
                    self._have[at] = step.name
            whole = self._run() >= min(start + window, len(self._have))
            if whole and self._run() < len(self._have):
                self._ask(step, number, 2 * window)
            else:
                self._step(number + 1)

        self._send(step.name, Op.FIND, [self._key(at) for at in asked], answered)

    def _passes_by(self, step: BoundStep) -> bool:
        """Whether this step's conditions leave it out for what is still missing."""
        missing = self._have.count("")
        if missing < step.missing_chunks:
            return True
        if not step.faster:
            return False
        size, tokens = missing * self.hub.measure.chunk_bytes, missing * self.chain.chunk_tokens
        declined = self.hub.rates.slower(step.name, size, tokens, step.faster)
        if declined is None:
            return False
        self.hub.reports.count("declined", missing, member=step.name, reason="slower")
        if declined.first:
            loading, computing = round(declined.loading, 3), round(declined.computing, 3)
            self.hub.reports.event("source.declined", member=step.name, load_seconds=loading, compute_seconds=computing)
        return True

    def _send(self, name: str, op: Op, keys: Sequence[Key], done: Callable[[Completion], None]) -> None:
        left = max(self._deadline - time.monotonic(), 0.001)
        self._orders.append(self.hub.orders.send(name, op, keys, seconds=left, done=done))

    # -- the tail --------------------------------------------------------------------------------------------------

    def _tail_from(self, number: int) -> None:
        """Look for the tokens behind the run: the very part that a peer promised, then the latest tail."""
        if self._over:
            return
        size, chunk = self.chain.chunk_tokens, self.first + self._run()
        start = chunk * size
        if start >= self.limit or not self.tails or not self.hub.measure.own.cuttable:
            self._finish(0)
            return
        if number == 0:
            end = self.promised if self.peer is not None else self.limit
            if start < end < start + size and end <= self.limit and self._part(chunk, end):
                return
        key = self.chain.tail_key(chunk)
        for at in range(number, len(self.hub.route.retrieve)):
            step = self.hub.route.retrieve[at]
            if step.is_arena:
                near = self.hub.arena.lease(key)
                if near is not None and self._take_tail(chunk, key, near, step.name):
                    return
            elif (
                not step.is_transport
                and step.name not in self._passed
                and time.monotonic() < self._deadline
                and not self.hub.orders.doubted(step.name, key)
            ):
                self._ask_tail(step, at, chunk, key)
                return
        self._finish(0)

    def _part(self, chunk: int, end: int) -> bool:
        key, tokens = self.chain.part_key(end), end - chunk * self.chain.chunk_tokens
        for step in self.hub.route.retrieve:
            slot = self.hub.arena.lease(key) if step.is_arena else None
            if slot is None and not (step.is_transport and self.peer is not None):
                continue
            if slot is not None:
                self.slots[chunk] = slot
            self.tail_key, self.tail_origin, self.tail_tokens = key, step.name, tokens
            self._finish(tokens)
            return True
        return False

    def _take_tail(self, chunk: int, key: Key, slot: int, name: str) -> bool:
        """Keep a leased tail if it shares tokens with the prompt; otherwise give it back."""
        held = self.hub.arena.held(slot)
        layout = self.hub.measure.layout(held.layout)
        digests = self.chain.digests(chunk, min(self.chain.chunk_tokens, self.limit - chunk * self.chain.chunk_tokens))
        shared = 0
        if layout is not None:
            payload = self.hub.arena.region.slot(slot, held.length)
            shared, self.tail_tokens = common_tokens(payload, layout, digests), kept_tokens(payload, layout)
        if not shared:
            self.hub.arena.release((slot,))
            return False
        self.slots[chunk] = slot
        self.tail_key, self.tail_origin = key, name
        self._finish(shared)
        return True

    def _ask_tail(self, step: BoundStep, number: int, chunk: int, key: Key) -> None:
        def found(completion: Completion) -> None:
            if self._over:
                return
            if completion.outcomes[0] != Outcome.DONE:
                self._tail_from(number + 1)
                return
            seconds = max(self._deadline - time.monotonic(), 0.005)
            self.hub.orders.load(step.name, [key], seconds, loaded)

        def loaded(helds: list[Held | None]) -> None:
            held = helds[0]
            if held is None:
                self._tail_from(number + 1)
                return
            # Published, so that the next search of this hub finds it; not kept where the route has no host tier.
            held = attrs.evolve(held, tenant=self.chain.tenant)
            self.hub.arena.publish(key, held, keep=self.hub.keeps, replace=True)
            if self._over or not self._take_tail(chunk, key, held.slot, step.name):
                if self._over:
                    self.hub.arena.release((held.slot,))
                self._tail_from(number + 1)

        # A tail is asked for before a slot is taken: a miss must cost no memory.
        self._send(step.name, Op.FIND, [key], found)

    # -- the end ---------------------------------------------------------------------------------------------------

    def _finish(self, tail: int) -> None:
        if self._over:
            return
        self._over = True
        run = self._run()
        chunks, size = self.first + run, self.chain.chunk_tokens
        last = chunks if tail else chunks - 1
        self.hub.arena.release([self.slots.pop(at) for at in [at for at in self.slots if at > last]])
        self.origin = self._have[:run]
        tokens: dict[str, int] = {}
        for name in self.origin:
            tokens[name] = tokens.get(name, 0) + size
        if tail:
            tokens[self.tail_origin] = tokens.get(self.tail_origin, 0) + tail
        self.found = Found(chunks * size + tail, chunks, tail, tuple(tokens.items()))
        self.hub.answered.set()
        self._told()

    def give_up(self) -> None:
        """End with nothing beyond what the engine has."""
        self._have = []
        self._finish(0)

    def when_over(self, told: Callable[[], None]) -> None:
        """Call `told` when the search ends, if it still runs."""
        self._told = told

    def stop(self) -> None:
        """Give up: end its orders, give back its leases; idempotent."""
        self._over = True
        for order in self._orders:
            self.hub.jobs.cancel(order)
        self._orders.clear()
        slots, self.slots = list(self.slots.values()), {}
        self.hub.give_back(slots)
