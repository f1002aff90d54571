"""The store contract, on a directory whose chunks are compressed."""

from __future__ import annotations

import pytest

from kvhub.testing.store import StoreContract
from kvhub_zstd import ZstdCodec, ZstdConfig


class Always(ZstdCodec):
    """The contract's payloads are noise, which no codec makes smaller: here they are encoded all the same."""

    least_ratio = 0.0


class TestCompressed(StoreContract):
    @pytest.fixture
    def member_factory(self, files):
        return lambda context: files.store(context, Always(ZstdConfig(), "zstd"))

    @pytest.fixture
    def medium(self, files):
        return files
