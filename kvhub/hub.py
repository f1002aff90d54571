"""The hub: what an engine adapter holds.  Look up, fetch, reserve, commit, release.

No call waits for I/O.  What takes time runs on members' threads; the pump, one thread, brings results back.  One lock
guards the hub's own tables; it is held for dictionary work only.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from kvhub.arena import Arena
from kvhub.builtin.host import HostStore
from kvhub.config import Config, load
from kvhub.engine import EngineFacts
from kvhub.errors import KvhubError, MisuseError
from kvhub.fetch import Fetch
from kvhub.jobs import Jobs
from kvhub.keys import Chain
from kvhub.member import Member
from kvhub.observe import LogObserver, Reports
from kvhub.offers import Offers
from kvhub.opening import build_members, check_sizes, in_namespace, observers, open_arena
from kvhub.orders import Orders
from kvhub.plugins import Registry
from kvhub.pump import Pump
from kvhub.rates import Rates
from kvhub.router import bind
from kvhub.search import Search
from kvhub.sinks import Sinks
from kvhub.tail import Measure
from kvhub.transport import Transport
from kvhub.types import Found, Held, Key, Op, Peer

RELEASED_AT_ONCE = 512


class Hub:
    """One per engine process.  Every public method is safe from any thread and returns within a millisecond,
    except `open` and `close`."""

    def __init__(self, config: Config, facts: EngineFacts, registry: Registry, members: dict[str, Member]) -> None:
        self.config = config
        self.facts = facts
        self.limits = config.limits
        self.registry = registry
        self.members = members
        self.incarnation = secrets.token_hex(16)
        self.lock = threading.RLock()
        self.measure = Measure(facts.layout, facts.namespace.chunk_tokens)
        self.reports = Reports([LogObserver(), *observers(registry, config)])
        self.arena: Arena = None  # type: ignore[assignment]  # set by _attach, before anyone can call
        self._searches: dict[str, Search] = {}
        self._fetches: dict[str, Fetch] = {}
        self._filling: dict[Key, int] = {}
        self.answered = threading.Event()
        """Set whenever a search or a fetch has ended; whoever waits for one clears it."""
        self._closing = False
        self.rates = Rates()
        self.offers = Offers(self)
        self.orders = Orders(self)
        self.pump = Pump(self._turn, self.reports)

    @classmethod
    def open(
        cls,
        source: str | Path | Mapping[str, Any] | Config,
        facts: EngineFacts,
        *,
        registry: Registry | None = None,
    ) -> Hub:
        """Build, probe and attach every member of the role's routes; start serving.

        Raises ConfigError or another KvhubError, each a full sentence; then nothing is left behind.
        """
        registry = registry or Registry()
        config = source if isinstance(source, Config) else load(source, registry, role=facts.role)
        if facts.namespace.chunk_tokens % facts.block_tokens:
            raise KvhubError(
                f"chunk_tokens of {facts.namespace.chunk_tokens} is no multiple of the engine's block of "
                f"{facts.block_tokens} tokens; set chunk_tokens to a multiple of it"
            )
        hub = cls(config, in_namespace(facts, config), registry, {})
        try:
            hub._attach()
        except BaseException:
            hub.close()
            raise
        hub.pump.start()
        hub._tell("kvhub_hub_opened")
        for warning in config.warnings:
            hub.reports.event("config.warning", level="warning", warning=warning)
        hub.reports.event(
            "hub.opened", role=facts.role, engine=facts.engine, namespace=facts.namespace.digest.hex()[:16],
            store=[step.name for step in hub.route.store], retrieve=[step.name for step in hub.route.retrieve],
            slots=hub.arena.region.slots, slot_bytes=hub.arena.region.slot_bytes, memory=hub.arena.memory,
        )  # fmt: skip
        return hub

    def _attach(self) -> None:
        built = build_members(self.config, self.facts, self.measure, self.incarnation, self.reports)
        self.members.update(built)
        self.arena = open_arena(self.members, self.config, self.facts, self.measure)
        self.jobs = Jobs(
            self.members,
            self.reports,
            queue_bytes=self.limits.queue,
            queue_seconds=self.limits.queue_seconds,
            rates=self.rates,
            changed=self._member_changed,
            probe=self.orders.probe,
        )
        for name, member in self.members.items():
            member.attach(self.arena.region, self.wake)
            check_sizes(name, member, self.measure)
            if isinstance(member, Transport):
                member.serve(self.offers)
        self.route = bind(self.config, self.facts.role, self.members, hooks=self.registry.hooks)
        self.keeps = any(step.is_arena or step.is_transport for step in self.route.store)
        self.sinks = Sinks(self)

    # -- looking up ------------------------------------------------------------------------------------------------

    def lookup(
        self,
        request: str,
        chain: Chain,
        *,
        computed: int = 0,
        limit: int | None = None,
        peer: Peer | None = None,
        promised: int = 0,
        tokens: Callable[[], Sequence[int]] | None = None,
        tails: bool = True,
    ) -> Found | None:
        """How many leading tokens can be supplied; None while that is being found out: ask again.

        What it says is leased for `request` until `release`.  Asking again is free and returns the same answer.
        `computed` tokens are in the engine already and are not searched for.  `limit` bounds the hit.  A `peer` with
        `promised` tokens is asked where a transport stands in the route.  `tokens` supplies tokens that the chain does
        not have yet; with it the keys are computed on the pump, for prompts that would hold the engine's thread.
        Without `tails` only full chunks are looked for, for engines that take nothing else.
        """
        with self.lock:
            search = self._searches.get(request)
            if search is not None:
                return search.found
            limit = chain.tokens if limit is None else limit
            search = Search(self, chain, computed=computed, limit=limit, peer=peer, promised=promised, tails=tails)
            self._searches[request] = search
            if tokens is None and all(step.is_arena or step.is_transport for step in self.route.retrieve):
                search.start()
                return search.found

        def begin() -> None:
            try:
                if self._searches.get(request) is search and tokens is not None:
                    chain.extend_kindly(tokens())
                with self.lock:
                    if self._searches.get(request) is search:
                        search.start()
            except BaseException:
                # Without an answer the engine would ask for ever.
                with self.lock:
                    search.give_up()
                raise

        self.pump.call(begin)
        return None

    # -- fetching --------------------------------------------------------------------------------------------------

    def fetch(self, request: str, *, computed: int, tokens: int) -> Fetch:
        """Load what the lookup of `request` promised into slots; ask `Fetch.over` for the end.

        Only chunks with tokens from `computed` to `tokens` are read; the engine has the others, or wants none.
        """
        with self.lock:
            found = self._fetches.get(request)
            if found is None:
                search = self._searches.get(request)
                if search is None or search.found is None:
                    raise MisuseError(f"fetch of request {request!r} without a finished lookup")
                found = self._fetches[request] = Fetch(self, search, computed, tokens)
                found.start()
            return found

    def release(self, request: str) -> None:
        """End a request's search and fetch and every lease they hold; idempotent, in any state."""
        with self.lock:
            fetch = self._fetches.pop(request, None)
            if fetch is not None:
                fetch.stop()
            search = self._searches.pop(request, None)
            if search is not None:
                search.stop()

    def fulfil(self, peer: Peer) -> None:
        """Tell a peer that this hub needs nothing more of what it promised."""
        for step in self.route.retrieve:
            if isinstance(step.member, Transport):
                self.jobs.guarded("fulfil_errors", step.name, step.member.fulfil, peer)

    def give_back(self, slots: list[int]) -> None:
        """End leases: at once, or for a long prompt on the pump, since 2,000 of them cost 0.3 ms."""
        if len(slots) <= RELEASED_AT_ONCE:
            self.arena.release(slots)
            return
        pieces = [slots[at : at + RELEASED_AT_ONCE] for at in range(0, len(slots), RELEASED_AT_ONCE)]
        self.pump.call(*(partial(self.arena.release, piece) for piece in pieces))

    # -- storing ---------------------------------------------------------------------------------------------------

    def reserve(self, keys: Sequence[Key]) -> list[int]:
        """A slot for each key that the hub lacks, -1 for the others; once there is no room, -1 for the rest.

        Every slot must be given back by `commit` or `cancel`.
        """
        with self.lock:
            slots: list[int] = []
            seen: list[Key] = []
            for at, key in enumerate(keys):
                if key in self.arena:
                    seen.append(key)
                    slots.append(-1)
                    continue
                if key in self._filling:
                    slots.append(-1)
                    continue
                claimed = self.arena.claim(1)
                if not claimed:
                    # A prefix with a hole is useless behind the hole.
                    self.reports.count("reserve_full", len(keys) - at)
                    slots += [-1] * (len(keys) - at)
                    break
                self._filling[key] = claimed[0]
                slots += claimed
            if seen:
                self.sinks.seen(seen)
            return slots

    def reserve_private(self) -> int:
        """One slot under no key yet, for a tail; -1 when there is no room."""
        with self.lock:
            return next(iter(self.arena.claim(1)), -1)

    def commit(self, chunks: Sequence[tuple[Key, Held]], *, replace: bool = False, spread: bool = True) -> None:
        """Reserved slots are filled: make them ready, offer them, and save them in the background.

        With `spread=False` they stay in this process, for peers to pull.  `replace` is for tails.
        """
        with self.lock:
            fresh = []
            for key, held in chunks:
                self._filling.pop(key, None)
                if self.arena.publish(key, held, keep=self.keeps, replace=replace):
                    self.offers.published(key, held.slot)
                    fresh.append((key, held))
            self.offers.answer()
            if spread:
                self.sinks.save(fresh, replace=replace)
            self.arena.release([held.slot for _, held in chunks])

    def cancel(self, slots: Iterable[int], keys: Iterable[Key] = ()) -> None:
        """Reserved slots will not be filled."""
        with self.lock:
            for key in keys:
                self._filling.pop(key, None)
            self.arena.release(slots)
            self.offers.answer()

    def is_filling(self, key: Key) -> bool:
        """Whether a slot is reserved for this key and neither committed nor cancelled."""
        return key in self._filling

    def run_with_filling(self, keys: Sequence[Key]) -> int:
        """How many of the first keys are ready or being filled."""
        with self.lock:
            for count, key in enumerate(keys):
                if key not in self.arena and key not in self._filling:
                    return count
            return len(keys)

    # -- peers -----------------------------------------------------------------------------------------------------

    @property
    def offer_step(self) -> Transport | None:
        """The transport through which this role offers chunks, if its store list has one."""
        for step in self.route.store:
            if isinstance(step.member, Transport):
                return step.member
        return None

    def promise(self, keys: Sequence[Key], name: str = "") -> Peer | None:
        """Promise chunks to the peer that will be told of the result; None when this role offers nothing.

        With the `name` of a stream that `offers` knows, that ends and becomes the promise.
        """
        transport = self.offer_step
        if transport is None or not transport.address():
            return None
        with self.lock:
            name = self.offers.promise(keys, self.limits.lease, name)
        return Peer(transport.address(), self.incarnation, name)

    def warm_peer(self, peer: Peer) -> None:
        """Begin pairing with a peer that will be asked soon."""
        for step in self.route.retrieve:
            if isinstance(step.member, Transport):
                self.jobs.guarded("connect_errors", step.name, step.member.connect, peer)

    # -- news ------------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """There is news for the pump; from any thread."""
        self.pump.wake()

    def _turn(self) -> float:
        if self.sinks.demotes:
            with self.lock:
                self.sinks.demote()
        return min(self.jobs.turn(), self.offers.expire())

    def _member_changed(self, member: str, state: str, reason: str) -> None:
        self.reports.count("member_changes", member=member, reason=state)
        self.reports.event(
            f"member.{state}", level="info" if state == "up" else "warning", member=member, reason=reason
        )
        self.pump.call(lambda: self._tell("kvhub_member_changed", name=member, state=state, reason=reason))

    def _tell(self, hook: str, **fields: Any) -> None:
        for problem in self.registry.tell(hook, hub=self, **fields):
            self.reports.event("plugin.failed", level="warning", problem=problem)

    # -- life ------------------------------------------------------------------------------------------------------

    def flush(self, seconds: float) -> bool:
        """Wait until background stores have ended, at most `seconds`; for shutdown and tests."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with self.lock:
                # Asked in this order: a tail that waits for another is sent before the other's end is forgotten.
                if not self._filling and not self.sinks.waiting() and self.jobs.waiting((Op.SAVE,)) == 0:
                    return True
            time.sleep(0.005)
        return False

    def counts(self) -> dict[str, int]:
        """Everything that must be back at its baseline when no request is alive."""
        with self.lock:
            usage = self.arena.usage()
            return {
                "searches": len(self._searches), "fetches": len(self._fetches), "filling": len(self._filling),
                "leased": usage["leased"], "orders": self.jobs.pending(), **self.offers.counts(),
            }  # fmt: skip

    def close(self, *, grace: float = 5.0) -> None:
        """Finish background stores within `grace` seconds, close every member, free the arena; idempotent."""
        if self._closing:
            return
        if self.pump.is_alive():
            self._tell("kvhub_hub_closing")
            with self.lock:
                self.sinks.demote(everything=True)
            self.flush(grace)
        self._closing = True
        self.pump.end(5.0)
        for name, member in self.members.items():
            if not isinstance(member, HostStore):
                try:
                    member.close()
                except BaseException as error:  # the others are closed and the arena is freed whatever one raises
                    self.reports.count("close_errors", member=name, reason=type(error).__name__)
        for request in list(self._searches):
            self.release(request)
        if self.arena is not None:
            self.offers.close()
            for member in self.members.values():
                if isinstance(member, HostStore):
                    member.close()
            self.arena.close()
        self.reports.close()
