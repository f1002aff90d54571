"""Plugins of the engine tests: those of this process, and the directory store of the checkout if there is no other."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from contracts.reference_transport import ReferenceTransport

from kvhub.hookspecs import hookimpl
from kvhub.plugins import Registry
from kvhub.testing.fake_engine_members import DirectPlugin, MemoryPlugin
from kvhub.transport import Transport

if importlib.util.find_spec("kvhub_nfs") is None:
    sys.path.insert(0, str(Path(__file__).parents[2] / "plugins" / "kvhub-nfs"))


class TcpPlugin:
    @hookimpl
    def kvhub_register_transports(self) -> tuple[type[Transport], ...]:
        return (ReferenceTransport,)


@pytest.fixture(scope="session")
def registry() -> Registry:
    """`use: memory`, `use: direct`, `use: tcp` and `use: nfs`."""
    import kvhub_nfs

    made = Registry()
    made.add("memory", MemoryPlugin())
    made.add("direct", DirectPlugin())
    made.add("nfs", kvhub_nfs)
    made.add("tcp", TcpPlugin())
    return made
