"""The real copier, with its thread and its kernels, on the blocks of the fake engine: the engine laws once more."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch

from kvhub.plugins import Registry
from kvhub.testing import EngineContract
from kvhub.testing.engine_driver import DriverFactory
from kvhub.testing.fake_engine import FakeEngine
from kvhub.testing.fake_engine_members import DirectPlugin, MemoryPlugin, MemoryStore
from kvhub.testing.fake_engine_memory import BlockMemory
from kvhub_kernels import EngineBlocks
from kvhub_kernels.copier import Copier

_numbers = itertools.count()


def copier(memory: BlockMemory) -> Copier:
    """The fake engine's memory as an engine would hand it over: one tensor per layer, a block in dim 0."""
    layers = memory.layout.layers
    whole = torch.frombuffer(memory.data, dtype=torch.uint8).view(memory.blocks, layers, -1)
    return Copier(EngineBlocks([whole[:, layer] for layer in range(layers)], memory.told))


@pytest.fixture(scope="module")
def registry() -> Registry:
    made = Registry()
    made.add("memory", MemoryPlugin())
    made.add("direct", DirectPlugin())
    return made


class TestFakeEngineWithKernels(EngineContract):
    @pytest.fixture
    def pool(self) -> Iterator[Mapping[str, Any]]:
        name = f"kernels-{next(_numbers)}"
        yield {"use": "memory", "name": name}
        for key in [key for key in MemoryStore.objects if key.startswith(f"{name} ")]:
            del MemoryStore.objects[key]

    @pytest.fixture
    def wire(self) -> Mapping[str, Any]:
        return {"use": "direct"}

    @pytest.fixture
    def driver_factory(self, registry: Registry) -> DriverFactory:
        return lambda config, role, setup: FakeEngine(config, role, setup, registry=registry, copier=copier)
