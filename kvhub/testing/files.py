"""A hand on the chunk files of a directory (see docs/format.md), and such a directory behind a codec."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import attrs

from kvhub.codec import Codec, Codecs
from kvhub.store import Store
from kvhub.testing.driver import Driver
from kvhub.testing.region import make_context
from kvhub.types import Key, MemberContext


class ChunkFiles:
    """The medium that `StoreContract` asks for, where chunks are files of a directory."""

    def __init__(self, root: Path) -> None:
        self.root = root

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


class CodecFiles(ChunkFiles):
    """The same for tests of a codec; `build` makes the directory store, whose package a codec's tests name."""

    def __init__(self, root: Path, build: Callable[[Path, MemberContext], Store]) -> None:
        super().__init__(root)
        self.counts: dict[str, int] = {}
        self._build = build
        self._opened: list[Driver] = []

    def store(self, context: MemberContext, *codecs: Codec) -> Store:
        """A store of the contract's, with codecs that are applied in this order."""
        return self._build(self.root, attrs.evolve(context, codecs=Codecs(codecs)))

    def open(self, codecs: Codecs | None, *, slot_bytes: int = 1 << 20) -> Driver:
        """A store that is attached; `close` closes it."""
        context = make_context("pool", codecs=codecs, report=self._report)
        driver = Driver(self._build(self.root, context), slots=8, slot_bytes=slot_bytes)
        driver.attach()
        self._opened.append(driver)
        return driver

    def close(self) -> None:
        for driver in self._opened:
            driver.close()

    def _report(self, name: str, count: int) -> None:
        if count:
            self.counts[name] = self.counts.get(name, 0) + count
