"""Members that misbehave: wrap any member and see what a hub makes of it.

Each wrapper passes for the member that it wraps (isinstance included), so neither a hub nor a router can tell it
from a real one.  `ops` says for which operations it misbehaves; `broken = False` makes it behave, at any time.
What a wrapper does to a batch it decides when the batch is submitted.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import attrs

from kvhub.member import Member
from kvhub.types import Batch, Capabilities, Completion, Op, Outcome, Region

EVERY_OP = frozenset(Op)


class Faulty(Member):
    """A member that passes everything on to `inner`: what the wrappers have in common, and a spy on its own."""

    def __init__(self, inner: Member, *, ops: Iterable[Op] = EVERY_OP) -> None:
        super().__init__(inner.config, inner.context)
        self.inner = inner
        self.ops = frozenset(ops)
        self.broken = True
        self.batches: list[Batch] = []
        """Every batch that was submitted, in order."""
        self.cancelled: list[int] = []
        self.closed = 0
        """How often `close` was called."""
        self._wake: Callable[[], None] = lambda: None
        self._hit: dict[int, Batch] = {}
        self._region: Region | None = None

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """isinstance asks this: a wrapped store is a store and a wrapped transport a transport."""
        return self.inner.__class__

    def __getattr__(self, name: str) -> Any:
        """What members do not have in common: scan and used_bytes, or address, serve, connect, forget and fulfil."""
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)

    @property
    def capabilities(self) -> Capabilities:
        return self.inner.capabilities

    def attach(self, region: Region, wake: Callable[[], None]) -> None:
        self._region, self._wake = region, wake
        self.inner.attach(region, wake)

    def submit(self, batch: Batch) -> None:
        self.batches.append(batch)
        if self.broken and batch.op in self.ops:
            self._hit[batch.id] = batch
            try:
                self._submit(batch)
            except BaseException:
                # What raised was not taken, and its number may be used again.
                self._hit.pop(batch.id, None)
                raise
        else:
            self.inner.submit(batch)

    def poll(self) -> list[Completion]:
        ends: list[Completion] = []
        for done in self.inner.poll():
            batch = self._hit.pop(done.id, None)
            ends += [done] if batch is None else self._end(batch, done)
        return ends

    def _submit(self, batch: Batch) -> None:
        """What becomes of a batch that is hit."""
        self.inner.submit(batch)

    def _end(self, batch: Batch, done: Completion) -> list[Completion]:
        """What becomes of the inner member's completion of a batch that is hit."""
        return [done]

    def cancel(self, batch_id: int) -> None:
        self.cancelled.append(batch_id)
        self.inner.cancel(batch_id)

    def healthy(self) -> str:
        return self.inner.healthy()

    def close(self) -> None:
        self.closed += 1
        self.inner.close()


class Slow(Faulty):
    """Does its work at once and says so `seconds` later, whatever the deadline: a medium far away."""

    def __init__(self, inner: Member, seconds: float, *, ops: Iterable[Op] = EVERY_OP) -> None:
        super().__init__(inner, ops=ops)
        self.seconds = seconds
        self._due: deque[Completion] = deque()
        self._timers: set[threading.Timer] = set()

    def _end(self, batch: Batch, done: Completion) -> list[Completion]:
        def arrive() -> None:
            self._due.append(done)
            self._timers.discard(timer)
            self._wake()

        timer = threading.Timer(self.seconds, arrive)
        timer.daemon = True
        self._timers.add(timer)
        timer.start()
        return []

    def poll(self) -> list[Completion]:
        ends = super().poll()
        while self._due:
            ends.append(self._due.popleft())
        return ends

    def close(self) -> None:
        for timer in list(self._timers):
            timer.cancel()
            timer.join()
        super().close()


class Torn(Faulty):
    """Says DONE of a LOAD that is not: `how` is "flip" (a byte in the slot is wrong) or "short" (the end is missing).

    A hub cannot see the first one: it is for tests that must fail when wrong KV is used.
    """

    def __init__(self, inner: Member, how: str = "flip", *, ops: Iterable[Op] = (Op.LOAD,)) -> None:
        super().__init__(inner, ops=ops)
        if how not in ("flip", "short"):
            raise ValueError(f"Torn: how is 'flip' or 'short', found {how!r}")
        self.how = how

    def _end(self, batch: Batch, done: Completion) -> list[Completion]:
        if batch.op is not Op.LOAD or self._region is None:
            return [done]
        lengths = list(done.lengths)
        for at, outcome in enumerate(done.outcomes):
            if outcome is not Outcome.DONE or not lengths[at]:
                continue
            if self.how == "short":
                lengths[at] //= 2
                self._region.slot(batch.slots[at])[lengths[at] : done.lengths[at]] = bytes(
                    done.lengths[at] - lengths[at]
                )
            else:
                self._region.slot(batch.slots[at])[lengths[at] // 2] ^= 0x40
        return [attrs.evolve(done, lengths=tuple(lengths))]


class Dropping(Faulty):
    """Works, and loses every `every`-th completion: its slots never come back."""

    def __init__(self, inner: Member, *, every: int = 1, ops: Iterable[Op] = EVERY_OP) -> None:
        super().__init__(inner, ops=ops)
        self.every = every
        self.dropped: list[Completion] = []
        self._seen = 0

    def _end(self, batch: Batch, done: Completion) -> list[Completion]:
        self._seen += 1
        if self._seen % self.every:
            return [done]
        self.dropped.append(done)
        return []


class Full(Faulty):
    """Has no room: every chunk of a batch that is hit ends FULL, and the inner member never hears of it."""

    def __init__(self, inner: Member, *, ops: Iterable[Op] = (Op.SAVE,)) -> None:
        super().__init__(inner, ops=ops)
        self._ends: deque[Completion] = deque()

    def _submit(self, batch: Batch) -> None:
        del self._hit[batch.id]
        lengths = (0,) * len(batch.keys) if batch.op is Op.LOAD else ()
        self._ends.append(Completion(batch.id, (Outcome.FULL,) * len(batch.keys), lengths, reason="ENOSPC"))
        self._wake()

    def poll(self) -> list[Completion]:
        ends = super().poll()
        while self._ends:
            ends.append(self._ends.popleft())
        return ends


class Raising(Faulty):
    """Raises `error` from the methods named in `at`: "submit" (for `ops`), "poll", "cancel", "attach", "close".

    What `submit` raised for was not taken; what `poll` kept back comes once `broken` is False.
    """

    def __init__(
        self, inner: Member, error: BaseException, *, at: Iterable[str] = ("submit",), ops: Iterable[Op] = EVERY_OP
    ) -> None:
        super().__init__(inner, ops=ops)
        self.error = error
        self.at = frozenset(at)
        self.raised = 0

    def _raise(self, where: str) -> None:
        if self.broken and where in self.at:
            self.raised += 1
            raise self.error

    def attach(self, region: Region, wake: Callable[[], None]) -> None:
        self._raise("attach")
        super().attach(region, wake)

    def _submit(self, batch: Batch) -> None:
        del self._hit[batch.id]
        self._raise("submit")
        self.inner.submit(batch)

    def poll(self) -> list[Completion]:
        self._raise("poll")
        return super().poll()

    def cancel(self, batch_id: int) -> None:
        self._raise("cancel")
        super().cancel(batch_id)

    def close(self) -> None:
        self.closed += 1
        self.inner.close()
        self._raise("close")


class Hanging(Faulty):
    """Takes batches and does nothing, deaf to deadlines and to `cancel`, until `release`; then does them, late."""

    def __init__(self, inner: Member, *, ops: Iterable[Op] = EVERY_OP) -> None:
        super().__init__(inner, ops=ops)
        self.held: list[Batch] = []

    def _submit(self, batch: Batch) -> None:
        del self._hit[batch.id]
        self.held.append(batch)

    def cancel(self, batch_id: int) -> None:
        self.cancelled.append(batch_id)
        if all(batch.id != batch_id for batch in self.held):
            self.inner.cancel(batch_id)

    def release(self) -> None:
        """Behave from now on, and do what was held without its deadline: the late write that nobody expects."""
        self.broken = False
        held, self.held = self.held, []
        for batch in held:
            self.inner.submit(attrs.evolve(batch, deadline=float("inf")))

    def close(self) -> None:
        self.held.clear()
        super().close()
