"""The store contract through codecs in a row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvhub import MemberContext
from kvhub.codec import Codec
from kvhub.plugins import Registry
from kvhub.store import Store
from kvhub.testing.files import CodecFiles
from kvhub.testing.region import like_floats
from kvhub.testing.store import StoreContract
from kvhub_nfs import DirectoryStore


def codec(use: str, **options: object) -> Codec:
    registry = Registry()
    if use not in {found.name for found in registry.available()}:
        pytest.skip(f"the plugin {use} is not installed here")
    cls = registry.codec(use)
    return cls(cls.Config(**options), use)


class TestCompressedThenEncrypted(StoreContract):
    @pytest.fixture
    def medium(self, tmp_path: Path) -> Iterator[CodecFiles]:
        made = CodecFiles(tmp_path, lambda root, context: DirectoryStore(DirectoryStore.Config(root=root), context))
        with like_floats():
            yield made
        made.close()

    @pytest.fixture
    def member_factory(self, medium: CodecFiles, monkeypatch: pytest.MonkeyPatch) -> Callable[[MemberContext], Store]:
        from kvhub_aes import KeySource
        from kvhub_aes.tenants import TenantKeys

        monkeypatch.setenv("KV_KEY", "11" * 32)
        zstd, aes = codec("zstd"), codec("aes", key=KeySource("KV_KEY"), tenants=TenantKeys(derive=True))
        return lambda context: medium.store(context, zstd, aes)
