"""Engines that this adapter was not made for are refused at start, naming what differs."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs the engine environment: make engine")

import vllm

from kvhub.errors import ConfigError
from kvhub_vllm import VERSIONS, VllmEngine, register
from kvhub_vllm.connector import KvhubConnector
from kvhub_vllm.versions import RELIED_ON, TESTED, check_version, differences

pytestmark = pytest.mark.vllm


def test_the_installed_engine_fits() -> None:
    assert check_version(KvhubConnector, allow_untested=False) == f"vllm {vllm.__version__}"
    assert VllmEngine.installed()
    assert f">={TESTED[0][0]}.{TESTED[0][1]},<{TESTED[1][0]}.{TESTED[1][1]}" == VERSIONS


@pytest.mark.parametrize("version", ["99.0", "0.33.0", "0.26.9", "dev"])
def test_E09_an_untested_version_is_refused_unless_allowed(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(vllm, "__version__", version)
    with pytest.raises(ConfigError, match=rf"(?s)vLLM {version} is outside the range .*allow_untested"):
        check_version(KvhubConnector, allow_untested=False)
    assert check_version(KvhubConnector, allow_untested=True) == f"vllm {version}"


def test_E09_another_API_is_refused_with_the_difference() -> None:
    real = KvhubConnector.__mro__[1]

    def request_finished(self: Any, request: Any, block_ids: Any, outcome: Any) -> None: ...

    fields = {name: getattr(real, name) for name in RELIED_ON}
    other = type("OtherBase", (), {**fields, "request_finished": request_finished, "wait_for_save": None})
    del other.wait_for_save  # type: ignore[attr-defined]
    told = differences(other)
    assert any("OtherBase.wait_for_save is gone" in line for line in told)
    assert any("request_finished(request, block_ids, outcome)" in line for line in told)
    assert differences(real) == []


def test_the_entry_point_registers_once() -> None:
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    register()
    register()
    assert KVConnectorFactory.get_connector_class_by_name("KvhubConnector") is KvhubConnector


@pytest.mark.parametrize(
    ("extra", "told"),
    [
        ({}, r"(?s)config: required.*role: required"),
        ({"config": "x", "role": "both", "rolle": 1}, "rolle: unknown; known are config, role, allow_untested"),
    ],
)
def test_options_are_checked(extra: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        KvhubConnector._check(extra)
