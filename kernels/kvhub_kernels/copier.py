"""Copier: the worker's side of an engine adapter; copies between engine blocks and arena slots on a thread of its own.

The engine's thread hands it one `StepPlan` per step, before the forward pass, and asks after the pass what has ended.
Blocks are read only after the pass that wrote them: on a device the thread waits for an
event that was recorded behind it.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import attrs
import torch

from kvhub.arena import attach
from kvhub.errors import LayoutError
from kvhub.layout import Layout
from kvhub.plan import Copy, Load, Report, StepPlan
from kvhub_kernels import EngineBlocks, Plan, arena_tensor, gather, scatter

MOST_THREADS = 4
"""Threads of a load: four saturate the memory of a socket well enough, and other ranks load, too."""
REST = 0.8e-3
"""Seconds that a step without computation may wait for a load."""


@attrs.frozen
class Ended:
    """What has ended since the last question."""

    report: Report
    received: frozenset[str]
    """Requests whose loads are over."""
    sent: frozenset[str]
    """Ended requests whose blocks are free."""
    failed_blocks: frozenset[int]
    """Engine blocks that were to be loaded and were not."""


class Copier:
    """One per worker.  Every method is called on the engine's thread; only the copies run beside it."""

    def __init__(self, engine: EngineBlocks) -> None:
        self.engine = engine
        self._arena: torch.Tensor | None = None
        self._memory = memoryview(b"")
        self._slot_bytes = 0
        self._arena_name = ""
        self._todo: queue.SimpleQueue[tuple[Copy | Load, torch.cuda.Event | None] | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._open: set[int] = set()
        self._report: tuple[list[int], list[int]] = ([], [])
        self._received: set[str] = set()
        self._failed_blocks: set[int] = set()
        self._gathers: tuple[Copy, ...] = ()
        self._closing: dict[str, tuple[int, ...]] = {}
        self._idle = False
        # A request waits for a load; a gather runs beside the next forward pass and leaves the cores to it.
        self._threads = min(MOST_THREADS, len(os.sched_getaffinity(0)))
        self.bytes_gathered = 0
        self.bytes_scattered = 0
        self._thread = threading.Thread(target=self._run, name="kvhub-copier", daemon=True)
        self._thread.start()

    def before_forward(self, plan: StepPlan) -> None:
        """Start the loads; wait for gathers whose blocks this step gives to somebody else."""
        if plan.arena != self._arena_name:
            self._memory = attach(plan.arena, plan.slots * plan.slot_bytes)
            self._arena = arena_tensor(self._memory, plan.slots, plan.slot_bytes)
            self._arena_name, self._slot_bytes = plan.arena, plan.slot_bytes
        self._wait(plan.fences)
        self._gathers += plan.gathers
        self._closing.update(plan.closing)
        self._idle = plan.idle
        with self._changed:
            self._open.update(copy.id for copy in plan.gathers)
        for load in plan.loads:
            with self._changed:
                self._open.add(load.copy.id)
            self._todo.put((load, None))

    def after_forward(self) -> None:
        """The pass that wrote this step's blocks is over (or recorded): let the gathers run."""
        event = None
        if self._gathers and self.engine.device.type == "cuda":
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(self.engine.device))
        for copy in self._gathers:
            self._todo.put((copy, event))
        self._gathers = ()

    def ended(self) -> Ended:
        """What has ended; waits for the last copies of requests that ended, since the engine may now go idle."""
        # A step without a forward pass may come here straight away: what it should read was written in earlier steps.
        self.after_forward()
        for numbers in self._closing.values():
            self._wait(numbers)
        sent, self._closing = frozenset(self._closing), {}
        with self._changed:
            if self._idle and self._open:
                # Better than stepping round and round: this thread would take a core from the copy that it waits for.
                self._changed.wait_for(lambda: bool(self._received), REST)
            done, failed = self._report
            self._report = ([], [])
            received, self._received = frozenset(self._received), set()
            blocks, self._failed_blocks = frozenset(self._failed_blocks), set()
        return Ended(Report(tuple(done), tuple(failed)), received, sent, blocks)

    def _wait(self, numbers: Iterable[int]) -> None:
        wanted = set(numbers)
        if wanted:
            with self._changed:
                self._changed.wait_for(lambda: not wanted & self._open)

    # -- the copying thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (item := self._todo.get()) is not None:
            work, event = item
            late = event is not None and self._guarded(event.synchronize)
            lost: set[int] = set()
            if isinstance(work, Load):
                failed = self._load(work)
                copy, lost = work.copy, set(work.failed)
                if failed:
                    lost.update(_covered(copy, self.engine.layout.block_tokens))
            else:
                copy = work
                failed = late or self._guarded(partial(self._gather, copy))
            # All at once: a request that is received before its load is reported would be looked up in vain.
            with self._changed:
                if isinstance(work, Load):
                    self._received.add(copy.request)
                    self._failed_blocks.update(lost)
                self._open.discard(copy.id)
                self._report[1 if failed else 0].append(copy.id)
                self._changed.notify_all()

    def _guarded(self, call: Callable[[], Any]) -> bool:
        try:
            call()
        except Exception:
            # A copy that failed is a chunk that is not stored, or blocks that are computed again: never more.
            return True
        return False

    def _gather(self, copy: Copy) -> None:
        assert self._arena is not None
        self._clear_rest(copy)
        self.bytes_gathered += gather(self.engine, self._arena, _plan(copy))

    def _clear_rest(self, copy: Copy) -> None:
        """Zero what a part filled last block leaves over: old bytes of another request must not travel with a tail."""
        layout = self.engine.layout
        for slot, last in zip(copy.slots, copy.last, strict=True):
            if last % layout.block_tokens:
                end = slot * self._slot_bytes + layout.payload_bytes(last)
                self._memory[end - layout.block_bytes : end] = bytes(layout.block_bytes)

    def _load(self, load: Load) -> bool:
        copy = load.copy
        if not copy.slots:
            return False
        if copy.layouts is None:
            return self._guarded(partial(self._scatter, copy, None))
        groups: dict[str, list[int]] = {}
        for at, text in enumerate(copy.layouts):
            groups.setdefault(text, []).append(at)
        # Every group is tried: one that cannot be converted must not keep the others out.
        ends = [self._guarded(partial(self._scatter, _pick(copy, at), text)) for text, at in groups.items()]
        return any(ends)

    def _scatter(self, copy: Copy, text: str | None) -> None:
        assert self._arena is not None
        source = Layout.parse(text) if text else None
        if source is not None and not source.same_content(self.engine.layout):
            raise LayoutError("a chunk of another model's layout")
        self.bytes_scattered += scatter(self.engine, self._arena, _plan(copy), source, threads=self._threads)

    def close(self) -> None:
        """Finish what was handed over and end the thread; idempotent."""
        if self._thread.is_alive():
            self._todo.put(None)
            self._thread.join(5.0)
        # The mapping, and with it a descriptor, goes with its last view.
        self._arena, self._memory = None, memoryview(b"")


def _plan(copy: Copy) -> Plan:
    return Plan(copy.slots, copy.blocks, copy.first, copy.last)


def _pick(copy: Copy, at: list[int]) -> Copy:
    return attrs.evolve(
        copy,
        slots=tuple(copy.slots[i] for i in at),
        blocks=tuple(copy.blocks[i] for i in at),
        first=tuple(copy.first[i] for i in at),
        last=tuple(copy.last[i] for i in at),
        layouts=None,
    )


def _covered(copy: Copy, block_tokens: int) -> set[int]:
    """Engine blocks that a copy would have written."""
    found: set[int] = set()
    for row, first, last in zip(copy.blocks, copy.first, copy.last, strict=True):
        found.update(row[first // block_tokens : -(-last // block_tokens)])
    return found
