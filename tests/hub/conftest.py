"""Fixtures of the hub's tests: real hubs on real directories, their members wrapped in faults where a test says so."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

if find_spec("kvhub_nfs") is None:
    sys.path.insert(0, str(Path(__file__).parents[2] / "plugins" / "kvhub-nfs"))

from hub.rig import Rig


def own_threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("kvhub-")}


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """Hubs that are closed behind the test; each must have returned to its baseline, threads included."""
    before = own_threads()
    made = Rig(tmp_path)
    try:
        yield made
    finally:
        left = made.close()
    assert left == {}, "these were not given back"
    assert own_threads() - before == set()
