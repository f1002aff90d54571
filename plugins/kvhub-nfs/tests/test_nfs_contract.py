"""The store contract, on a directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvhub.testing.store import StoreContract
from kvhub.types import Key, MemberContext
from kvhub_nfs import DirectoryStore, LocalStore, files, store


class Files:
    """The test's hand on the stored files."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def path(self, context: MemberContext, key: Key) -> Path:
        name = key.hex()
        return self._root / context.namespace.hex()[:32] / name[:2] / name[2:4] / f"{name}.kv"

    def read(self, context: MemberContext, key: Key) -> bytes | None:
        path = self.path(context, key)
        return path.read_bytes() if path.exists() else None

    def write(self, context: MemberContext, key: Key, data: bytes) -> None:
        path = self.path(context, key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


class TestDirectoryStore(StoreContract):
    @pytest.fixture
    def member_factory(self, tmp_path: Path):
        return lambda context: DirectoryStore(DirectoryStore.Config(root=tmp_path), context)

    @pytest.fixture
    def medium(self, tmp_path: Path) -> Files:
        return Files(tmp_path)


class TestDirectReadsAndWrites(StoreContract):
    """Every file goes past the page cache, however small."""

    @pytest.fixture(autouse=True)
    def every_size(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        if not files.takes_direct(str(tmp_path / "probe")):
            pytest.skip(f"the file system of {tmp_path} takes no O_DIRECT")
        monkeypatch.setattr(store, "DIRECT_FROM", 0)

    @pytest.fixture
    def member_factory(self, tmp_path: Path):
        return lambda context: LocalStore(LocalStore.Config(root=tmp_path, io="direct"), context)

    @pytest.fixture
    def medium(self, tmp_path: Path) -> Files:
        return Files(tmp_path)


class TestLocalStoreWithFsync(StoreContract):
    @pytest.fixture
    def member_factory(self, tmp_path: Path):
        return lambda context: LocalStore(LocalStore.Config(root=tmp_path, workers=1, fsync=True), context)

    @pytest.fixture
    def medium(self, tmp_path: Path) -> Files:
        return Files(tmp_path)
