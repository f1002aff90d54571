"""`Driver`: what a hub does with one member, for tests; it holds each completion to its batch."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Mapping, Sequence

from kvhub.member import Member
from kvhub.testing.region import SLOT_BYTES, Payload, make_region
from kvhub.types import Batch, Completion, Key, Op, Outcome, Peer

EVER = float("inf")
_MAY = {
    Op.FIND: {Outcome.DONE, Outcome.MISS, Outcome.FAILED, Outcome.LATE, Outcome.FULL},
    Op.LOAD: set(Outcome) - {Outcome.KEPT},
    Op.SAVE: {Outcome.DONE, Outcome.KEPT, Outcome.FAILED, Outcome.LATE, Outcome.FULL},
    Op.REMOVE: {Outcome.DONE, Outcome.FAILED, Outcome.LATE, Outcome.FULL},
}
REASON_MAX = 48
"""A reason is a metric label: a word or two."""


class Driver:
    """A member with a region of its own, and its batches under way.

    The lower half of the slots is where `save` puts payloads, the upper half where `read` loads to.  Not
    thread-safe, as a hub's pump is not.  Every wait ends after `patience` seconds with an AssertionError.
    """

    def __init__(
        self, member: Member, *, slots: int = 64, slot_bytes: int = SLOT_BYTES, patience: float = 10.0
    ) -> None:
        self.member = member
        self.region = make_region(slots, slot_bytes)
        self.patience = patience
        self.woken = threading.Event()
        self._numbers = itertools.count(1)
        self.under_way: dict[int, Batch] = {}
        self.ended: dict[int, Completion] = {}

    @property
    def half(self) -> int:
        """The first slot of the upper half."""
        return self.region.slots // 2

    def attach(self) -> None:
        """Attach the member to the region."""
        self.member.attach(self.region, self.woken.set)

    def close(self) -> float:
        """Close the member; returns how many seconds that took."""
        before = time.monotonic()
        self.member.close()
        return time.monotonic() - before

    def fill(self, slot: int, data: bytes) -> None:
        """Put bytes into a slot behind the member's back."""
        self.region.slot(slot, len(data))[:] = data

    def bytes_of(self, slot: int, length: int | None = None) -> bytes:
        """The first `length` bytes of a slot, or all of it."""
        return Payload(self.region.slot(slot, length))

    # -- raw batches

    def submit(
        self,
        op: Op,
        keys: Sequence[Key],
        slots: Sequence[int] = (),
        lengths: Sequence[int] | None = None,
        *,
        deadline: float = EVER,
        layouts: Sequence[str] | None = None,
        generated: Sequence[int] | None = None,
        peer: Peer | None = None,
        replace: bool = False,
        tenants: Sequence[bytes] | None = None,
    ) -> int:
        """Submit a batch and return its id; `lengths` default to whole slots."""
        if lengths is None:
            lengths = [self.region.slot_bytes] * len(slots)
        batch = Batch(
            next(self._numbers),
            op,
            tuple(keys),
            tuple(slots),
            tuple(lengths),
            deadline,
            None if layouts is None else tuple(layouts),
            None if generated is None else tuple(generated),
            peer,
            replace,
            None if tenants is None else tuple(tenants),
        )
        self.under_way[batch.id] = batch
        try:
            self.member.submit(batch)
        except BaseException:
            del self.under_way[batch.id]
            raise
        return batch.id

    def poll(self) -> int:
        """Take what the member has; returns how many batches ended."""
        completions = self.member.poll()
        assert isinstance(completions, list), f"poll returns a list, found {type(completions).__name__}"
        for completion in completions:
            self._check(completion)
        return len(completions)

    def wait(self, batch_id: int, seconds: float | None = None) -> Completion:
        """The completion of a batch, within `seconds` (default: the driver's patience)."""
        limit = self.patience if seconds is None else seconds
        give_up = time.monotonic() + limit
        while batch_id not in self.ended:
            self.woken.clear()
            if not self.poll():
                left = give_up - time.monotonic()
                assert left > 0, f"{self._name(batch_id)}: no completion within {limit:g} s"
                # Not every wake is trusted to come: the law about `wake` is a law of its own.
                self.woken.wait(min(left, 0.02))
        return self.ended.pop(batch_id)

    def wait_all(self, seconds: float | None = None) -> list[Completion]:
        """Completions of everything under way, in the order of submission."""
        return [self.wait(batch_id, seconds) for batch_id in [*self.under_way, *self.ended]]

    def run(
        self,
        op: Op,
        keys: Sequence[Key],
        slots: Sequence[int] = (),
        lengths: Sequence[int] | None = None,
        *,
        layouts: Sequence[str] | None = None,
        generated: Sequence[int] | None = None,
        peer: Peer | None = None,
    ) -> Completion:
        """Submit and wait."""
        return self.wait(self.submit(op, keys, slots, lengths, layouts=layouts, generated=generated, peer=peer))

    def settle(self, seconds: float = 0.05) -> None:
        """Look for completions that nobody asked for."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.poll()
            time.sleep(0.005)

    # -- whole chunks

    def start_save(
        self,
        payloads: Mapping[Key, bytes],
        *,
        first: int = 0,
        deadline: float = EVER,
        replace: bool = False,
        tenant: bytes = b"",
    ) -> int:
        """Put payloads into slots from `first` on and submit their SAVE."""
        slots = range(first, first + len(payloads))
        for slot, data in zip(slots, payloads.values(), strict=True):
            self.fill(slot, data)
        lengths, tenants = [len(data) for data in payloads.values()], [tenant] * len(payloads) if tenant else None
        return self.submit(Op.SAVE, [*payloads], slots, lengths, deadline=deadline, replace=replace, tenants=tenants)

    def save(
        self, payloads: Mapping[Key, bytes], *, first: int = 0, replace: bool = False, tenant: bytes = b""
    ) -> Completion:
        """`start_save`, and its completion."""
        return self.wait(self.start_save(payloads, first=first, replace=replace, tenant=tenant))

    def keep(self, payloads: Mapping[Key, bytes]) -> None:
        """Save and insist: every chunk is there now."""
        completion = self.save(payloads)
        assert all(o.good for o in completion.outcomes), f"SAVE ended {names(completion)} ({completion.reason})"

    def load(self, keys: Sequence[Key], *, first: int | None = None, peer: Peer | None = None) -> Completion:
        """Load the keys into slots from `first` on, by default those of the upper half."""
        start = self.half if first is None else first
        return self.run(Op.LOAD, keys, range(start, start + len(keys)), peer=peer)

    def read(self, keys: Sequence[Key], *, peer: Peer | None = None) -> list[bytes | None]:
        """Load and return the bytes of each chunk that is DONE, None for the others."""
        done = self.load(keys, peer=peer)
        return [
            self.bytes_of(self.half + i, done.lengths[i]) if outcome is Outcome.DONE else None
            for i, outcome in enumerate(done.outcomes)
        ]

    def find(self, keys: Sequence[Key]) -> tuple[Outcome, ...]:
        """Look the keys up; an outcome for each."""
        return self.run(Op.FIND, keys).outcomes

    def remove(self, keys: Sequence[Key]) -> tuple[Outcome, ...]:
        """Remove the keys; an outcome for each."""
        return self.run(Op.REMOVE, keys).outcomes

    # -- what every completion must satisfy

    def _name(self, batch_id: int) -> str:
        batch = self.under_way.get(batch_id)
        return f"batch {batch_id}" + (f" ({batch.op.name} of {len(batch.keys)} chunks)" if batch else "")

    def _check(self, done: Completion) -> None:
        name = self._name(done.id)
        batch = self.under_way.pop(done.id, None)
        assert batch is not None, f"{name}: completed twice, or never submitted"
        count = len(batch.keys)
        assert len(done.outcomes) == count, f"{name}: {len(done.outcomes)} outcomes"
        strange = {o for o in done.outcomes if o not in _MAY[batch.op]}
        if batch.op is Op.SAVE and done.reason:
            strange.discard(Outcome.MISS)  # not kept here, by a rule that the reason names
        assert not strange, f"{name}: {strange} is no end of a {batch.op.name}"
        for field in ("layouts", "generated"):
            value = getattr(done, field)
            assert value is None or len(value) == count, f"{name}: {len(value)} {field}"
        if batch.op is Op.LOAD and (done.lengths or Outcome.DONE in done.outcomes):
            assert len(done.lengths) == count, f"{name}: {len(done.lengths)} lengths"
            for outcome, length, room in zip(done.outcomes, done.lengths, batch.lengths, strict=True):
                assert 0 <= length <= room, f"{name}: a length of {length} in a slot with room for {room}"
                assert outcome is Outcome.DONE or length == 0, f"{name}: length {length} for {outcome.name}"
        assert done.moved >= 0, f"{name}: moved {done.moved} bytes"
        assert len(done.reason) <= REASON_MAX, f"{name}: the reason {done.reason!r} is too long for a metric label"
        leaked = any(key.hex()[:16] in done.reason.lower() for key in batch.keys)
        assert not leaked, f"{name}: the reason {done.reason!r} names a key"
        self.ended[done.id] = done


def names(completion: Completion) -> str:
    """The outcomes in words, for messages."""
    return ", ".join(outcome.name for outcome in completion.outcomes)
