"""Jobs: orders to members with a deadline, a breaker and a bound on queued bytes; every order ends exactly once.

Two ends have to be told apart.  `done` comes when nobody waits any longer: with the member's completion, or at the
deadline with LATE.  `settled` comes when the member has really let go of the slots, which after a deadline may be much
later; only then may the slots be used again.  A hung member costs its deadline, then its breaker keeps it out.
"""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from kvhub.breaker import Breaker
from kvhub.member import Member
from kvhub.observe import Reports
from kvhub.rates import Rate, Rates
from kvhub.types import Batch, Completion, Op, Outcome

Done = Callable[[Completion], None]
Settled = Callable[[], None]
_LABEL = re.compile(r"[\w.: -]{1,40}")
"""A reason that may be a metric label: a word or two, and too short for a key."""


@attrs.define
class _Job:
    batch: Batch
    member: str
    queued: int
    done: Done
    settled: Settled
    started: float = attrs.field(factory=time.monotonic)
    waiting: bool = True


@attrs.define
class _Queue:
    """What waits for one member to be stored."""

    bytes: int = 0
    rate: Rate = attrs.field(factory=Rate)
    """Bytes per second of its work: waiting for other orders is none."""
    ended: float = 0.0

    def left(self, job: _Job, stored: bool) -> None:
        """An order has ended."""
        self.bytes -= job.queued
        if job.queued and stored:
            now = time.monotonic()
            self.rate.add(job.queued, now - max(self.ended, job.started))
            self.ended = now


class Jobs:
    """Sends batches to members and brings their ends back.

    `send` may be called from any thread.  `turn` runs on the hub's pump; it calls `done` and `settled`.  Both are
    called without the lock of this object.
    """

    def __init__(
        self,
        members: Mapping[str, Member],
        reports: Reports,
        *,
        queue_bytes: int,
        queue_seconds: float = float("inf"),
        rates: Rates | None = None,
        changed: Callable[[str, str, str], None],
        probe: Callable[[str, Op], None],
    ) -> None:
        self._members = members
        self._reports = reports
        self._queue_bytes, self._queue_seconds = queue_bytes, queue_seconds
        self._rates = rates or Rates()
        self._probe = probe
        self._lock = threading.Lock()
        self._submitting = {name: threading.Lock() for name in members}
        self._jobs: dict[int, _Job] = {}
        self._ids = itertools.count(1)
        self._queues = {name: _Queue() for name in members}
        self._ended: list[tuple[_Job, Completion]] = []
        self._breakers: dict[tuple[str, bool, str], Breaker] = {}
        self._changed = changed

    def breaker(self, member: str, op: Op, peer: str = "") -> Breaker:
        """Reads and writes fail apart (a full disk still serves), and so do the peers of a transport."""
        key = (member, op in (Op.SAVE, Op.REMOVE), peer)
        found = self._breakers.get(key)
        if found is None:
            what = ("write" if key[1] else "read") + (f" {peer}" if peer else "")
            found = self._breakers[key] = Breaker(lambda state, why: self._changed(member, state, f"{what}: {why}"))
        return found

    def send(
        self,
        member: str,
        op: Op,
        keys: Sequence[bytes],
        *,
        slots: Sequence[int] = (),
        lengths: Sequence[int] = (),
        seconds: float,
        done: Done,
        settled: Settled = lambda: None,
        probe: bool = False,
        **more: Any,
    ) -> int:
        """Order something; returns the batch's number at once.

        A member that is kept out, or whose queue is full, ends the job without being asked.  `more` goes to Batch.
        """
        size = sum(lengths) if op == Op.SAVE else 0
        batch = Batch(
            next(self._ids), op, tuple(keys), tuple(slots), tuple(lengths), time.monotonic() + seconds, **more
        )
        peer = batch.peer.address if batch.peer else ""
        job = _Job(batch, member, size, done, settled)
        with self._lock:
            if not probe and not self.breaker(member, op, peer).closed:
                self._refuse(job, Outcome.FAILED, "kept-out")
                return batch.id
            if size and (full := self._full(member, size)):
                self._refuse(job, Outcome.FULL, full)
                return batch.id
            self._queues[member].bytes += size
            self._jobs[batch.id] = job
        try:
            with self._submitting[member]:
                self._members[member].submit(batch)
        except BaseException as error:
            # A member's CancelledError or SystemExit is no Exception, and an engine would die of it all the same.
            with self._lock:
                self._end(batch.id, self._failed(batch, Outcome.FAILED, type(error).__name__))
            if isinstance(error, KeyboardInterrupt):
                raise
        return batch.id

    def _full(self, member: str, size: int) -> str:
        """Why so many bytes more may not wait for a member; an empty queue takes whatever comes."""
        queue = self._queues[member]
        if not queue.bytes:
            return ""
        if queue.bytes + size > self._queue_bytes:
            return "queue"
        rate = queue.rate.value
        return "queue-seconds" if rate and (queue.bytes + size) / rate > self._queue_seconds else ""

    def _refuse(self, job: _Job, outcome: Outcome, reason: str) -> None:
        self._reports.count("faults", len(job.batch.keys), member=job.member, reason=reason)
        self._ended.append((job, self._failed(job.batch, outcome, reason)))
        job.queued = 0

    @staticmethod
    def _failed(batch: Batch, outcome: Outcome, reason: str) -> Completion:
        count = len(batch.keys)
        return Completion(batch.id, (outcome,) * count, (0,) * count if batch.op == Op.LOAD else (), reason=reason)

    def cancel(self, batch_id: int) -> None:
        """Nobody waits for this batch any more; `done` is not called, `settled` still is."""
        with self._lock:
            job = self._jobs.get(batch_id)
            if job is None:
                return
            job.waiting = False
        self.guarded("cancel_errors", job.member, self._members[job.member].cancel, batch_id)

    def guarded(self, counter: str, member: str, call: Callable[..., Any], *given: Any) -> Any:
        """Call what is not ours: whatever it raises, short of an interrupt, is counted and goes no further."""
        try:
            return call(*given)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self._reports.count(counter, member=member, reason=type(error).__name__)
            return None

    def turn(self) -> float:
        """Poll members, end what is over, start probes that are due.  Returns when to come back at the latest."""
        for name, member in self._members.items():
            completions = self.guarded("poll_errors", name, member.poll)
            if completions:
                with self._lock:
                    for completion in completions:
                        self.guarded("poll_errors", name, self._take, completion)
        late = self._expire(time.monotonic())
        with self._lock:
            ended, self._ended = self._ended, []
            due = [(key, breaker) for key, breaker in self._breakers.items() if breaker.due()]
            for _, breaker in due:
                breaker.trying()
        for job, completion in late:
            self.guarded("done_errors", job.member, job.done, completion)
            self.guarded("cancel_errors", job.member, self._members[job.member].cancel, job.batch.id)
        for job, completion in ended:
            if job.waiting:
                self.guarded("done_errors", job.member, job.done, completion)
            self.guarded("settled_errors", job.member, job.settled)
        for (name, writes, peer), breaker in due:
            if peer:
                # A peer is probed by the next request that names it: its keys are not known here.
                breaker.let_in()
            else:
                self._probe(name, Op.SAVE if writes else Op.LOAD)
        with self._lock:
            times = [job.batch.deadline for job in self._jobs.values() if job.waiting]
            times += [breaker.next_due() for breaker in self._breakers.values()]
            return 0.0 if self._ended else min(times, default=float("inf"))

    def _expire(self, now: float) -> list[tuple[_Job, Completion]]:
        late = []
        with self._lock:
            for job in self._jobs.values():
                if job.waiting and job.batch.deadline <= now:
                    job.waiting = False
                    completion = self._failed(job.batch, Outcome.LATE, "deadline")
                    self._judge(job, completion)
                    late.append((job, completion))
        return late

    def _take(self, completion: Completion) -> None:
        self._end(completion.id, completion)

    def _end(self, batch_id: int, completion: Completion) -> None:
        job = self._jobs.pop(batch_id, None)
        if job is None:
            # A completion for an unknown or ended number must neither crash nor be believed.
            self._reports.count("unknown_completions")
            return
        batch = job.batch
        if not _fits(completion, batch):
            completion = self._failed(batch, Outcome.FAILED, "malformed")
        stored = completion.moved > 0 and any(outcome is Outcome.DONE for outcome in completion.outcomes)
        self._queues[job.member].left(job, stored)
        if batch.op == Op.LOAD and not batch.peer:
            # Of payloads, since that is what a search asks for: a codec may move less.
            self._rates.loaded(job.member, sum(completion.lengths), time.monotonic() - job.started)
        if job.waiting:
            self._judge(job, completion)
        self._ended.append((job, completion))

    def _judge(self, job: _Job, completion: Completion) -> None:
        op = job.batch.op
        for outcome in set(completion.outcomes):
            count = completion.outcomes.count(outcome)
            self._reports.count(f"{op.name.lower()}_{outcome.name.lower()}", count, member=job.member)
            if not outcome.good and outcome != Outcome.MISS:
                reason = completion.reason if _LABEL.fullmatch(completion.reason) else outcome.name.lower()
                self._reports.count("faults", count, member=job.member, reason=reason)
        if completion.moved:
            self._reports.count("bytes", completion.moved, member=job.member, reason=op.name.lower())
        breaker = self.breaker(job.member, op, job.batch.peer.address if job.batch.peer else "")
        outcomes = set(completion.outcomes)
        if completion.reason in ("queue", "queue-seconds"):
            # We asked for more than it takes at once; that says nothing of the medium.
            outcomes.discard(Outcome.FULL)
        bad = (Outcome.FAILED, Outcome.LATE, Outcome.FULL) if op == Op.SAVE else (Outcome.FAILED, Outcome.LATE)
        if any(outcome in bad for outcome in outcomes):
            breaker.bad(completion.reason or "late", op.name)
        elif outcomes:
            breaker.good(op.name)

    def pending(self) -> int:
        """Batches that a member has not ended yet, late ones included."""
        with self._lock:
            return len(self._jobs) + len(self._ended)

    def waiting(self, ops: Sequence[Op]) -> int:
        """Batches of these kinds that somebody still waits for."""
        with self._lock:
            return sum(job.waiting and job.batch.op in ops for job in self._jobs.values())


def _fits(completion: Completion, batch: Batch) -> bool:
    """Whether a completion answers for every chunk of its batch, and for no more bytes than a slot was to take."""
    count = len(batch.keys)
    if len(completion.outcomes) != count or batch.op != Op.LOAD:
        return len(completion.outcomes) == count
    if any(told and len(told) != count for told in (completion.layouts, completion.generated)):
        return False
    return len(completion.lengths) == count and all(
        0 <= length <= most for length, most in zip(completion.lengths, batch.lengths, strict=True)
    )
