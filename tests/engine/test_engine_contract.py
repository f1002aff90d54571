"""The fake engine under the engine laws: over memory, over directories, with copies as late as they may be."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from kvhub.plugins import Registry
from kvhub.testing import EngineContract
from kvhub.testing.engine_driver import DriverFactory
from kvhub.testing.fake_engine import OTHER_LAYOUT, FakeEngine
from kvhub.testing.fake_engine_members import DirectPlugin, MemoryPlugin, MemoryStore

_numbers = itertools.count()


def registry() -> Registry:
    made = Registry()
    made.add("memory", MemoryPlugin())
    made.add("direct", DirectPlugin())
    return made


REGISTRY = registry()


class OverMemory:
    @pytest.fixture
    def pool(self) -> Iterator[Mapping[str, Any]]:
        name = f"contract-{next(_numbers)}"
        yield {"use": "memory", "name": name}
        for key in [key for key in MemoryStore.objects if key.startswith(f"{name} ")]:
            del MemoryStore.objects[key]

    @pytest.fixture
    def wire(self) -> Mapping[str, Any]:
        return {"use": "direct"}


class TestFakeEngine(OverMemory, EngineContract):
    @pytest.fixture
    def driver_factory(self) -> DriverFactory:
        return lambda config, role, setup: FakeEngine(config, role, setup, registry=REGISTRY)


class TestLateFakeEngine(OverMemory, EngineContract):
    @pytest.fixture
    def driver_factory(self) -> DriverFactory:
        return lambda config, role, setup: FakeEngine(
            config, role, setup, registry=REGISTRY, late=True, usual=OTHER_LAYOUT
        )
