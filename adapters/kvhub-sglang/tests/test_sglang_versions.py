"""The installed SGLang is what the adapter relies on; another one is refused with a sentence that names both."""

from __future__ import annotations

from importlib import metadata
from types import SimpleNamespace
from typing import Any

import pytest
from harness.hicache import Start
from kvhub_sglang import SglangEngine, __version__, hooks, versions

from kvhub.errors import ConfigError

pytestmark = pytest.mark.sglang


def config() -> Any:
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig

    return HiCacheStorageConfig(0, 1, 0, 1, 0, 1, False, False, False, "tiny", extra_config={})


def test_the_installed_engine_is_what_is_relied_on() -> None:
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorage

    assert versions.differences(HiCacheStorage) == []
    found = versions.check_version(HiCacheStorage, config(), allow_untested=False)
    assert found == f"sglang {metadata.version('sglang')}"
    assert SglangEngine.installed() == metadata.version("sglang")


def test_every_hook_is_in_place_and_checked_by_signature() -> None:
    assert set(hooks.targets()) == set(versions.FUNCTIONS)
    assert versions.unhooked() == []


def test_the_hash_is_the_documented_chain() -> None:
    """SHA-256 over the digest before and the token ids, 4 bytes each; a change of it is told by the ledger, too."""
    from hashlib import sha256

    from sglang.srt.mem_cache.utils import get_hash_str

    tokens = list(range(32))
    first = sha256(b"".join(token.to_bytes(4, "little") for token in tokens[:16]))
    second = sha256(first.digest() + b"".join(token.to_bytes(4, "little") for token in tokens[16:]))
    assert get_hash_str(tokens, None, page_size=16) == [first.hexdigest(), second.hexdigest()]


def test_another_version_is_refused_by_both_names(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorage

    monkeypatch.setattr(versions.metadata, "version", lambda name: "0.6.1")
    with pytest.raises(ConfigError, match=rf"SGLang 0\.6\.1 is outside .* kvhub-sglang {__version__} .*>=0\.5\.23"):
        versions.check_version(HiCacheStorage, config(), allow_untested=False)
    assert versions.check_version(HiCacheStorage, config(), allow_untested=True) == "sglang 0.6.1"
    for version, good in (("0.5.23", True), ("0.5.23.post1", True), ("0.5.22", False), ("0.5.24", False), ("x", False)):
        assert versions.tested(version) is good


def test_another_interface_is_refused_whatever_its_version_says() -> None:
    class Other:
        def batch_get_v1(self, names: Any, host_indices: Any) -> None: ...

    told = versions.differences(Other)
    assert any("batch_get_v1(names, host_indices), expected (keys, host_indices, extra_info)" in one for one in told)
    assert any("batch_set_v1 is gone" in one for one in told)
    assert "HiCacheStorageConfig.tp_rank is gone" in versions._fields(SimpleNamespace())


def test_without_its_hooks_the_backend_does_not_start(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLANG_PLUGINS can leave the plugin out: then no page would ever be found, silently."""
    from sglang.srt.mem_cache import utils

    monkeypatch.setattr(utils, "get_hash_str", utils.get_hash_str.__wrapped__)
    with pytest.raises(ConfigError, match=r"get_hash_str is not hooked; .*SGLANG_PLUGINS"):
        start()
