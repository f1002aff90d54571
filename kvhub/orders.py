"""Orders: what the hub asks of its members, with slots claimed before and given back after, under the hub's lock."""

from __future__ import annotations

import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from kvhub.jobs import Done, Settled
from kvhub.types import Completion, Held, Key, Op, Outcome, Peer

if TYPE_CHECKING:
    from kvhub.hub import Hub

DOUBT_SECONDS = 5.0
"""How long a key that failed to load from a member is answered as a miss there."""
MOST_DOUBTS = 65536
PROBE_SECONDS = 2.0
MOST_PROBES = 4
"""Probes of one member that may be under way; each keeps its slot until the member lets go of it, perhaps for ever."""


class Orders:
    """Between the hub and its jobs."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._doubts: OrderedDict[tuple[str, Key], float] = OrderedDict()
        self._probes: Counter[tuple[str, Op]] = Counter()

    def send(
        self, member: str, op: Op, keys: Sequence[Key], *, done: Done, settled: Settled | None = None, **more: Any
    ) -> int:
        """`Jobs.send` whose ends come back under the hub's lock."""

        def locked(completion: Completion) -> None:
            with self._hub.lock:
                done(completion)

        def locked_settled() -> None:
            with self._hub.lock:
                if settled is not None:
                    settled()

        number = self._hub.jobs.send(member, op, keys, done=locked, settled=locked_settled, **more)
        # The pump may sleep until a later deadline than this one, and a refusal has ended already.
        self._hub.wake()
        return number

    def load(
        self,
        member: str,
        keys: Sequence[Key],
        seconds: float,
        done: Callable[[list[Held | None]], None],
        *,
        peer: Peer | None = None,
    ) -> None:
        """Load chunks into newly claimed slots; `done` gets what arrived whole, with one lease each.

        Slots that did not arrive are freed as soon as the member has let go of them, not before.
        """
        slots = self.claim(len(keys))
        missing: list[Held | None] = [None] * (len(keys) - len(slots))
        if not slots:
            done(missing)
            return
        self.fill(member, keys[: len(slots)], slots, seconds, lambda helds, _: done(helds + missing), peer=peer)

    def claim(self, count: int) -> list[int]:
        """Slots to load into, fewer where there is no room."""
        slots = self._hub.arena.claim(count)
        if len(slots) < count:
            self._hub.reports.count("arena_full", count - len(slots))
        return slots

    def fill(
        self,
        member: str,
        keys: Sequence[Key],
        slots: Sequence[int],
        seconds: float,
        done: Callable[[list[Held | None], Completion], None],
        *,
        peer: Peer | None = None,
    ) -> int:
        """Load chunks into slots of ours, which are given away by this; the order's number.

        `done` gets what arrived whole, with one lease each, and the completion.  Slots that did not arrive are freed
        as soon as the member has let go of them, not before; all of them if the order is cancelled.
        """
        hub, free = self._hub, set(slots)

        def ended(completion: Completion) -> None:
            helds: list[Held | None] = []
            for at, slot in enumerate(slots):
                outcome = completion.outcomes[at]
                good = outcome == Outcome.DONE
                layout = completion.layouts[at] if completion.layouts else ""
                if good and hub.measure.layout(layout) is None:
                    hub.reports.count("faults", member=member, reason="layout")
                    good = False
                if not good:
                    self.doubt(member, keys[at])
                made = completion.generated[at] if completion.generated else 0
                helds.append(Held(slot, completion.lengths[at], layout, made) if good else None)
                if good:
                    free.discard(slot)
            done(helds, completion)

        return self.send(
            member,
            Op.LOAD,
            keys,
            slots=slots,
            lengths=[hub.arena.region.slot_bytes] * len(slots),
            seconds=seconds,
            done=ended,
            settled=lambda: hub.arena.release(free),
            peer=peer,
        )

    def probe(self, member: str, op: Op) -> None:
        """Try a member that was kept out, on its real data path: write a chunk of our own, or read for one."""
        hub = self._hub
        key = secrets.token_bytes(32)
        slots = hub.arena.claim(1) if self._probes[member, op] < MOST_PROBES else []
        if not slots:
            hub.jobs.breaker(member, op).bad("no-slot")
            return
        self._probes[member, op] += 1

        def over() -> None:
            self._probes[member, op] -= 1
            hub.arena.release(slots)
            if op == Op.SAVE and hub.members[member].capabilities.removes:
                hub.jobs.send(member, Op.REMOVE, [key], seconds=5.0, done=lambda _: None, probe=True)

        self.send(
            member,
            op,
            [key],
            slots=slots,
            lengths=[hub.measure.chunk_bytes],
            seconds=PROBE_SECONDS,
            done=lambda _: None,
            settled=over,
            probe=True,
        )

    def doubted(self, member: str, key: Key) -> bool:
        """Whether a load of this key from this member failed a moment ago."""
        until = self._doubts.get((member, key))
        return until is not None and until > time.monotonic()

    def doubt(self, member: str, key: Key) -> None:
        """Answer this key as a miss at this member for a while, so that a broken promise is not repeated."""
        self._doubts[member, key] = time.monotonic() + DOUBT_SECONDS
        self._doubts.move_to_end((member, key))
        while len(self._doubts) > MOST_DOUBTS:
            self._doubts.popitem(last=False)

    def trust(self, member: str, key: Key) -> None:
        """A member has the key for sure: it was just saved there."""
        self._doubts.pop((member, key), None)
