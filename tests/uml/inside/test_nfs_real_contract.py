"""The store contract on a real NFS mount."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvhub.testing.store import StoreContract
from kvhub.types import Key, MemberContext
from kvhub_nfs import DirectoryStore


class Files:
    """The test's hand on the stored files, by the same mount."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def _path(self, context: MemberContext, key: Key) -> Path:
        name = key.hex()
        return self._root / context.namespace.hex()[:32] / name[:2] / name[2:4] / f"{name}.kv"

    def read(self, context: MemberContext, key: Key) -> bytes | None:
        path = self._path(context, key)
        return path.read_bytes() if path.exists() else None

    def write(self, context: MemberContext, key: Key, data: bytes) -> None:
        path = self._path(context, key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


class TestOnNfs(StoreContract):
    patience = 60.0

    @pytest.fixture
    def member_factory(self, tmp_path: Path):
        return lambda context: DirectoryStore(DirectoryStore.Config(root=tmp_path), context)

    @pytest.fixture
    def medium(self, tmp_path: Path) -> Files:
        return Files(tmp_path)
