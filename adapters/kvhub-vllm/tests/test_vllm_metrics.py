"""The hub's counters as vLLM's statistics."""

from __future__ import annotations

import pytest

pytest.importorskip("vllm", reason="needs the engine environment: make engine")

from prometheus_client import Counter, Gauge, Histogram

from kvhub_vllm.metrics import KvhubProm, KvhubStats, StatsTap

pytestmark = pytest.mark.vllm


def test_a_tap_gives_what_was_added() -> None:
    tap = StatsTap()
    first = tap.take({("hit_tokens", "host", ""): 5})
    assert first is not None and first.data == {"hit_tokens|host|": 5}
    assert tap.take({("hit_tokens", "host", ""): 5}) is None
    second = tap.take({("hit_tokens", "host", ""): 7, ("bytes", "pool", "load"): 3})
    assert second is not None and second.data == {"hit_tokens|host|": 2, "bytes|pool|load": 3}


def test_statistics_add_up_and_empty() -> None:
    one, other = KvhubStats(data={"a||": 1}), KvhubStats(data={"a||": 2, "b||": 3})
    assert one.aggregate(other).data == {"a||": 3, "b||": 3}
    assert not one.is_empty()
    one.reset()
    assert one.is_empty()


def test_F01_counters_reach_prometheus_with_their_labels() -> None:
    from types import SimpleNamespace

    from prometheus_client import REGISTRY

    config = SimpleNamespace(kv_transfer_config=None)
    kinds = {Counter: Counter, Gauge: Gauge, Histogram: Histogram}
    prom = KvhubProm(config, kinds, ["model_name", "engine"], {0: ["m", "0"]})
    prom.observe({"hit_tokens|host|": 5, "bytes|pool|load": 7, "find_done|pool|": 1})
    prom.observe({"hit_tokens|host|": 1})
    labels = {"model_name": "m", "engine": "0"}
    assert REGISTRY.get_sample_value("kvhub:hit_tokens_total", {**labels, "source": "host"}) == 6
    assert REGISTRY.get_sample_value("kvhub:bytes_total", {**labels, "member": "pool", "direction": "load"}) == 7
