"""Session: what every engine adapter shares; the scheduler's side of one engine.

An adapter tells the session what the engine's scheduler decides (a request came, blocks were allocated, so many
tokens are computed, it was preempted, it ended) and takes from it, once per step, a `StepPlan` of copies between
engine blocks and arena slots.  The engine's worker, perhaps another process, does the copies and sends back a
`Report`.  Only names, token ids and block numbers cross; see `kvhub.plan` for what goes to the worker.

Rules that the adapter can rely on, and must keep:

* Only tokens that are computed *and* accepted are ever passed as computed; the session stores no others.
* A block named in a plan is read or written until its copy is reported.  `Finish.hold` says that the engine must not
  reuse the request's blocks before that; after a preemption the plan's `fences` say the same.
* Nothing here waits: `lookup` answers None while it is being found out.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from kvhub.hub import Hub
from kvhub.keys import Chain, Context
from kvhub.pace import Prefill, Rest
from kvhub.plan import Copy, Report, StepPlan
from kvhub.requests import (
    Fill,
    Finish,
    Request,
    Sizes,
    announce,
    build_load,
    count_prompt,
    read_params,
    stream_of,
    write_params,
)
from kvhub.tail import write_trailer
from kvhub.types import Held, Peer

MOST_SHORT = 2
"""Loads that may fall short before a request computes what is left: a second source gets its chance, no loop does."""
INLINE_TOKENS = 8192
"""Prompts up to this length get their keys on the engine's thread (under 0.2 ms); longer ones on the pump."""


class Session:
    """Not thread-safe: called on the engine's scheduling thread."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.block_tokens = hub.facts.block_tokens
        self.chunk_tokens = hub.measure.chunk_tokens
        self._sizes = Sizes(self.block_tokens, self.chunk_tokens)
        self._requests: dict[str, Request] = {}
        self._loading: dict[str, Request] = {}
        self._asking: set[str] = set()
        self._fills: dict[int, Fill] = {}
        self._loads: dict[int, str] = {}
        self._numbers = itertools.count(1)
        self._gathers: list[Copy] = []
        self._fences: list[int] = []
        self._closing: dict[str, tuple[int, ...]] = {}
        self._stores = bool(hub.route.store)
        self._rest, self._prefill = Rest(), Prefill()

    # -- a request comes -------------------------------------------------------------------------------------------

    def begin(
        self, request: str, tokens: Sequence[int], context: Context, params: Mapping[str, Any] | None = None
    ) -> None:
        """A request that may use and make KV.  `tokens` is the engine's own, growing list; the prompt is in it now.

        `params` are the engine-specific request parameters: `do_remote_decode` asks for a promise at the end, an entry
        `kvhub` names the peer that made one.  Parameters that make no sense count as none.  Where `stream_of` finds a
        name in them, call this as soon as the request is known; otherwise before its first lookup.
        """
        root = context.root(self.hub.facts.namespace)
        state = Request(tokens, len(tokens), Chain(root, self.chunk_tokens, context.items, context.tenant))
        params = params or {}
        state.offers = bool(params.get("do_remote_decode"))
        named = self._read(params)
        if named is not None:
            state.peer, state.promised = named[0], min(named[1], len(tokens))
            self.hub.warm_peer(named[0])
        self._requests[request] = state
        state.stream = stream_of(params) if self._stores and self.hub.offer_step is not None else ""
        if state.stream:
            self._announce(state)

    def _announce(self, state: Request) -> None:
        """Let a peer ask for what this request will bring."""
        if state.prompt <= INLINE_TOKENS:
            self._grow(state, state.prompt)
            announce(self.hub, state)
            return
        state.on_pump = True

        def grow() -> None:
            state.chain.extend_kindly(state.tokens[state.chain.tokens : state.prompt])
            announce(self.hub, state)

        self.hub.pump.call(grow)

    def decline(self, params: Mapping[str, Any] | None) -> None:
        """A request with these parameters ended before it ever began here: its peer need not keep what it promised."""
        named = self._read(params or {})
        if named is not None:
            self.hub.fulfil(named[0])

    def _read(self, params: Mapping[str, Any]) -> tuple[Peer, int] | None:
        try:
            return read_params(params)
        except ValueError:
            self.hub.reports.count("bad_params")
            return None

    def knows(self, request: str) -> bool:
        """Whether this request was begun and has not been forgotten."""
        return request in self._requests

    def lookup(self, request: str, computed: int) -> int | None:
        """Tokens beyond `computed` that can be loaded: 0, or at least a block; None means ask again."""
        state = self._requests.get(request)
        if state is None or state.short >= MOST_SHORT:
            return 0
        if computed < state.computed:
            # The engine lost blocks since the search began: what they held must be searched for too.
            self.hub.release(request)
        state.computed = computed
        found = self.hub.lookup(
            request, state.chain, computed=computed, limit=len(state.tokens), peer=state.peer, promised=state.promised,
            tokens=self._supply(state),
        )  # fmt: skip
        if found is None:
            self._asking.add(request)
            return None
        self._asking.discard(request)
        state.on_pump = False
        extra = found.tokens - computed
        return extra if extra >= self.block_tokens else 0

    def _supply(self, state: Request) -> Any:
        # Once the pump was asked to key, this thread keeps away from the chain until the pump has answered.
        if state.on_pump or len(state.tokens) - state.chain.tokens > INLINE_TOKENS:
            state.on_pump = True
            tokens = state.tokens
            # Counted when it runs: a search that was given up may have keyed them meanwhile.
            return lambda: tokens[state.chain.tokens :]
        self._grow(state, len(state.tokens))
        return None

    @staticmethod
    def _grow(state: Request, tokens: int) -> None:
        known = state.chain.tokens
        if tokens > known:
            state.chain.extend(state.tokens[known:tokens])

    def allocated(self, request: str, blocks: Sequence[int], external: int) -> None:
        """The engine gave the request its blocks and counts on `external` tokens to be loaded (0: on none)."""
        state = self._requests.get(request)
        if state is None or state.load is not None or state.fetch is not None:
            return
        state.placed, state.seen = True, state.computed + external
        if not external:
            count_prompt(state, self.hub.reports)
            # The rest of the prompt is the engine's to compute, also if a preemption brings it back later.
            state.accounted = state.prompt
            self._let_go(request, state)
            return
        state.blocks = blocks
        state.target = state.computed + external
        state.fetch = self.hub.fetch(request, computed=state.computed, tokens=state.target)
        self._loading[request] = state

    def _let_go(self, request: str, state: Request) -> None:
        """The request needs nothing more of what was found, here or at its peer."""
        self.hub.release(request)
        if state.peer is not None:
            self.hub.fulfil(state.peer)
            state.peer = None

    # -- a request runs --------------------------------------------------------------------------------------------

    def advance(self, request: str, computed: int, blocks: Sequence[int]) -> None:
        """After this step the first `computed` tokens of the request have KV in `blocks`; store what is full now.

        Tokens that the engine has only drafted or promised to itself must not be counted.
        """
        state = self._requests.get(request)
        if state is None:
            return
        computed = min(computed, len(state.tokens))
        self._prefill.scheduled(min(computed, state.prompt) - state.seen)
        state.seen = max(state.seen, computed)
        if not self._stores:
            return
        full = computed // self.chunk_tokens
        if full <= state.stored:
            return
        self._grow(state, full * self.chunk_tokens)
        first, state.stored = state.stored, full
        slots = self.hub.reserve(state.chain.keys[first:full])
        if state.stream:
            self.hub.offers.brought(state.stream, full)
        length, tenant = self.hub.measure.chunk_bytes, state.chain.tenant
        picked = [at for at, slot in enumerate(slots) if slot >= 0]
        if not picked:
            return
        made = [self._sizes.generated(state.prompt, first + at, self.chunk_tokens) for at in picked]
        chunks = tuple(
            (state.chain.keys[first + at], Held(slots[at], length, "", generated, first + at, tenant))
            for at, generated in zip(picked, made, strict=True)
        )
        self._gather(request, state, [first + at for at in picked], blocks, Fill(request, chunks), self.chunk_tokens)

    def _gather(
        self, request: str, state: Request, numbers: Sequence[int], blocks: Sequence[int], fill: Fill, last: int
    ) -> None:
        number = next(self._numbers)
        slots = tuple(held.slot for _, held in fill.chunks)
        rows = tuple(self._sizes.row(blocks, n) for n in numbers)
        self._gathers.append(Copy(number, request, slots, rows, (0,) * len(rows), (last,) * len(rows)))
        self._fills[number] = fill
        state.fills.add(number)

    def preempted(self, request: str) -> None:
        """The engine takes the request's blocks; it may come back and be looked up again.

        May be told in every step until the request has blocks again: a search that goes on meanwhile is left alone.
        """
        state = self._requests.get(request)
        if state is None or not state.placed:
            return
        state.placed = False
        self._fences += sorted(state.fills)
        if state.fetch is not None and state.load is None:
            state.fetch = None
            self._loading.pop(request, None)
        self.hub.release(request)
        state.computed = state.target = state.short = 0

    # -- a request ends --------------------------------------------------------------------------------------------

    def finish(self, request: str, computed: int, blocks: Sequence[int], *, aborted: bool) -> Finish:
        """The request ended with KV for its first `computed` tokens; store the rest, promise, let go."""
        self._asking.discard(request)
        state = self._requests.pop(request, None)
        if state is None:
            return Finish(hold=False)
        state.ended = True
        params = None
        if state.fetch is not None:
            # Blocks are being loaded: the plan still has to answer for them, and the engine keeps them until then.
            self._requests[request] = state
            self.hub.offers.break_off(state.stream)
            return Finish(hold=False)
        self._let_go(request, state)
        if not aborted and len(blocks) * self.block_tokens >= computed > 0:
            params = self._keep_rest(request, state, min(computed, len(state.tokens)), blocks)
        self.hub.offers.break_off(state.stream)
        if state.fills:
            self._closing[request] = tuple(sorted(state.fills))
        return Finish(hold=bool(state.fills), params=params)

    def _keep_rest(self, request: str, state: Request, computed: int, blocks: Sequence[int]) -> dict[str, Any] | None:
        self.advance_state(request, state, computed, blocks)
        full, rest = divmod(computed, self.chunk_tokens)
        cut = self.hub.measure.own.cuttable
        offers = state.offers and self.hub.offer_step is not None
        self._grow(state, computed)
        if rest and cut and self._stores:
            held_bytes = self.hub.measure.own.payload_bytes(rest)
            made = self._sizes.generated(state.prompt, full, rest)
            held = Held(-1, held_bytes, "", made, tenant=state.chain.tenant)
            if offers:
                key = state.chain.part_key(computed)
                slot = self.hub.reserve([key])[0]
                fill = Fill(request, ((key, attrs.evolve(held, slot=slot)),), spread=False)
            else:
                slot = self.hub.reserve_private()
                digests = tuple(state.chain.digests(full, rest))
                fill = Fill(request, ((state.chain.tail_key(full), attrs.evolve(held, slot=slot)),), digests)
            if slot >= 0:
                self._gather(request, state, [full], blocks, fill, rest)
        return self._promise(state, computed) if offers else None

    def advance_state(self, request: str, state: Request, computed: int, blocks: Sequence[int]) -> None:
        """`advance` for a request that is no longer in the table."""
        self._requests[request] = state
        try:
            self.advance(request, computed, blocks)
        finally:
            del self._requests[request]

    def _promise(self, state: Request, computed: int) -> dict[str, Any] | None:
        """Promise the leading run that the arena has or is getting; never an empty success."""
        full, rest = divmod(computed, self.chunk_tokens)
        keys = list(state.chain.keys[:full])
        if rest and self.hub.measure.own.cuttable:
            keys.append(state.chain.part_key(computed))
        count = self.hub.run_with_filling(keys)
        tokens = computed if count == full + 1 else count * self.chunk_tokens
        peer = self.hub.promise(keys[:count], state.stream) if count else None
        if peer is None:
            self.hub.reports.count("nothing_to_promise")
            return None
        return write_params(peer, tokens)

    # -- steps -----------------------------------------------------------------------------------------------------

    def rest(self) -> None:
        """Let the hub's threads run, for an engine that has nothing to compute while a request waits for its KV."""
        if self._asking or self._loading:
            self._rest.until(self.hub.answered)

    def plan(self, *, idle: bool = False) -> StepPlan:
        """What the worker should copy in this step; takes it off the list.  `idle` steps compute nothing."""
        loads = []
        for request, state in list(self._loading.items()):
            fetch = state.fetch
            if fetch is None or (fetch.over is None and not state.ended):
                continue
            del self._loading[request]
            number = next(self._numbers)
            state.load = number
            self._loads[number] = request
            load = build_load(number, request, state, fetch, self._sizes, self.hub.reports)
            state.short = state.short + 1 if load.failed else 0
            loads.append(load)
        region = self.hub.arena.region
        plan = StepPlan(
            region.name, region.slots, region.slot_bytes, tuple(self._gathers), tuple(loads), tuple(self._fences),
            dict(self._closing), idle,
        )  # fmt: skip
        self._gathers, self._fences, self._closing = [], [], {}
        self.hub.rates.prefill = self._prefill.stepped()
        return plan

    def done(self, report: Report) -> None:
        """The worker's report of copies that ended."""
        for number in (*report.done, *report.failed):
            failed = number in report.failed
            fill = self._fills.pop(number, None)
            if fill is not None:
                self._filled(number, fill, failed)
            elif number in self._loads:
                self._loaded(self._loads.pop(number))

    def _filled(self, number: int, fill: Fill, failed: bool) -> None:
        state = self._requests.get(fill.request)
        if state is not None:
            state.fills.discard(number)
        if failed:
            self.hub.reports.count("gathers_failed")
            self.hub.cancel([held.slot for _, held in fill.chunks], [key for key, _ in fill.chunks])
            return
        chunks = fill.chunks
        if fill.tail is not None:
            key, held = chunks[0]
            length = write_trailer(self.hub.arena.region.slot(held.slot), self.hub.measure.own, fill.tail)
            chunks = ((key, attrs.evolve(held, length=length)),)
        self.hub.commit(chunks, replace=fill.tail is not None, spread=fill.spread)

    def _loaded(self, request: str) -> None:
        state = self._requests.get(request)
        if state is None:
            return
        self._let_go(request, state)
        state.fetch = state.load = None
        # What was loaded is in the arena or a pool already; `reserve` finds out chunk by chunk.
        if state.ended:
            del self._requests[request]

    # -- life ------------------------------------------------------------------------------------------------------

    def busy(self) -> bool:
        """Whether the engine should keep stepping: copies to hand out, or loads under way."""
        return bool(self._gathers or self._loading or self._closing or self._fills or self._loads)

    def counts(self) -> dict[str, int]:
        """Everything that must be back at zero when no request is alive."""
        return {
            "requests": len(self._requests), "loading": len(self._loading), "fills": len(self._fills),
            "loads": len(self._loads),
        }  # fmt: skip

    def close(self) -> None:
        """Close the hub; what the worker has not reported is dropped."""
        for fill in self._fills.values():
            self.hub.cancel([held.slot for _, held in fill.chunks], [key for key, _ in fill.chunks])
        self._fills.clear()
        self.hub.close()
