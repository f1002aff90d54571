"""500 requests with aborts, preemptions and shared prefixes: right answers, and nothing left behind."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from kvhub.plugins import Registry
from kvhub.testing.engine_driver import EngineSetup
from kvhub.testing.engine_soak import Soak
from kvhub.testing.engine_stage import Stand
from kvhub.testing.fake_engine import BLOCK_TOKENS, CHUNK_TOKENS, FakeEngine
from kvhub.testing.stage import Traces

SMALL = EngineSetup(blocks=40, step_tokens=48)
"""Two of the longest requests fill it."""
_numbers = itertools.count()


def _sockets() -> int:
    return sum(
        str(link.readlink()).startswith("socket:") for link in Path("/proc/self/fd").iterdir() if link.is_symlink()
    )


@pytest.fixture
def stand(registry: Registry) -> Iterator[Stand]:
    seeds = itertools.count()

    def factory(config: Mapping[str, Any] | None, role: str, setup: EngineSetup) -> FakeEngine:
        return FakeEngine(config, role, setup, registry=registry, late=True, seed=next(seeds))

    stand = Stand(
        factory, {"use": "memory", "name": f"soak-{next(_numbers)}"}, {"use": "direct"},
        block=BLOCK_TOKENS, chunk=CHUNK_TOKENS, vocabulary=60_000, patience=30.0,
    )  # fmt: skip
    yield stand
    stand.close()


def play(stand: Stand, requests: int, seed: int, *, longest: int = 60) -> tuple[Counter[str], int]:
    """A soak on a pair of small engines that starts and ends at the baseline; what happened, and preemptions."""
    config = stand.deployment()
    # Nobody collects what was promised to a client that hangs up between the legs.
    config["limits"] = {**config["limits"], "lease": "1s"}
    prefill, decode = stand.open(config, "prefill", SMALL), stand.open(config, "decode", SMALL)
    told = Soak(
        prefill, decode, lambda prompt, wanted: stand.expected(prompt, wanted), requests, seed, longest=longest,
        patience=20.0 + requests / 10,
    ).run()  # fmt: skip
    stand.rest(prefill, decode)
    return told, prefill.preemptions + decode.preemptions


@pytest.mark.parametrize("seed", [1, 2])
def test_500_requests_are_answered_right_and_leave_nothing(stand: Stand, tmp_path: Path, seed: int) -> None:
    stand.pool = {"use": "nfs", "root": str(tmp_path)}
    traces, sockets = Traces(), _sockets()
    told, preemptions = play(stand, 500, seed)
    for driver in stand.opened:
        assert driver.hub.reports.total("pump_errors") == 0
    stand.close()
    traces.gone()
    assert _sockets() == sockets
    unfinished = [path for path in tmp_path.rglob(".tmp/**/*") if path.is_file()]
    assert unfinished == [], "temporary files are left"
    print(dict(told), "preemptions:", preemptions)
    assert preemptions >= 50 and told["promised"] >= 100 and told["answered"] >= 350, told
    assert {"aborted while loading", "aborted while running", "aborted while waiting"} <= set(told), told
