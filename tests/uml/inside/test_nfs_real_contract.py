"""The store contract on a real NFS mount."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvhub.testing.files import ChunkFiles
from kvhub.testing.store import StoreContract
from kvhub_nfs import DirectoryStore


class TestOnNfs(StoreContract):
    patience = 60.0

    @pytest.fixture
    def member_factory(self, tmp_path: Path):
        return lambda context: DirectoryStore(DirectoryStore.Config(root=tmp_path), context)

    @pytest.fixture
    def medium(self, tmp_path: Path) -> ChunkFiles:
        return ChunkFiles(tmp_path)
