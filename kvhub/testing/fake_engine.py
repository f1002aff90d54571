"""A small, honest model of a paged engine with continuous batching, driven step by step; needs no torch.

It has what makes KV caching hard in real ones: blocks that change owners, chunked prefill, preemption, aborts in any
state, drafts, a prefix cache of its own, blocks that are freed late, loads that a request waits for.  Its tokens follow
from every byte of KV that it finds in its blocks, so wrong KV gives wrong tokens.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from kvhub.engine import EngineFacts
from kvhub.errors import KvhubError
from kvhub.hub import Hub
from kvhub.keys import Context, Namespace
from kvhub.layout import Layout
from kvhub.plugins import Registry
from kvhub.requests import stream_of
from kvhub.session import Session
from kvhub.testing.engine_driver import EngineSetup, Result, Unable
from kvhub.testing.fake_engine_copier import Copies, Ended, FakeCopier
from kvhub.testing.fake_engine_memory import BlockMemory, FakeModel
from kvhub.testing.fake_engine_queue import LOADING, PREEMPTED, RUNNING, Job, Queue

BLOCK_TOKENS = 4
CHUNK_TOKENS = 16
LAYOUT = Layout(
    "attention", layers=2, block_tokens=BLOCK_TOKENS, heads=2, key_dim=3, value_dim=5, dtype="uint8",
    key_order="lcthd", value_order="lcthd",
)  # fmt: skip
OTHER_LAYOUT = attrs.evolve(LAYOUT, key_order="lhcdt", value_order="lhctd")
"""The same content as vLLM packs it on CPUs: keys transposed inside a head."""
OPAQUE_LAYOUT = Layout(
    "opaque", layers=2, block_tokens=BLOCK_TOKENS, opaque_bytes=LAYOUT.block_bytes, tag="fake engine, packed"
)  # fmt: skip
IDLE_PAUSE = 0.0002


def layouts(setup: EngineSetup, usual: Layout = LAYOUT) -> tuple[Layout, Layout]:
    """How the engine lays its blocks out, and what it tells of that."""
    other = OTHER_LAYOUT if usual == LAYOUT else LAYOUT
    known = {"": (usual, usual), "other": (other, other), "opaque": (OTHER_LAYOUT, OPAQUE_LAYOUT)}
    if setup.layout not in known:
        raise Unable(f"the fake engine has no layout {setup.layout!r}")
    return known[setup.layout]


class FakeEngine:
    """An `EngineDriver`.  With `config=None` it is the plain twin.

    `late` makes its worker copy as late as it may; `usual` is its layout where the set-up says none.  `copier`
    builds another worker's side, to be tried on this engine's blocks.
    """

    def __init__(
        self,
        config: Mapping[str, Any] | None,
        role: str = "both",
        setup: EngineSetup | None = None,
        *,
        registry: Registry | None = None,
        late: bool = False,
        usual: Layout = LAYOUT,
        seed: int = 0,
        copier: Callable[[BlockMemory], Copies] | None = None,
    ) -> None:
        self.setup = setup = setup or EngineSetup()
        layout, told = layouts(setup, usual)
        self.memory = BlockMemory(layout, setup.blocks, told)
        self.model = FakeModel(f"fake {setup.revision}", layout.block_bytes // layout.block_tokens)
        self.session: Session | None = None
        if config is not None:
            namespace = Namespace(
                "fake", setup.revision, layout.dtype, f"attention {layout.layers} {layout.heads}",
                chunk_tokens=int(config.get("chunk_tokens", CHUNK_TOKENS)),
            )  # fmt: skip
            facts = EngineFacts("fake 1", role, namespace, told, layout.block_tokens)
            self.session = Session(Hub.open(config, facts, registry=registry))
        self.copier: Any = copier(self.memory) if copier else FakeCopier(self.memory, late=late, seed=seed)
        self.queue = Queue(self.session, setup, layout.block_tokens)
        self._names = itertools.count(1)
        self._results: dict[str, Result] = {}
        self._closed = False

    @property
    def hub(self) -> Hub:
        if self.session is None:
            raise KvhubError("the plain twin has no hub; give the engine a configuration")
        return self.session.hub

    @property
    def preemptions(self) -> int:
        return self.queue.preemptions

    # -- requests --------------------------------------------------------------------------------------------------

    def submit(
        self,
        prompt: Sequence[int],
        max_tokens: int = 1,
        context: Context | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> str:
        name = f"request-{next(self._names)}"
        job = Job(name, list(prompt), len(prompt), max_tokens, context or Context(), params)
        most = -(-(len(prompt) + max_tokens + self.setup.drafts) // self.memory.layout.block_tokens)
        if not prompt or max_tokens < 1 or most > self.setup.blocks:
            raise ValueError(f"{name}: {len(prompt)} + {max_tokens} tokens do not fit {self.setup.blocks} blocks")
        if self.session is not None and stream_of(params):
            self.session.begin(name, job.tokens, job.context, params)
        self.queue.add(job)
        return name

    def abort(self, name: str) -> None:
        job = self.queue.jobs.get(name)
        if job is None or job.ended:
            return
        still_loading = job.status == LOADING and not job.received
        self.queue.remove(job)
        self._finish(job, "abort", hold=still_loading)

    def state(self, name: str) -> str:
        job = self.queue.jobs.get(name)
        if job is None:
            return "gone"
        return "ended" if job.ended else job.status

    def result(self, name: str) -> Result | None:
        return self._results.get(name)

    def kv(self, name: str) -> tuple[bytes, ...]:
        return tuple(bytes(self.memory.block(number)) for number in self.queue.jobs[name].blocks)

    def reset_prefix_cache(self) -> None:
        self.queue.pool.forget()

    # -- a step ----------------------------------------------------------------------------------------------------

    def step(self) -> bool:
        work = self.queue.schedule()
        if self.session is not None:
            for name in self.queue.preempted():
                self.session.preempted(name)
            for job, first, count in work:
                self.session.advance(job.name, first + count, job.blocks)
            self.copier.before_forward(self.session.plan())
        self.memory.poison(self.queue.take_fresh())
        chosen = {job.name: self._forward(job, first, count) for job, first, count in work}
        self.copier.after_forward()
        self._update(work, chosen, self.copier.ended())
        if not work:
            # Whatever is waited for comes from another thread.
            time.sleep(IDLE_PAUSE)
        return bool(self.queue.jobs) or (self.session is not None and self.session.busy())

    def _forward(self, job: Job, first: int, count: int) -> list[int]:
        """Compute KV of positions `first` on; the tokens behind each position from the last known token on."""
        inputs = [*job.tokens[first : first + count], *job.drafts][:count]
        state = self.model.start(job.context)
        state.update(self.memory.read(job.blocks, first))
        chosen = []
        for position, token in enumerate(inputs, first):
            vector = self.model.vector(state, token, position, job.context)
            self.memory.write(job.blocks, position, vector)
            state.update(vector)
            if position >= len(job.tokens) - 1:
                chosen.append(self.model.choose(state))
        return chosen

    def _update(self, work: list[tuple[Job, int, int]], chosen: Mapping[str, list[int]], ended: Ended) -> None:
        self.queue.lost(ended.failed_blocks)
        for job, first, count in work:
            job.computed = first + count
            accepted = self._accepted(job, chosen[job.name])
            job.tokens.extend(accepted[: job.wanted - job.made])
            self.queue.cache(job)
            if job.made == job.wanted:
                self.queue.remove(job)
                self._finish(job, "length")
            elif self.setup.drafts and accepted:
                job.drafts = list(self._drafts(job))
        if self.session is not None:
            self.session.done(ended.report)
        for name in ended.received:
            job = self.queue.jobs[name]
            if job.ended:
                self.queue.forget(job)
            else:
                job.received = True
        for name in ended.sent:
            self.queue.forget(self.queue.jobs[name])

    def _accepted(self, job: Job, chosen: list[int]) -> list[int]:
        """Tokens that the step really made; drafts behind the first wrong one are taken back."""
        if not chosen:
            return []
        accepted = chosen[:1]
        for draft, after in zip(job.drafts, chosen[1:], strict=False):
            if draft != accepted[-1]:
                break
            accepted.append(after)
        job.computed -= len(chosen) - len(accepted)
        job.drafts = []
        return accepted

    def _drafts(self, job: Job) -> Iterator[int]:
        """Guesses for the tokens behind the last one: mostly right, so that some are accepted and some are not."""
        state = self.model.start(job.context)
        state.update(self.memory.read(job.blocks, job.computed))
        token = job.tokens[-1]
        for position in range(len(job.tokens) - 1, len(job.tokens) - 1 + self.setup.drafts):
            state.update(self.model.vector(state, token, position, job.context))
            token = self.model.choose(state)
            yield token if (token + position) % 3 else (token + 1) % self.model.vocabulary

    def _finish(self, job: Job, reason: str, *, hold: bool = False) -> None:
        job.ended = True
        params = None
        if self.session is not None and not self.session.knows(job.name):
            self.session.decline(job.params)
        elif self.session is not None:
            # The last chosen token has no KV yet; drafts behind it never will.
            computed = min(job.computed, len(job.tokens) - 1)
            end = self.session.finish(job.name, computed, job.blocks, aborted=reason == "abort")
            hold, params = hold or end.hold, end.params
        self._results[job.name] = Result(tuple(job.tokens[job.prompt :]), reason, params)
        if not hold:
            self.queue.forget(job)

    # -- life ------------------------------------------------------------------------------------------------------

    def counts(self) -> dict[str, int]:
        mine = {"jobs": len(self.queue.jobs), "blocks": self.queue.pool.used, "copies": getattr(self.copier, "open", 0)}
        if self.session is None:
            return mine
        return {**mine, **self.session.counts(), **self.session.hub.counts()}

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self.copier.close()
        if self.session is not None:
            self.session.close()


__all__ = ["BLOCK_TOKENS", "CHUNK_TOKENS", "LAYOUT", "OTHER_LAYOUT", "PREEMPTED", "RUNNING", "FakeEngine"]
