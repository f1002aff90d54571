"""A directory store on a file system that fails on demand."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from faultfs.mount import Faults, why_not
from kvhub.testing.driver import Driver
from kvhub.testing.region import make_context
from kvhub.types import Key

if find_spec("kvhub_nfs") is None:
    sys.path.insert(0, str(Path(__file__).parents[2] / "plugins" / "kvhub-nfs"))

from kvhub_nfs import DirectoryStore


class Pool(Driver):
    """One hub's store on the mount, and its counters."""

    def __init__(self, root: Path, **options: object) -> None:
        self.counts: Counter[str] = Counter()
        context = make_context("pool", report=lambda name, count: self.counts.update({name: count} if count else {}))
        super().__init__(DirectoryStore(DirectoryStore.Config(root=root, **options), context))
        self._home = context.namespace.hex()[:32]

    def stored(self, faults: Faults, key: Key) -> bytes | None:
        """A chunk's payload as it lies below the mount."""
        name = key.hex()
        path = faults.backing / self._home / name[:2] / name[2:4] / f"{name}.kv"
        return path.read_bytes()[4096:] if path.exists() else None

    def unfinished(self, faults: Faults) -> list[Path]:
        return [path for path in (faults.backing / self._home / ".tmp").rglob("*") if path.is_file()]


@pytest.fixture
def faults(tmp_path: Path) -> Iterator[Faults]:
    if reason := why_not():
        pytest.skip(f"no FUSE file systems here: {reason}")
    made = Faults(tmp_path)
    yield made
    made.close()


@pytest.fixture
def open_pool(faults: Faults) -> Iterator[Callable[..., Pool]]:
    opened: list[Pool] = []

    def open_pool(**options: object) -> Pool:
        opened.append(Pool(faults.root, **options))
        opened[-1].attach()
        return opened[-1]

    yield open_pool
    faults.clear()
    for pool in opened:
        pool.close()
