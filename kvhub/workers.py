"""`Workers`: blocking calls behind `submit` and `poll`, for members whose medium knows only blocking calls.

A batch is cut into its chunks; each worker thread takes one chunk at a time, so a batch uses all idle workers and a
call that hangs costs one worker.  What somebody waits for (FIND, LOAD) goes before what runs in the background
(SAVE, REMOVE); both queues are bounded.  There is no order between batches.

A call cannot be taken back, so a worker that hangs is written off and its slots stay lent until it returns.  Once more
than half of the workers hang, others are started in their places, as many again at most.  When those hang too, batches
are FAILED at once: that trips the member's breaker, and the first probe that gets through lets the member in again.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import attrs

from kvhub.errors import MisuseError
from kvhub.types import Batch, Completion, Op, Outcome

STUCK_SECONDS = 5.0
"""A call that takes longer is written off.  Above any healthy medium's worst, below what fills queues."""
_URGENT = (Op.FIND, Op.LOAD)
_LENDS_SLOTS = (Op.LOAD, Op.SAVE)


@attrs.frozen
class End:
    """How one chunk ended; what of it goes into the completion depends on the operation."""

    outcome: Outcome
    reason: str = ""
    length: int = 0
    layout: str = ""
    generated: int = 0
    moved: int = 0


_LATE = End(Outcome.LATE)


class _Job:
    """A batch under way.  Chunks before `next` were handed out; `busy` of them are in a worker's hands."""

    __slots__ = ("batch", "busy", "ends", "given_up", "next", "over")

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.ends: list[End | None] = [None] * len(batch.keys)
        self.next = 0
        self.busy = 0
        self.given_up = ""
        self.over = False


class Workers:
    """Daemon threads that run `do(batch, index)` for every chunk, and the completions that come of it.

    `do` may block for as long as the medium does and must not raise.  `wake` is called after completions were
    made, from a worker, from the clock's thread, or from inside `submit`, `cancel` and `close`; no lock is held.
    """

    def __init__(
        self,
        name: str,
        count: int,
        do: Callable[[Batch, int], End],
        wake: Callable[[], None],
        *,
        most_queued: int = 64,
        report: Callable[[str, int], None] = lambda name, count: None,
    ) -> None:
        self._name, self._do, self._wake, self._most_queued = name, do, wake, most_queued
        self._count, self._report = count, report
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._tick = threading.Condition(self._lock)
        self._tick_at = float("inf")
        self._urgent: deque[_Job] = deque()
        self._background: deque[_Job] = deque()
        self._jobs: dict[int, _Job] = {}
        self._done: list[Completion] = []
        self._made = 0
        self._closed = False
        self._numbers = itertools.count()
        self._busy_since: dict[int, float] = {}
        self._stuck: set[int] = set()
        self._threads: dict[object, threading.Thread] = {}
        self._start("clock", self._clock)
        for _ in range(count):
            self._start_worker()

    def submit(self, batch: Batch) -> None:
        """Queue a batch; never blocks.  A full queue, a passed deadline and an empty batch complete at once.

        Raises MisuseError when closed or when a batch of this id is under way.
        """
        queue = self._urgent if batch.op in _URGENT else self._background
        with self._turn():
            if self._closed:
                raise MisuseError(f"{self._name}: submit to a closed member; nothing may be submitted after close")
            if batch.id in self._jobs:
                raise MisuseError(f"{self._name}: batch {batch.id} is under way already; ids must be unique")
            job = self._jobs[batch.id] = _Job(batch)
            if not batch.keys:
                self._complete(job)
            elif batch.deadline <= time.monotonic():
                self._give_up(job, "deadline")
            elif len(self._stuck) >= 2 * self._count:
                job.ends = [End(Outcome.FAILED, "stuck")] * len(batch.keys)
                self._complete(job)
            elif len(queue) >= self._most_queued:
                job.ends = [End(Outcome.FULL, "queue")] * len(batch.keys)
                self._complete(job)
            else:
                queue.append(job)
                self._work.notify(len(batch.keys))
                if batch.deadline < self._tick_at:
                    self._tick.notify()

    def poll(self) -> list[Completion]:
        """Completions since the last call; also after `close`."""
        with self._lock:
            done, self._done = self._done, []
        return done

    def cancel(self, batch_id: int) -> None:
        """End a batch as soon as no worker can touch its slots; unknown ids are ignored."""
        with self._turn():
            job = self._jobs.get(batch_id)
            if job is not None:
                self._give_up(job, "cancelled")

    def stuck(self) -> int:
        """How many workers are inside a call that was written off, and have not returned from it."""
        return len(self._stuck)

    def close(self, seconds: float) -> int:
        """Drop what is queued, wait at most `seconds` for what is running; the number of workers written off.

        A worker that is written off keeps its slot's memoryview, so the memory cannot be unmapped under it.
        """
        until = time.monotonic() + seconds
        with self._turn():
            self._closed = True
            for job in list(self._jobs.values()):
                self._give_up(job, "closed")
            self._work.notify_all()
            self._tick.notify_all()
        threads = list(self._threads.values())
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        return sum(thread.is_alive() for thread in threads)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Hold the lock; if completions were made meanwhile, wake the hub after letting go of it."""
        with self._lock:
            had = self._made
            yield
            news = self._made != had
        if news:
            self._wake()

    def _start(self, tag: object, run: Callable[[], None]) -> None:
        thread = self._threads[tag] = threading.Thread(target=run, name=f"kvhub-{self._name}-{tag}", daemon=True)
        thread.start()

    def _start_worker(self) -> None:
        number = next(self._numbers)
        self._start(number, lambda: self._work_on(number))

    def _work_on(self, number: int) -> None:
        while (task := self._take(number)) is not None:
            job, index = task
            self._finish(
                number, job, index, _LATE if job.batch.deadline <= time.monotonic() else self._do(job.batch, index)
            )

    def _take(self, number: int) -> tuple[_Job, int] | None:
        with self._lock:
            if len(self._threads) - 1 - len(self._stuck) > self._count:
                # This one was written off, has returned, and others stand in its place.
                del self._threads[number]
                return None
            while not self._urgent and not self._background:
                if self._closed:
                    return None
                self._work.wait()
            queue = self._urgent or self._background
            job = queue[0]
            index = job.next
            job.next += 1
            job.busy += 1
            if job.next == len(job.ends):
                queue.popleft()
            now = self._busy_since[number] = time.monotonic()
            if now + STUCK_SECONDS < self._tick_at:
                self._tick.notify()
            return job, index

    def _finish(self, number: int, job: _Job, index: int, end: End) -> None:
        with self._turn():
            del self._busy_since[number]
            self._stuck.discard(number)
            job.ends[index] = end
            job.busy -= 1
            if job.busy == 0 and job.next == len(job.ends) and not job.over:
                self._complete(job)

    def _clock(self) -> None:
        """Ends batches at their deadline even when every worker hangs, and writes off the workers that do."""
        while True:
            with self._turn():
                if self._closed:
                    return
                now = time.monotonic()
                stuck_at = self._write_off(now)
                waiting = [job for job in self._jobs.values() if not job.given_up]
                expired = [job for job in waiting if job.batch.deadline <= now]
                for job in expired:
                    self._give_up(job, "deadline")
                if not expired:
                    self._tick_at = min([stuck_at, *(job.batch.deadline for job in waiting)])
                    # Python's longest wait is below `inf`; an hour's needless look costs nothing.
                    self._tick.wait(min(self._tick_at - now, 3600.0))

    def _write_off(self, now: float) -> float:
        """Write off who hangs, start others where most do; when to look again."""
        again = float("inf")
        for number, since in self._busy_since.items():
            if number not in self._stuck:
                if since + STUCK_SECONDS <= now:
                    self._stuck.add(number)
                    self._report("stuck_calls", 1)
                else:
                    again = min(again, since + STUCK_SECONDS)
        if 2 * len(self._stuck) > self._count:
            while len(self._threads) - 1 < min(self._count + len(self._stuck), 2 * self._count):
                self._start_worker()
        return again

    def _give_up(self, job: _Job, reason: str) -> None:
        """Start no more of its chunks; complete it now unless a worker may still touch one of its slots."""
        if job.given_up:
            return
        job.given_up = reason
        job.next = len(job.ends)
        for queue in (self._urgent, self._background):
            if job in queue:
                queue.remove(job)
        if job.busy == 0 or job.batch.op not in _LENDS_SLOTS:
            self._complete(job)

    def _complete(self, job: _Job) -> None:
        batch = job.batch
        ends = [end or _LATE for end in job.ends]
        bad = [end.reason for end in ends if end.reason and end.outcome is not Outcome.MISS]
        reasons = bad or [end.reason for end in ends if end.reason]
        load = batch.op is Op.LOAD
        self._done.append(
            Completion(
                id=batch.id,
                outcomes=tuple(end.outcome for end in ends),
                lengths=tuple(end.length for end in ends) if load else (),
                layouts=tuple(end.layout for end in ends) if load and any(end.layout for end in ends) else None,
                generated=tuple(end.generated for end in ends) if load and any(end.generated for end in ends) else None,
                moved=sum(end.moved for end in ends),
                reason=reasons[0] if reasons else job.given_up,
            )
        )
        job.over = True
        self._made += 1
        del self._jobs[batch.id]


def within(seconds: float, call: Callable[[], None], thread_name: str) -> tuple[bool, BaseException | None]:
    """Run `call` for at most `seconds`: whether it ended, and what it raised.  A hung call is written off."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, name=thread_name, daemon=True)
    thread.start()
    thread.join(max(0.0, seconds))
    return not thread.is_alive(), raised[0] if raised else None
