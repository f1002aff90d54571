"""`KvhubConnector`: kvhub as a KV connector on vLLM's public API.

    --kv-transfer-config '{"kv_connector": "KvhubConnector", "kv_connector_module_path": "kvhub_vllm.connector",
      "kv_role": "kv_both", "kv_load_failure_policy": "recompute",
      "kv_connector_extra_config": {"config": "/etc/kvhub.yaml", "role": "decode"}}'

All loads are asynchronous: a request waits for its KV while others run, and computes what could not be loaded.
The class does not claim vLLM's hybrid memory allocator, so that layers with a sliding window share one block table
with the others; models with other state are refused at start.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorWorkerMetadata,
)

from kvhub.errors import ConfigError
from kvhub.layout import Layout
from kvhub.plan import Report, StepPlan
from kvhub_vllm.facts import check_model
from kvhub_vllm.metrics import KvhubProm, KvhubStats
from kvhub_vllm.scheduler import SchedulerSide
from kvhub_vllm.versions import check_version
from kvhub_vllm.worker import WorkerSide

OPTIONS = ("config", "role", "allow_untested")


@dataclasses.dataclass
class PlanMetadata(KVConnectorMetadata):
    """A step's plan on its way to the worker."""

    plan: StepPlan


@dataclasses.dataclass
class ReportMetadata(KVConnectorWorkerMetadata):
    """A worker's report on its way back."""

    report: Report

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        """Reports of one step joined.  There is one worker; several steps may be joined when some were empty."""
        assert isinstance(other, ReportMetadata)
        mine, theirs = self.report, other.report
        return ReportMetadata(Report(mine.done + theirs.done, mine.failed + theirs.failed))


@dataclasses.dataclass
class LayoutMetadata(KVConnectorHandshakeMetadata):
    """What the worker's canary proved."""

    layout: str
    block_tokens: int


class KvhubConnector(KVConnectorBase_V1):
    """Thin: every method hands over to the scheduler's or the worker's half."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        extra = dict(self._kv_transfer_config.kv_connector_extra_config)
        self._check(extra)
        engine = check_version(type(self), allow_untested=bool(extra.get("allow_untested", False)))
        self.scheduler: SchedulerSide | None = None
        self.worker: WorkerSide | None = None
        if role == KVConnectorRole.SCHEDULER:
            self.scheduler = SchedulerSide(vllm_config, kv_cache_config, extra["config"], extra["role"], engine)
        else:
            self.worker = WorkerSide(vllm_config, kv_cache_config, engine)

    @staticmethod
    def _check(extra: dict[str, Any]) -> None:
        problems = [
            f"kv_connector_extra_config.{name}: unknown; known are {', '.join(OPTIONS)}"
            for name in extra
            if name not in OPTIONS and not name.startswith("_")
        ]
        problems += [
            f"kv_connector_extra_config.{name}: required ({what})"
            for name, what in (("config", "path of the kvhub YAML"), ("role", "prefill, decode or both"))
            if name not in extra
        ]
        if problems:
            raise ConfigError(problems, where="kvhub in vLLM")

    # -- scheduler -------------------------------------------------------------------------------------------------

    def on_new_request(self, request: Any) -> None:
        if self.scheduler is not None:
            self.scheduler.arrived(request)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        assert self.scheduler is not None
        return self.scheduler.matched(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        assert self.scheduler is not None
        self.scheduler.allocated(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        assert self.scheduler is not None
        return PlanMetadata(self.scheduler.step(scheduler_output))

    def update_connector_output(self, connector_output: Any) -> None:
        meta = getattr(connector_output, "kv_connector_worker_meta", None)
        if isinstance(meta, ReportMetadata) and self.scheduler is not None:
            self.scheduler.report(meta.report)

    def request_finished(self, request: Any, block_ids: Iterable[int]) -> tuple[bool, dict[str, Any] | None]:
        assert self.scheduler is not None
        return self.scheduler.finished(request, block_ids)

    def set_xfer_handshake_metadata(self, metadata: dict[int, Any]) -> None:
        self._open(metadata.values())

    def set_xfer_handshake_metadata_pp_aware(self, metadata: dict[tuple[int, int], Any]) -> None:
        self._open(metadata.values())

    def _open(self, told: Iterable[Any]) -> None:
        found = [meta for meta in told if isinstance(meta, LayoutMetadata)]
        if self.scheduler is not None and found:
            self.scheduler.open(Layout.parse(found[0].layout), found[0].block_tokens)

    def reset_cache(self) -> bool | None:
        return self.scheduler.reset() if self.scheduler is not None else None

    def has_pending_push_work(self) -> bool:
        return self.scheduler is not None and self.scheduler.busy()

    # -- worker ----------------------------------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        assert self.worker is not None
        self.worker.register(kv_caches)

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        if self.worker is None or self.worker.layout is None:
            return None
        return LayoutMetadata(self.worker.layout.text, self.worker.block_tokens)

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        super().bind_connector_metadata(connector_metadata)
        # Called before the forward pass in every version, unlike start_load_kv, which since 0.29 may come after it.
        if self.worker is not None and isinstance(connector_metadata, PlanMetadata):
            self.worker.before(connector_metadata.plan)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Loads start in `bind_connector_metadata`."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """No request runs before its loads have ended."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """All layers are read together, after the pass."""

    def wait_for_save(self) -> None:
        if self.worker is not None:
            self.worker.after()

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        return self.worker.finished() if self.worker is not None else (None, None)

    def get_block_ids_with_load_errors(self) -> set[int]:
        return self.worker.lost_blocks() if self.worker is not None else set()

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        report = self.worker.take_report() if self.worker is not None else None
        return ReportMetadata(report) if report is not None else None

    # -- both ------------------------------------------------------------------------------------------------------

    def get_kv_connector_stats(self) -> KvhubStats | None:
        return self.scheduler.stats() if self.scheduler is not None else None

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: Any) -> str | None:
        # No layout is asked for: the kernels convert.  But vLLM calls this before it plans the KV of a model, which is
        # the last moment to refuse one whose state is no KV; it would otherwise stop with a sentence of its own.
        check_model(vllm_config)
        return None

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KvhubStats:
        return KvhubStats(data=data or {})

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: dict[int, list[object]]
    ) -> KvhubProm:
        return KvhubProm(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def shutdown(self) -> None:
        if self.scheduler is not None:
            self.scheduler.close()
        if self.worker is not None:
            self.worker.close()
