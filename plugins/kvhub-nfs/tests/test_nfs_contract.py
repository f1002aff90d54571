"""The store contract, on a directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvhub.testing.files import ChunkFiles
from kvhub.testing.store import StoreContract
from kvhub_nfs import DirectoryStore, LocalStore, files, store


class TestDirectoryStore(StoreContract):
    @pytest.fixture
    def member_factory(self, tmp_path: Path):
        return lambda context: DirectoryStore(DirectoryStore.Config(root=tmp_path), context)

    @pytest.fixture
    def medium(self, tmp_path: Path) -> ChunkFiles:
        return ChunkFiles(tmp_path)


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
    def medium(self, tmp_path: Path) -> ChunkFiles:
        return ChunkFiles(tmp_path)


class TestLocalStoreWithFsync(StoreContract):
    @pytest.fixture
    def member_factory(self, tmp_path: Path):
        return lambda context: LocalStore(LocalStore.Config(root=tmp_path, workers=1, fsync=True), context)

    @pytest.fixture
    def medium(self, tmp_path: Path) -> ChunkFiles:
        return ChunkFiles(tmp_path)
