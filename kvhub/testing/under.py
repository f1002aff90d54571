"""Laws under faults: every law once more with a wrapper of `faults` between it and the member.

Each batch meets the fault at its first try and is tried again past it, as a hub's next request would; what comes then
must be as the law says, as if nothing had happened.  Under engines the pool and the wire are wrapped, so that a hub
meets answers that come late, in another order, and for work that was done twice; what it makes of a member that stays
broken is what engine laws of their own are about.  A law that has no meaning under a fault says so itself
(`without_meaning`), with the reason.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import attrs

from kvhub.builtin.host import HostStore
from kvhub.hub import Hub
from kvhub.member import Member
from kvhub.testing.faults import Dropping, Faulty, Full, Hanging, Raising, Slow, Torn
from kvhub.types import Batch, Capabilities, Completion, Op, Outcome, Region

HELD_POLLS = 3
"""After so many looks at it, what hangs is tried again."""
Law = TypeVar("Law", bound=Callable[..., Any])


class Planted(OSError):
    """What `raising` raises: told apart from what the member itself raises."""


@attrs.frozen
class Fault:
    """A wrapper, as laws run under it."""

    does: str
    """To a batch, in words."""
    wrap: Callable[[Member], Faulty]


FAULTS: Mapping[str, Fault] = {
    "slow": Fault("the answer comes 10 ms late", lambda member: Slow(member, 0.01)),
    "flipped": Fault("a byte of what was loaded is wrong", lambda member: Torn(member, "flip")),
    "short": Fault("half of what was loaded is missing", lambda member: Torn(member, "short")),
    "dropping": Fault("it is carried out and never answered", Dropping),
    "full": Fault("there is no room for what is saved", Full),
    "raising": Fault(
        "`submit` and `poll` raise", lambda member: Raising(member, Planted(5, "EIO"), at=("submit", "poll"))
    ),
    "hanging": Fault("it is held back, deaf to deadlines and to `cancel`", Hanging),
}


NO_MEANING = "no meaning under"
"""How a case begins to say why it was left out."""
UNSEEN = "what is refused or held back never reaches the member, which is who has to raise"
KEPT_TWICE = "it tells a first save from a second, and what was carried out without an answer is saved a second time"
MENDED = "a damaged chunk is told once and removed; the second try finds nothing"
NOT_THERE = "what is held back never reaches the peer, where the law looks for it"
GIVEN_UP = "what was given up is not tried again"
SPOILT = "the source spoils what it gets back, and the second try is to be served from that"
NO_WAKE = "nothing wakes a hub for what hangs"


def without_meaning(**reasons: str) -> Callable[[Law], Law]:
    """Marks a law that has no meaning under these faults, each with the reason."""
    assert not reasons.keys() - FAULTS.keys(), f"no such fault: {sorted(reasons.keys() - FAULTS.keys())}"

    def mark(law: Law) -> Law:
        law.kvhub_without_meaning = reasons  # type: ignore[attr-defined]
        return law

    return mark


def reasons(law: Callable[..., Any]) -> Mapping[str, str]:
    """Fault -> why the law has no meaning under it."""
    found: Mapping[str, str] = getattr(law, "kvhub_without_meaning", {})
    return found


def chosen(law: Callable[..., Any], how_many: str) -> list[str]:
    """Faults to run a law under: of `one` the same at every run, and another for another law."""
    if how_many == "all":
        return [*FAULTS]
    meant = [name for name in FAULTS if name not in reasons(law)]
    if how_many != "one" or not meant:
        return []
    return [meant[zlib.crc32(law.__name__.encode()) % len(meant)]]


class Retried(Faulty):
    """Tries again what met the fault of the wrapper below, past that wrapper."""

    def __init__(self, inner: Faulty) -> None:
        super().__init__(inner)
        self.fault = inner
        self._numbers = itertools.count(1 << 40)
        self._first: dict[int, Batch] = {}
        self._second: dict[int, int] = {}
        """Number of the second try -> that of the batch."""
        self._idle = 0

    def submit(self, batch: Batch) -> None:
        try:
            self.fault.submit(batch)
        except Planted as error:
            error.with_traceback(None)  # the wrapper raises one and the same again; its frames would stay alive
            self._again(batch)
        else:
            self._first[batch.id] = batch
            self._look_again()

    def _again(self, batch: Batch) -> None:
        number = next(self._numbers)
        self.fault.inner.submit(attrs.evolve(batch, id=number))
        self._second[number] = batch.id

    def poll(self) -> list[Completion]:
        ends = []
        for done in self._polled():
            number = self._second.pop(done.id, None)
            batch = self._first.pop(done.id, None)
            if number is not None:
                ends.append(attrs.evolve(done, id=number))
            elif batch is not None and self._spoilt(batch, done):
                self._again(batch)
            else:
                ends.append(done)
        for number in self._lost():
            self._again(self._first.pop(number))
        self._look_again()
        return ends

    def _look_again(self) -> None:
        """Nothing else wakes a hub for what hangs before its deadline."""
        if isinstance(self.fault, Hanging) and self.fault.held:
            self._wake()

    def _polled(self) -> list[Completion]:
        try:
            return self.fault.poll()
        except Planted as error:
            error.with_traceback(None)
            self.fault.broken = False
            try:
                return self.fault.poll()
            finally:
                self.fault.broken = True

    def _spoilt(self, batch: Batch, done: Completion) -> bool:
        if isinstance(self.fault, Full):
            return batch.op is Op.SAVE
        return isinstance(self.fault, Torn) and batch.op is Op.LOAD and Outcome.DONE in done.outcomes

    def _lost(self) -> list[int]:
        """Batches whose first try will not end."""
        if isinstance(self.fault, Dropping):
            lost, self.fault.dropped = self.fault.dropped, []
            return [done.id for done in lost]
        if isinstance(self.fault, Hanging) and self._polls_of_held():
            held, self.fault.held = self.fault.held, []
            return [batch.id for batch in held]
        return []

    def _polls_of_held(self) -> bool:
        """Whether what is held has been held for a while, in polls: without a clock, and never for ever."""
        self._idle = self._idle + 1 if isinstance(self.fault, Hanging) and self.fault.held else 0
        return self._idle > HELD_POLLS

    def cancel(self, batch_id: int) -> None:
        self.fault.cancel(batch_id)
        for number, first in self._second.items():
            if first == batch_id:
                self.fault.inner.cancel(number)


class _Bound(Member):
    """A live member by the methods that it had, so that others can be put in their place."""

    def __init__(self, member: Member) -> None:
        super().__init__(member.config, member.context)
        self.of = member
        self._submit, self._poll, self._cancel, self._close = member.submit, member.poll, member.cancel, member.close

    @property
    def capabilities(self) -> Capabilities:
        return self.of.capabilities

    def attach(self, region: Region, wake: Callable[[], None]) -> None:
        """It is attached."""

    def submit(self, batch: Batch) -> None:
        self._submit(batch)

    def poll(self) -> list[Completion]:
        return self._poll()

    def cancel(self, batch_id: int) -> None:
        self._cancel(batch_id)

    def close(self) -> None:
        self._close()


def trouble(hub: Hub, fault: str) -> None:
    """Put a fault between a running hub and each of its members but the host tier."""
    for member in hub.members.values():
        if not isinstance(member, HostStore):
            wrapper = Retried(FAULTS[fault].wrap(_Bound(member)))
            wrapper.attach(hub.arena.region, hub.wake)
            # Instance attributes, since the hub calls the member through its instance.
            vars(member).update(submit=wrapper.submit, poll=wrapper.poll, cancel=wrapper.cancel, close=wrapper.close)
