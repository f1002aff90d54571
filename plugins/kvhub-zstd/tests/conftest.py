"""A directory store whose chunks pass through a codec, and a hand on its files."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest
from hypothesis import settings

from kvhub.codec import Codec, Codecs
from kvhub.testing.driver import Driver
from kvhub.testing.region import make_context
from kvhub.types import Key, MemberContext
from kvhub_nfs import DirectoryStore

# A machine that has other work to do is no fault.
settings.register_profile("kvhub", deadline=None)
settings.load_profile("kvhub")


class Files:
    """What `StoreContract` asks of a medium, and what tests of codecs ask besides."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.counts: dict[str, int] = {}
        self._opened: list[Driver] = []

    def store(self, context: MemberContext, codec: Codec) -> DirectoryStore:
        """A store of the contract's, with a codec."""
        return DirectoryStore(DirectoryStore.Config(root=self.root), attrs.evolve(context, codecs=Codecs(codec)))

    def open(self, codecs: Codecs | None, *, slot_bytes: int = 1 << 20) -> Driver:
        """A store that is attached; closed behind the test."""
        context = make_context("pool", codecs=codecs, report=self._report)
        driver = Driver(DirectoryStore(DirectoryStore.Config(root=self.root), context), slots=8, slot_bytes=slot_bytes)
        driver.attach()
        self._opened.append(driver)
        return driver

    def close(self) -> None:
        for driver in self._opened:
            driver.close()

    def _report(self, name: str, count: int) -> None:
        if count:
            self.counts[name] = self.counts.get(name, 0) + count

    def path(self, context: MemberContext, key: Key) -> Path:
        name = key.hex()
        return self.root / context.namespace.hex()[:32] / name[:2] / name[2:4] / f"{name}.kv"

    def read(self, context: MemberContext, key: Key) -> bytes | None:
        path = self.path(context, key)
        return path.read_bytes() if path.exists() else None

    def write(self, context: MemberContext, key: Key, data: bytes) -> None:
        path = self.path(context, key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


@pytest.fixture
def files(tmp_path: Path):
    made = Files(tmp_path)
    yield made
    made.close()
