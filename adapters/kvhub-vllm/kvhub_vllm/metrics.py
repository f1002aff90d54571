"""The hub's counters as vLLM's connector statistics: logged by vLLM and exported on its /metrics."""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

_SEPARATOR = "|"
EXPORTED = {
    "prompt_tokens": ("kvhub:prompt_tokens_total", "Prompt tokens of requests that kvhub saw", ()),
    "hit_tokens": (
        "kvhub:hit_tokens_total",
        "Prompt tokens not computed, once each, by where they came from",
        ("source",),
    ),
    "generated_hit_tokens": ("kvhub:generated_hit_tokens_total", "Hit tokens that a decode had generated", ("source",)),
    "streamed_chunks": ("kvhub:streamed_chunks_total", "Chunks that peers pulled before their prompt was done", ()),
    "bytes": ("kvhub:bytes_total", "Payload bytes moved by members", ("member", "direction")),
    "faults": ("kvhub:faults_total", "Chunks that a member failed to move, by reason", ("member", "reason")),
    "declined": ("kvhub:declined_total", "Chunks not asked for, by the member that is slower", ("member", "reason")),
    "demotions": ("kvhub:demotions_total", "Chunks written back before the host tier lost them", ("member",)),
    "demotions_lost": ("kvhub:demotions_lost_total", "Chunks lost before they were written back", ("member",)),
    "member_changes": (
        "kvhub:member_changes_total",
        "Members kept out (down) and let in again (up)",
        ("member", "state"),
    ),
}
"""Counter of the hub -> (metric, help, labels); the labels are filled from member and reason, in that order."""


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
