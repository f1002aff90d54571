"""The hub's counters as vLLM's connector statistics: logged by vLLM and exported on its /metrics."""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

from kvhub.exported import EXPORTED

_SEPARATOR = "|"


class KvhubStats(KVConnectorStats):
    """Counts since the last step, as `name|member|reason` -> amount."""

    data: dict[str, Any]

    def reset(self) -> None:
        self.data = {}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        for name, amount in other.data.items():
            self.data[name] = self.data.get(name, 0) + amount
        return self

    def reduce(self) -> dict[str, int | float]:
        return dict(sorted(self.data.items()))

    def is_empty(self) -> bool:
        return not self.data


class StatsTap:
    """Turns the hub's running totals into what was added since the last question."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str, str], int] = {}

    def take(self, counts: dict[tuple[str, str, str], int]) -> KvhubStats | None:
        """Statistics of what moved since the last call; None when nothing did."""
        data = {
            _SEPARATOR.join(label): amount - self._seen.get(label, 0)
            for label, amount in counts.items()
            if amount != self._seen.get(label, 0)
        }
        self._seen = counts
        return KvhubStats(data=data) if data else None


class KvhubProm(KVConnectorPromMetrics):
    """Prometheus counters, one family per exported counter."""

    def __init__(self, config: Any, types: Any, labelnames: list[str], per_engine: dict[int, list[object]]) -> None:
        super().__init__(config, types, labelnames, per_engine)
        self._families = {
            name: self._counter_cls(name=metric, documentation=text, labelnames=[*labelnames, *labels])
            for name, (metric, text, labels) in EXPORTED.items()
        }

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        for label, amount in transfer_stats_data.items():
            name, member, reason = label.split(_SEPARATOR)
            if name in self._families:
                values = (member, reason)[: len(EXPORTED[name][2])]
                self._families[name].labels(*self.per_engine_labelvalues[engine_idx], *values).inc(amount)
