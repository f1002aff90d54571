"""The fake engine under the engine laws: over memory and directories, copying at once or as late as it may."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest

from kvhub.plugins import Registry
from kvhub.testing import EngineContract
from kvhub.testing.engine_driver import DriverFactory
from kvhub.testing.engine_flow import FlowLaws
from kvhub.testing.fake_engine import LAYOUT, OTHER_LAYOUT, FakeEngine
from kvhub.testing.fake_engine_members import MemoryStore

_numbers = itertools.count()


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
    faults = "one"

    @pytest.fixture
    def driver_factory(self, registry: Registry) -> DriverFactory:
        return lambda config, role, setup: FakeEngine(config, role, setup, registry=registry)


class TestLateFakeEngine(OverMemory, EngineContract):
    """Copies happen steps later and in another order; blocks are packed as vLLM packs them on CPUs."""

    @pytest.fixture
    def driver_factory(self, registry: Registry) -> DriverFactory:
        return lambda config, role, setup: FakeEngine(
            config, role, setup, registry=registry, late=True, usual=OTHER_LAYOUT
        )


class TestFakeEngineOverDirectories(OverMemory, EngineContract):
    """With the store and the file system that a pool has."""

    @pytest.fixture
    def pool(self, tmp_path: Path) -> Mapping[str, Any]:
        return {"use": "nfs", "root": str(tmp_path)}

    @pytest.fixture
    def driver_factory(self, registry: Registry) -> DriverFactory:
        return lambda config, role, setup: FakeEngine(config, role, setup, registry=registry, late=True)


class TestFakeEngineOfOtherSizes(OverMemory, EngineContract):
    """Blocks and chunks of other sizes; its "other" layouts have blocks of another size, too."""

    block, chunk, patience = 8, 32, 20.0

    @pytest.fixture
    def driver_factory(self, registry: Registry) -> DriverFactory:
        usual = attrs.evolve(LAYOUT, block_tokens=self.block)
        return lambda config, role, setup: FakeEngine(config, role, setup, registry=registry, late=True, usual=usual)


class TestFlowOverTcp(FlowLaws):
    """The laws of several engines once more, with sockets between them and files behind them."""

    @pytest.fixture
    def pool(self, tmp_path: Path) -> Mapping[str, Any]:
        return {"use": "nfs", "root": str(tmp_path)}

    @pytest.fixture
    def wire(self) -> Mapping[str, Any]:
        return {"use": "tcp"}

    @pytest.fixture
    def driver_factory(self, registry: Registry) -> DriverFactory:
        return lambda config, role, setup: FakeEngine(config, role, setup, registry=registry, late=True)
