"""What kvhub moved and how long it took, read inside the engine's process.

Copies are timed around the kernels' calls, a directory's loads and saves from the order to its end.  Overlapping work
of one kind counts once: a rate is bytes over the time in which at least one of them ran.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from kvhub.member import Member
from kvhub.types import Batch, Completion, Op

FAULTS = ("faults", "gathers_failed", "arena_full", "reserve_full", "short_fetches")


class Busy:
    """Bytes that moved, and the time in which something was moving."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running = 0
        self._since = 0.0
        self.bytes = 0
        self.seconds = 0.0

    def begin(self) -> None:
        with self._lock:
            if not self._running:
                self._since = time.perf_counter()
            self._running += 1

    def end(self, moved: int) -> None:
        with self._lock:
            self._running -= 1
            self.bytes += moved
            if not self._running:
                self.seconds += time.perf_counter() - self._since


class Inside:
    """Built before the engine; `find` is called once the engine is there."""

    def __init__(self) -> None:
        from kvhub_kernels import copier

        self.gathers, self.scatters, self.saves, self.loads = Busy(), Busy(), Busy(), Busy()
        for name, busy in (("gather", self.gathers), ("scatter", self.scatters)):
            setattr(copier, name, _timed(getattr(copier, name), busy))
        self._scheduler: Any = None

    def find(self, core: Any) -> None:
        """Take hold of the connector's half that lives in the engine core."""
        self._scheduler = core.scheduler.connector.scheduler
        for member in self._scheduler.session.hub.members.values():
            self._watch(member)

    def _watch(self, member: Member) -> None:
        """Time what the hub gives to a member until the hub learns that it is over."""
        submit, poll, running = member.submit, member.poll, dict[int, Busy]()

        def timed_submit(batch: Batch) -> None:
            busy = {Op.SAVE: self.saves, Op.LOAD: self.loads}.get(batch.op)
            if busy is not None:
                running[batch.id] = busy
                busy.begin()
            submit(batch)

        def timed_poll() -> Sequence[Completion]:
            completions = poll()
            for completion in completions:
                if busy := running.pop(completion.id, None):
                    busy.end(completion.moved)
            return completions

        vars(member).update(submit=timed_submit, poll=timed_poll)

    @property
    def working(self) -> bool:
        """Whether the engine has to step although no request runs."""
        return bool(self._scheduler.busy())

    @property
    def pending(self) -> bool:
        """Whether something is still on its way to a store."""
        counts = self._scheduler.session.hub.counts()
        return bool(counts["filling"] or counts["orders"])

    def figures(self) -> dict[str, Any]:
        """Running totals; `sources` is tokens served by member name."""
        found: dict[str, Any] = {
            name: {"bytes": busy.bytes, "seconds": busy.seconds}
            for name, busy in (
                ("gathers", self.gathers),
                ("scatters", self.scatters),
                ("saves", self.saves),
                ("loads", self.loads),
            )
        }
        counts = self._scheduler.session.hub.reports.counts()
        found["sources"] = {member: n for (name, member, _), n in counts.items() if name == "hit_tokens"}
        found["faults"] = {why or name: n for (name, _, why), n in counts.items() if name in FAULTS}
        return found


def _timed(function: Callable[..., int], busy: Busy) -> Callable[..., int]:
    def call(*args: Any, **more: Any) -> int:
        busy.begin()
        moved = 0
        try:
            moved = function(*args, **more)
        finally:
            busy.end(moved)
        return moved

    return call
