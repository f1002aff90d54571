"""The fake engine's scheduler: who runs, with which blocks, and how much of whom per step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from kvhub.keys import Context
from kvhub.session import Session
from kvhub.testing.engine_driver import EngineSetup
from kvhub.testing.fake_engine_blocks import BlockPool, block_keys

WAITING, LOADING, RUNNING, PREEMPTED = "waiting", "loading", "running", "preempted"
MOST_RUNNING = 16


@attrs.define(eq=False)
class Job:
    """A request as the engine sees it."""

    name: str
    tokens: list[int]
    """Prompt and accepted tokens; the session reads this very list."""
    prompt: int
    wanted: int
    context: Context
    params: Mapping[str, Any] | None
    status: str = WAITING
    computed: int = 0
    """Leading tokens with KV, or that will have it when the load has ended."""
    blocks: list[int] = attrs.field(factory=list)
    keys: list[bytes] = attrs.field(factory=list)
    drafts: list[int] = attrs.field(factory=list)
    received: bool = False
    failed: bool = False
    came_back: bool = False
    """It was preempted before; that is what it waits as, also with loaded blocks."""
    ended: bool = False

    @property
    def made(self) -> int:
        return len(self.tokens) - self.prompt


class Queue:
    """Running requests first, in order of arrival; then waiting ones while blocks and tokens last.

    What runs out of blocks takes them from the newest running request, which computes again later.
    """

    def __init__(self, session: Session | None, setup: EngineSetup, block_tokens: int) -> None:
        self.session = session
        self.setup = setup
        self.block_tokens = block_tokens
        self.pool = BlockPool(setup.blocks, caching=setup.prefix_cache)
        self.jobs: dict[str, Job] = {}
        self.waiting: list[Job] = []
        self.running: list[Job] = []
        self.preemptions = 0
        self._fresh: list[int] = []

    def add(self, job: Job) -> None:
        self.jobs[job.name] = job
        self.waiting.append(job)

    def remove(self, job: Job) -> None:
        """Schedule it no more; it keeps its blocks."""
        (self.running if job.status == RUNNING else self.waiting).remove(job)

    def forget(self, job: Job) -> None:
        """Give back its blocks."""
        self.pool.free(job.blocks)
        job.blocks = []
        del self.jobs[job.name]

    def take_fresh(self) -> list[int]:
        """Blocks that this step's forward pass is the first to write."""
        fresh, self._fresh = self._fresh, []
        return fresh

    def preempted(self) -> list[str]:
        """Everyone who waits after a preemption, not only the newest: engines tell it step by step."""
        return [job.name for job in self.waiting if job.status == PREEMPTED]

    # -- scheduling ------------------------------------------------------------------------------------------------

    def schedule(self) -> list[tuple[Job, int, int]]:
        """(job, first position, tokens) of this step; drafts count as tokens."""
        work: list[tuple[Job, int, int]] = []
        left = self.setup.step_tokens
        before, stuck = self.preemptions, False
        for job in list(self.running):
            if job not in self.running:
                continue
            count = min(len(job.tokens) + len(job.drafts) - job.computed, left)
            if count <= 0:
                continue
            if self._grow(job, job.computed + count):
                work.append((job, job.computed, count))
                left -= count
        if self.preemptions == before:
            for job in list(self.waiting):
                if left <= 0 or len(self.running) >= MOST_RUNNING:
                    break
                admitted = self._admit(job, left)
                if admitted is None:
                    stuck = True
                    break
                if admitted:
                    work.append((job, job.computed, admitted))
                    left -= admitted
        if stuck and not work and not self.running:
            self._unlock()
        return work

    def _needed(self, job: Job, tokens: int) -> int:
        return max(-(-tokens // self.block_tokens) - len(job.blocks), 0)

    def _grow(self, job: Job, tokens: int) -> bool:
        """Blocks for so many tokens of a running request, if need be from others; False when it had to yield."""
        while (taken := self.pool.take(self._needed(job, tokens))) is None:
            victim = self.running[-1]
            self._preempt(victim)
            if victim is job:
                return False
        job.blocks += taken
        self._fresh += taken
        return True

    def _preempt(self, job: Job) -> None:
        self.remove(job)
        self.pool.free(job.blocks)
        # Another list: the session may still look at the old one.
        job.blocks, job.drafts, job.computed = [], [], 0
        job.status = PREEMPTED
        self.preemptions += 1
        job.came_back = True
        self.waiting.insert(0, job)

    def _admit(self, job: Job, left: int) -> int | None:
        """Tokens to compute of a waiting request; 0 to pass it by for now, None when there are no blocks."""
        if job.status == LOADING and not self._arrived(job):
            return 0
        shared: list[int] = []
        external = 0
        if not job.blocks:
            block_keys(job.keys, job.tokens, job.context, self.block_tokens)
            # The last token is always computed, since something has to be chosen behind it.
            shared = self.pool.find(job.keys[: (len(job.tokens) - 1) // self.block_tokens])
            local = len(shared) * self.block_tokens
            found = self._ask(job, local)
            if found is None:
                return 0
            external, job.computed = found, local
        count = 0 if external else min(len(job.tokens) - job.computed, left)
        wanted = job.computed + external + count
        taken = self.pool.take(max(self._needed(job, wanted) - len(shared), 0), shared)
        if taken is None:
            if not job.blocks:
                job.computed = 0
            return None
        job.blocks = [*job.blocks, *shared, *taken]
        if self.session is not None:
            self.session.allocated(job.name, list(job.blocks), external)
        if external:
            job.status, job.received, job.failed = LOADING, False, False
            job.computed += external
            return 0
        self._fresh += taken
        self.waiting.remove(job)
        self.running.append(job)
        job.status = RUNNING
        return count

    def _ask(self, job: Job, local: int) -> int | None:
        if self.session is None:
            return 0
        if not self.session.knows(job.name):
            self.session.begin(job.name, job.tokens, job.context, job.params)
        return self.session.lookup(job.name, local)

    def _arrived(self, job: Job) -> bool:
        if not job.received:
            return False
        job.status = PREEMPTED if job.came_back else WAITING
        if job.failed and not job.computed:
            self.pool.free(job.blocks)
            job.blocks = []
            return True
        self.cache(job)
        job.computed = min(job.computed, len(job.tokens) - 1)
        return True

    def _unlock(self) -> None:
        """Nothing runs and nothing could start: requests that hold loaded blocks stand in each other's way."""
        holding = [job for job in self.waiting if job.blocks and (job.status != LOADING or job.received)]
        if not holding:
            return
        if self.waiting[0] is not holding[0]:
            self.waiting.remove(holding[0])
            self.waiting.insert(0, holding[0])
        elif len(holding) > 1:
            self._preempt(holding[-1])
            self.waiting.append(self.waiting.pop(0))

    # -- after a step ----------------------------------------------------------------------------------------------

    def lost(self, blocks: frozenset[int]) -> None:
        """These blocks were not loaded: their requests compute from the first of them on."""
        for job in self.waiting if blocks else ():
            if job.status == LOADING:
                spans: Sequence[int] = job.blocks[: -(-job.computed // self.block_tokens)]
                first = next((at for at, block in enumerate(spans) if block in blocks), None)
                if first is not None:
                    job.computed, job.failed = first * self.block_tokens, True

    def cache(self, job: Job) -> None:
        """Make the whole blocks of computed and accepted tokens findable for others."""
        block_keys(job.keys, job.tokens, job.context, self.block_tokens)
        full = min(job.computed, len(job.tokens)) // self.block_tokens
        self.pool.cache(job.blocks[:full], job.keys[:full])
