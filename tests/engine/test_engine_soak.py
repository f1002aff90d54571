"""500 requests with aborts, preemptions and shared prefixes: right answers, and nothing left behind."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest

from kvhub.plugins import Registry
from kvhub.testing.engine_driver import EngineDriver, EngineSetup
from kvhub.testing.engine_soak import Soak
from kvhub.testing.engine_stage import Stand
from kvhub.testing.engine_tap import Tap
from kvhub.testing.fake_engine import BLOCK_TOKENS, CHUNK_TOKENS, FakeEngine
from kvhub.testing.stage import Traces
from kvhub.types import Batch, Completion, Outcome

SMALL = EngineSetup(blocks=40, step_tokens=48)
"""Two of the longest requests fill it."""
OTHER = EngineSetup(blocks=40, step_tokens=20, prefix_cache=False, drafts=2, layout="other")
"""A decode engine that guesses ahead, packs its KV differently and caches nothing itself."""


def sockets() -> int:
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return sum(str(link.readlink()).startswith("socket:") for link in links)


@pytest.fixture
def stand(registry: Registry, tmp_path: Path) -> Iterator[Stand]:
    seeds = itertools.count()

    def factory(config: Mapping[str, Any] | None, role: str, setup: EngineSetup) -> FakeEngine:
        return FakeEngine(config, role, setup, registry=registry, late=True, seed=next(seeds))

    stand = Stand(
        factory, {"use": "nfs", "root": str(tmp_path)}, {"use": "direct"},
        block=BLOCK_TOKENS, chunk=CHUNK_TOKENS, vocabulary=60_000, patience=30.0,
    )  # fmt: skip
    yield stand
    stand.close()


def pair(stand: Stand, decoding: EngineSetup = SMALL, **config: Any) -> tuple[FakeEngine, FakeEngine]:
    deployment = stand.deployment() | config
    # Nobody collects what was promised to a client that hangs up between the legs.
    deployment["limits"] = {**deployment["limits"], "lease": "1s"}
    prefill, decode = stand.open(deployment, "prefill", SMALL), stand.open(deployment, "decode", decoding)
    assert isinstance(prefill, FakeEngine) and isinstance(decode, FakeEngine)
    return prefill, decode


def play(
    stand: Stand, prefill: EngineDriver, decode: EngineDriver, requests: int, seed: int, **more: Any
) -> Counter[str]:
    """A soak that ends at the baseline; what happened."""
    soak = Soak(
        prefill, decode, lambda prompt, wanted: stand.expected(prompt, wanted), requests, seed,
        patience=20.0 + requests / 10, **more,
    )  # fmt: skip
    told = soak.run()
    stand.rest(prefill, decode)
    told["preempted"] = prefill.preemptions + decode.preemptions
    for driver in (prefill, decode):
        assert driver.hub.reports.total("pump_errors") == 0
        assert driver.hub.reports.total("hit_tokens") <= driver.hub.reports.total("prompt_tokens")
    return told


@pytest.mark.parametrize(("seed", "decoding"), [(1, SMALL), (2, OTHER)])
def test_500_requests_are_answered_right_and_leave_nothing(
    stand: Stand, tmp_path: Path, seed: int, decoding: EngineSetup
) -> None:
    traces, before = Traces(), sockets()
    told = play(stand, *pair(stand, decoding), 500, seed)
    stand.close()
    traces.gone()
    assert sockets() == before
    assert [path for path in tmp_path.rglob(".tmp/**/*") if path.is_file()] == [], "temporary files are left"
    assert told["preempted"] >= 50 and told["promised"] >= 100 and told["answered"] >= 350, told
    assert {"aborted while loading", "aborted while running", "aborted while waiting"} <= set(told), told


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 20))
def test_5000_requests(stand: Stand, seed: int) -> None:
    told = play(stand, *pair(stand, OTHER if seed % 2 else SMALL), 5000, seed)
    assert told["preempted"] >= 500 and told["answered"] >= 3500, told


class Chaos:
    """Members and copies that fail now and then, in every way that is no lie."""

    def __init__(self, seed: int, chance: float) -> None:
        self._dice = random.Random(seed)
        self.chance = chance
        self.done: Counter[str] = Counter()

    def strikes(self, what: str) -> bool:
        struck = self._dice.random() < self.chance
        self.done[what] += struck
        return struck

    def meddle(self, engine: FakeEngine) -> None:
        engine.copier.refuses = lambda copy: self.strikes("copy")
        for name, member in engine.hub.members.items():
            if not member.capabilities.arena:
                Tap(engine.hub, name).change = self._change

    def _change(self, batch: Batch, done: Completion) -> Completion:
        outcomes, lengths = list(done.outcomes), list(done.lengths)
        for at in range(len(outcomes)):
            if self.strikes(batch.op.name):
                outcomes[at] = self._dice.choice((Outcome.FAILED, Outcome.LATE, Outcome.MISS, Outcome.FULL))
                if lengths:
                    lengths[at] = 0
        return attrs.evolve(done, outcomes=tuple(outcomes), lengths=tuple(lengths))


@pytest.mark.parametrize("seed", [5, 6])
def test_members_and_copies_may_fail_at_any_time(stand: Stand, seed: int) -> None:
    prefill, decode = pair(stand)
    chaos = Chaos(seed, 0.08)
    chaos.meddle(prefill)
    chaos.meddle(decode)
    told = play(stand, prefill, decode, 300, seed)
    assert told["answered"] >= 200, told
    assert {"copy", "FIND", "LOAD", "SAVE"} <= set(chaos.done), chaos.done


@pytest.mark.parametrize("seed", [7])
def test_an_arena_of_a_few_slots(stand: Stand, seed: int) -> None:
    stores = {"host": {"use": "host", "capacity": "24KiB"}, "pool": dict(stand.pool)}
    prefill, decode = pair(stand, stores=stores)
    told = play(stand, prefill, decode, 300, seed)
    assert told["answered"] >= 200 and prefill.hub.arena.region.slots == 6


def test_the_comparison_can_fail(stand: Stand) -> None:
    """The negative control: with damaged bytes in the arena the same soak does not pass."""
    prefill, decode = pair(stand)
    decode.copier.before_forward = _damaging(decode)  # type: ignore[method-assign]
    with pytest.raises(AssertionError, match="were answered with"):
        play(stand, prefill, decode, 500, 1)
    for engine in (prefill, decode):
        for name in list(engine.queue.jobs):
            engine.abort(name)


def _damaging(engine: FakeEngine) -> Any:
    """Flips one bit of every slot that is about to be loaded from."""
    whole = engine.copier.before_forward

    def before_forward(plan: Any) -> None:
        for load in plan.loads:
            for slot in load.copy.slots:
                engine.hub.arena.region.slot(slot)[0] ^= 1
        whole(plan)

    return before_forward
