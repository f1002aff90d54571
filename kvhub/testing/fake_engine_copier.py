"""The fake engine's worker side: copies between blocks and slots, in plain Python, at once or as late as it may.

The same calls as those of `kvhub_kernels.copier`, in the same order within a step.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import attrs

from kvhub.arena import attach
from kvhub.errors import LayoutError
from kvhub.layout import Layout
from kvhub.plan import Copy, Load, Report, StepPlan
from kvhub.testing.fake_engine_memory import BlockMemory, token_offsets

_NO_MEMORY = memoryview(b"")


@attrs.frozen
class Ended:
    """What has ended since the last question."""

    report: Report = attrs.field(factory=Report)
    received: frozenset[str] = frozenset()
    """Requests whose loads are over."""
    sent: frozenset[str] = frozenset()
    """Ended requests whose blocks are free."""
    failed_blocks: frozenset[int] = frozenset()
    """Blocks that were to be loaded and were not."""


class Copies(Protocol):
    """What an engine's step asks of its worker's side."""

    def before_forward(self, plan: StepPlan) -> None: ...
    def after_forward(self) -> None: ...
    def ended(self) -> Any:
        """Something with the fields of `Ended`."""

    def close(self) -> None: ...


class FakeCopier:
    """One per engine.  `late` makes it do each copy steps later, in another order, unless someone must wait for it.

    A copy that is late reads or writes whatever its blocks hold by then: a missing fence becomes wrong bytes.
    """

    def __init__(self, memory: BlockMemory, *, late: bool = False, seed: int = 0) -> None:
        self.memory = memory
        self.late = late
        self.refuses: Callable[[Copy], bool] = lambda copy: False
        """A test's hand: copies for which this is true fail."""
        self._dice = random.Random(seed)
        self._arena = _NO_MEMORY
        self._arena_name = ""
        self._slot_bytes = 0
        self._todo: dict[int, Copy | Load] = {}
        self._gathers: tuple[Copy, ...] = ()
        self._closing: dict[str, tuple[int, ...]] = {}
        self._done: list[int] = []
        self._failed: list[int] = []
        self._received: set[str] = set()
        self._lost: set[int] = set()
        self._known: dict[str, tuple[Layout, list[tuple[int, ...]]]] = {}

    # -- a step ----------------------------------------------------------------------------------------------------

    def before_forward(self, plan: StepPlan) -> None:
        """Start the loads; end the gathers whose blocks this step gives to somebody else."""
        if plan.arena != self._arena_name:
            self._arena = attach(plan.arena, plan.slots * plan.slot_bytes)
            self._arena_name, self._slot_bytes = plan.arena, plan.slot_bytes
        self._wait(plan.fences)
        self._gathers += plan.gathers
        self._closing.update(plan.closing)
        for load in plan.loads:
            self._todo[load.copy.id] = load
        if not self.late:
            self._wait([load.copy.id for load in plan.loads])

    def after_forward(self) -> None:
        """The pass is over: the gathers may read."""
        self._todo.update({copy.id: copy for copy in self._gathers})
        self._gathers = ()

    def ended(self) -> Ended:
        """What has ended; does the last copies of requests that ended, since the engine may now go idle."""
        for numbers in self._closing.values():
            self._wait(numbers)
        waiting = list(self._todo)
        self._dice.shuffle(waiting)
        self._wait(number for number in waiting if not self.late or self._dice.random() < 0.3)
        sent, self._closing = frozenset(self._closing), {}
        report, self._done, self._failed = Report(tuple(self._done), tuple(self._failed)), [], []
        received, self._received = frozenset(self._received), set()
        lost, self._lost = frozenset(self._lost), set()
        return Ended(report, received, sent, lost)

    @property
    def open(self) -> int:
        """Copies that were handed over and have not ended."""
        return len(self._todo) + len(self._gathers)

    def close(self) -> None:
        """Let go of the arena; what was not copied never will be."""
        self._todo.clear()
        self._arena.release()
        self._arena, self._arena_name = _NO_MEMORY, ""

    # -- copies ----------------------------------------------------------------------------------------------------

    def _wait(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            work = self._todo.pop(number, None)
            if work is None:
                continue
            copy = work.copy if isinstance(work, Load) else work
            bad = [at for at in range(len(copy.slots)) if not self._copied(copy, at, isinstance(work, Load))]
            (self._failed if bad else self._done).append(number)
            if isinstance(work, Load):
                self._received.add(copy.request)
                self._lost.update(work.failed)
                for at in bad:
                    self._lost.update(self._covered(copy, at))

    def _copied(self, copy: Copy, at: int, load: bool) -> bool:
        if self.refuses(copy):
            return False
        text = copy.layouts[at] if copy.layouts else ""
        try:
            if load:
                self._scatter(copy, at, text)
            else:
                self._gather(copy, at)
        except (LayoutError, IndexError):
            return False
        return True

    def _covered(self, copy: Copy, at: int) -> list[int]:
        size = self.memory.layout.block_tokens
        return list(copy.blocks[at][copy.first[at] // size : -(-copy.last[at] // size)])

    def _slot(self, copy: Copy, at: int) -> memoryview:
        start = copy.slots[at] * self._slot_bytes
        return self._arena[start : start + self._slot_bytes]

    def _gather(self, copy: Copy, at: int) -> None:
        size, slot = self.memory.layout.block_bytes, self._slot(copy, at)
        for index, number, first, last in self._spans(copy, at):
            there = slot[index * size : (index + 1) * size]
            self._move(self.memory.block(number), there, first, last)

    def _scatter(self, copy: Copy, at: int, text: str) -> None:
        slot, own = self._slot(copy, at), self.memory.layout
        source = self._source(text)
        if source is None:
            for index, number, first, last in self._spans(copy, at):
                there = slot[index * own.block_bytes : (index + 1) * own.block_bytes]
                self._move(there, self.memory.block(number), first, last)
            return
        layout, offsets = source
        for token in range(copy.first[at], copy.last[at]):
            index, inside = divmod(token, own.block_tokens)
            target = self.memory.block(copy.blocks[at][index])
            index, origin = divmod(token, layout.block_tokens)
            for to, where in zip(self.memory.offsets[inside], offsets[origin], strict=True):
                target[to] = slot[index * layout.block_bytes + where]

    def _spans(self, copy: Copy, at: int) -> Iterable[tuple[int, int, int, int]]:
        """(block of the chunk, engine block, first token, last token) of each block that the copy touches."""
        size = self.memory.layout.block_tokens
        for index, number in enumerate(copy.blocks[at]):
            first, last = max(copy.first[at] - index * size, 0), min(copy.last[at] - index * size, size)
            if first < last:
                yield index, number, first, last

    def _source(self, text: str) -> tuple[Layout, list[tuple[int, ...]]] | None:
        """How a payload of another layout lies; None for the engine's own."""
        if not text or text == self.memory.told.text:
            return None
        if text not in self._known:
            layout = Layout.parse(text)
            if not layout.same_content(self.memory.told):
                raise LayoutError("a chunk of another model's layout")
            self._known[text] = layout, token_offsets(layout)
        return self._known[text]

    def _move(self, source: memoryview, target: memoryview, first: int, last: int) -> None:
        """Copy tokens of a block between two places of the engine's own layout."""
        if first == 0 and last == self.memory.layout.block_tokens:
            target[:] = source
            return
        if not self.memory.told.cuttable:
            raise LayoutError(f"tokens {first} to {last} of an opaque block")
        for token in range(first, last):
            for where in self.memory.offsets[token]:
                target[where] = source[where]
