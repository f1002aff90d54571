"""Each seeded fault is caught by the law that is there for it: the laws are not hollow."""

from __future__ import annotations

import inspect
import itertools
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kvhub.plugins import Registry
from kvhub.testing import EngineContract
from kvhub.testing.engine_driver import EngineSetup
from kvhub.testing.engine_stage import Stand
from kvhub.testing.fake_engine import BLOCK_TOKENS, CHUNK_TOKENS, FakeEngine
from kvhub.testing.guard import laws_of

sys.path.insert(0, str(Path(__file__).parent))
from engine_mutants import MUTANTS, Mutant

_numbers = itertools.count()
LAWS = laws_of(EngineContract)


class Bench(EngineContract):
    """Not collected: its laws are called one by one."""

    __test__ = False


def run(registry: Registry, law: str, *, late: bool, arguments: tuple[tuple[str, Any], ...]) -> None:
    """Run one law with little patience; raises what it raises."""

    def factory(config: Mapping[str, Any] | None, role: str, setup: EngineSetup) -> FakeEngine:
        return FakeEngine(config, role, setup, registry=registry, late=late)

    stand = Stand(
        factory, {"use": "memory", "name": f"mutants-{next(_numbers)}"}, {"use": "direct"},
        block=BLOCK_TOKENS, chunk=CHUNK_TOKENS, vocabulary=60_000, patience=1.5,
    )  # fmt: skip
    try:
        LAWS[law](Bench(), stand, **dict(arguments))
    finally:
        for driver in stand.opened:
            # A broken engine would only wait at its end.
            driver.hub.close(grace=0.0)
        stand.close()


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_a_seeded_fault_is_caught(mutant: Mutant, registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [name for name in LAWS if mutant.law in name]
    assert len(found) == 1, f"{mutant.law} is {found}"
    run(registry, found[0], late=mutant.late, arguments=mutant.arguments)
    changed, original = mutant.build(), inspect.getattr_static(mutant.owner, mutant.name)
    monkeypatch.setattr(mutant.owner, mutant.name, changed)
    for module in [module for name, module in sys.modules.items() if name.startswith("kvhub.")]:
        if vars(module).get(mutant.name) is original:
            monkeypatch.setattr(module, mutant.name, changed)
    with pytest.raises((Exception, pytest.fail.Exception)):
        run(registry, found[0], late=mutant.late, arguments=mutant.arguments)


def test_there_are_enough_of_them() -> None:
    assert len(MUTANTS) >= 30
    assert len({str(mutant) for mutant in MUTANTS}) == len(MUTANTS)
