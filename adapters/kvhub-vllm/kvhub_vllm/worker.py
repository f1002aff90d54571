"""The worker's half: proves the layout once, then copies between KV blocks and arena slots."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any

import structlog
import torch

from kvhub.errors import LayoutError
from kvhub.layout import Layout
from kvhub.plan import Report, StepPlan
from kvhub_kernels import EngineBlocks
from kvhub_kernels.copier import Copier, Ended
from kvhub_vllm.canary import prove
from kvhub_vllm.facts import specs

_log = structlog.get_logger("kvhub.vllm")


class WorkerSide:
    """One per worker process."""

    def __init__(self, config: Any, kv_cache_config: Any, engine: str) -> None:
        self._vllm = config
        self._group = kv_cache_config.kv_cache_groups[0] if kv_cache_config.kv_cache_groups else None
        self._engine = engine
        self._copier: Copier | None = None
        self.layout: Layout | None = None
        self._last: Ended | None = None
        self._report: tuple[list[int], list[int]] = ([], [])
        self._lost: set[int] = set()

    def register(self, kv_caches: Mapping[str, Any]) -> None:
        """Take the engine's KV tensors, one per layer, and find out what their blocks mean."""
        names = list(kv_caches)
        for name, tensor in kv_caches.items():
            if not isinstance(tensor, torch.Tensor):
                raise LayoutError(
                    f"KV of layer {name} is {type(tensor).__name__}, not one tensor; run it without kvhub"
                )
        spec = specs(self._group)[0]
        layers = self._vllm.compilation_config.static_forward_context
        proofs = set()
        shapes: dict[tuple[tuple[int, ...], torch.dtype], str] = {}
        for name in names:
            shapes.setdefault((tuple(kv_caches[name].shape), kv_caches[name].dtype), name)
        if len(shapes) > 1:
            raise LayoutError(
                f"layers have KV of different shapes ({', '.join(str(shape) for shape, _ in shapes)}), which one chunk "
                f"cannot hold; run it without kvhub"
            )
        tag = f"{self._engine} {platform.machine()} {kv_caches[names[0]].dtype}"
        for name in {names[0], names[-1]}:
            proofs.add(prove(layers[name], kv_caches[name], spec, len(names), tag=tag))
        if len({proof.layout for proof in proofs}) > 1:
            raise LayoutError("the first and the last layer pack their KV differently; run it without kvhub")
        proof = proofs.pop()
        self.layout = proof.layout
        if proof.why_opaque:
            _log.warning(
                "layout.opaque", why=proof.why_opaque, so="whole blocks only, shared with equal engines only, no tails"
            )
        self._copier = Copier(EngineBlocks([kv_caches[name] for name in names], self.layout))

    @property
    def block_tokens(self) -> int:
        assert self.layout is not None
        return self.layout.block_tokens

    def before(self, plan: StepPlan) -> None:
        """Before the forward pass."""
        if self._copier is not None:
            self._copier.before_forward(plan)

    def after(self) -> None:
        """After it."""
        if self._copier is not None:
            self._copier.after_forward()

    def finished(self) -> tuple[set[str] | None, set[str] | None]:
        """`get_finished`: requests whose blocks are free, requests whose loads are over."""
        if self._copier is None:
            return None, None
        ended = self._copier.ended()
        self._report[0].extend(ended.report.done)
        self._report[1].extend(ended.report.failed)
        self._lost |= ended.failed_blocks
        return set(ended.sent) or None, set(ended.received) or None

    def lost_blocks(self) -> set[int]:
        """`get_block_ids_with_load_errors`."""
        lost, self._lost = self._lost, set()
        return lost

    def take_report(self) -> Report | None:
        """Copies that ended since the last call, for the scheduler's half."""
        done, failed = self._report
        self._report = ([], [])
        return Report(tuple(done), tuple(failed)) if done or failed else None

    def close(self) -> None:
        if self._copier is not None:
            self._copier.close()
