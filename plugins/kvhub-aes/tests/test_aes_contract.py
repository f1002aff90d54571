"""The store contract, on a directory whose chunks are encrypted."""

from __future__ import annotations

import pytest

from kvhub.testing.store import StoreContract
from kvhub_aes import AesCodec, AesConfig, KeySource


class TestEncrypted(StoreContract):
    @pytest.fixture
    def member_factory(self, files, monkeypatch):
        monkeypatch.setenv("KV_KEY", "11" * 32)
        codec = AesCodec(AesConfig(KeySource("KV_KEY")), "secret")
        return lambda context: files.store(context, codec)

    @pytest.fixture
    def medium(self, files):
        return files
