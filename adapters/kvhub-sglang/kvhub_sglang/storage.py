"""`KvhubStorage`: kvhub as a HiCache storage backend, loaded by SGLang's own dynamic loading.

    --enable-hierarchical-cache --page-size 64 --hicache-storage-backend dynamic
    --hicache-storage-backend-extra-config '{"backend_name": "kvhub", "module_path": "kvhub_sglang.storage",
      "class_name": "KvhubStorage", "interface_v1": 1, "config": "/etc/kvhub.yaml", "role": "both"}'

One hub per process, that is per rank.  Whatever goes wrong behind these methods is a miss, or a page that is not kept:
they return what the engine expects and raise nothing, but at start.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import structlog
import torch
from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, PoolTransferResult

from kvhub.config import load
from kvhub.engine import EngineFacts
from kvhub.errors import ConfigError, KvhubError
from kvhub.hub import Hub
from kvhub.keys import Context
from kvhub.plugins import Registry
from kvhub_sglang import hooks
from kvhub_sglang.adapters import Adapters
from kvhub_sglang.export import Export
from kvhub_sglang.facts import WHERE, Model, check_engine, check_pool, check_role, namespace, read_model
from kvhub_sglang.ledger import Ledger, Page
from kvhub_sglang.metrics import Meter
from kvhub_sglang.pages import HostPages
from kvhub_sglang.traffic import Traffic
from kvhub_sglang.versions import check_version

OPTIONS = ("config", "role", "allow_untested")
THEIRS = (
    "backend_name", "module_path", "class_name", "interface_v1", "allocator", "prefetch_threshold",
    "prefetch_timeout_base", "prefetch_timeout_per_ki_token", "hicache_storage_pass_prefix_keys",
)  # fmt: skip
"""What SGLang reads of the same JSON and leaves in it; the last four only where its decode offload hands the JSON over
as it is."""
KV = "kv"
_log = structlog.get_logger("kvhub.sglang")
T = TypeVar("T")


class KvhubStorage(HiCacheStorage):
    """What HiCache calls.  The hub opens once the host pools are registered."""

    ledger: Ledger

    def __init__(self, storage_config: Any, kwargs: Any = None) -> None:
        self._given = storage_config
        extra = dict(storage_config.extra_config or {})
        self._check(extra)
        self._engine = check_version(
            HiCacheStorage, storage_config, allow_untested=bool(extra.get("allow_untested", False))
        )
        self._role = str(extra["role"])
        self._registry = Registry()
        self._config = load(extra["config"], self._registry, role=self._role)
        if self._role not in self._config.roles:
            raise ConfigError(
                [f"role: {self._role} is not in {self._config.path}; found {', '.join(self._config.roles)}"],
                where=WHERE,
            )
        transports = [name for name, member in self._config.members.items() if member.kind == "transport"]
        check_role(self._config.roles[self._role], transports)
        if not extra.get("interface_v1"):
            _log.warning("storage.slow", why="interface_v1 is not set: every page is copied once more; set it to 1")
        self._model: Model = read_model()
        self._adapters = Adapters()
        self._traffic: Traffic | None = None
        self._meter = Meter()
        self._export: Export | None = None

    @staticmethod
    def _check(extra: dict[str, Any]) -> None:
        where = "--hicache-storage-backend-extra-config"
        problems = [
            f"{where}.{name}: unknown; known are {', '.join(OPTIONS)}"
            for name in extra
            if name not in OPTIONS and name not in THEIRS
        ]
        problems += [
            f"{where}.{name}: required ({what})"
            for name, what in (("config", "path of the kvhub YAML"), ("role", "prefill, decode or both"))
            if name not in extra
        ]
        if problems:
            raise ConfigError(problems, where=WHERE)

    # -- start and end ---------------------------------------------------------------------------------------------

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        self.mem_pool_host = mem_pool_host

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        check_pool(str(host_pool_name))
        super().register_mem_host_pool_v2(host_pool, host_pool_name)

    def on_host_pools_registered(self) -> None:
        """Open the hub.  Raises KvhubError; the attach, and with it the engine's start, then fails."""
        pool, model = self.mem_pool_host, self._model
        pages = HostPages(pool)
        chunk_tokens = self._config.chunk_tokens
        if self._config.origin.get("chunk_tokens", "default") == "default":
            chunk_tokens = pages.page_tokens
        check_engine(model, self._given, pages=pages.page_tokens, chunk_tokens=chunk_tokens)
        layers = int(model.config.get("num_hidden_layers") or pages.layout.layers)
        space = namespace(model, self._given, pages.layout, layers, self._config.model, chunk_tokens)
        facts = EngineFacts(self._engine, self._role, space, pages.layout, pages.page_tokens, model.longest)
        self._traffic = Traffic(Hub.open(self._config, facts, registry=self._registry), pages)
        # The hub's namespace, which a lossy codec makes its own.
        root = self._traffic.hub.facts.namespace
        self.ledger = Ledger(lambda context: context.root(root), pages.page_tokens, model.vocabulary)
        if self._given.enable_storage_metrics:
            self._meter.enable(pages.layout.block_bytes)
            self._export = Export(self._traffic.hub.reports.counts)
        for number, name, path in model.adapters:
            self._adapters.loaded(number, name, path)
        hooks.listen(self)

    @property
    def hub(self) -> Hub:
        """The hub of this process.  Raises KvhubError before it is open."""
        if self._traffic is None:
            raise KvhubError("kvhub in SGLang: the host pools are not registered yet")
        return self._traffic.hub

    def context_of(self, extra_key: str | None, cache_salt: str | None) -> Context | None:
        """The context of a request; None where its KV must not be kept.

        An adapter's KV is shared between engines of this kind only: what else the other's kernels apply is not known.
        """
        adapter = None
        if extra_key is not None and self._model.lora:
            found = self._adapters.split(extra_key)
            if found is None:
                return None
            adapter, extra_key = found
        extra = [("sglang extra_key", extra_key)] if extra_key is not None else []
        return Context(adapter=f"sglang {adapter}" if adapter else None, salt=cache_salt, extra=extra)

    def request_made(self, extra_key: str | None, adapter: str | None) -> None:
        """Forget everything when a request without an adapter carries an adapter's id: SGLang mixes their KV."""
        if self._model.lora and not self._adapters.made(extra_key, adapter):
            self.ledger.forget()
            _log.warning("adapter.retired", why="a request without an adapter carried its id as extra_key")

    def adapter_loaded(self, adapter: str, name: str | None, path: str | None) -> None:
        self._adapters.loaded(adapter, name, path)

    def failed(self, error: Exception) -> None:
        """Count what must never reach the engine."""
        if self._traffic is not None:
            self._traffic.hub.reports.count("adapter_errors", reason=type(error).__name__)

    def clear(self) -> None:
        """Empty the host tier.  Pools keep their chunks, which other engines use, too: see `kvhub pool purge`."""
        if self._traffic is not None:
            self._traffic.hub.reports.event("host.reset", chunks=self._traffic.forget())

    def close(self) -> None:
        """Close the hub; idempotent.  HiCache calls it when the backend is detached."""
        hooks.forget(self)
        traffic, self._traffic = self._traffic, None
        if traffic is not None:
            traffic.close()
        export, self._export = self._export, None
        if export is not None:
            export.flush()

    def get_stats(self) -> Any:
        """SGLang's own storage metrics; the hub's counters are shown beside them on the way."""
        export = self._export
        if export is not None:
            self._guarded(None, lambda _: export.step())
        return self._meter.take()

    # -- what every call goes through ------------------------------------------------------------------------------

    def _guarded(self, otherwise: T, call: Callable[[Traffic], T]) -> T:
        traffic = self._traffic
        if traffic is None:
            return otherwise
        try:
            return call(traffic)
        except Exception as error:
            self.failed(error)
            return otherwise

    def _known(self, keys: Sequence[str]) -> list[Page]:
        return self.ledger.find(keys)

    # -- lookups ---------------------------------------------------------------------------------------------------

    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int:
        return self._guarded(0, lambda traffic: traffic.present(self._known(keys)))

    def exists(self, key: str) -> bool:
        return self.batch_exists([key]) == 1

    def batch_exists_v2(self, keys: list[str], pool_transfers: Any = None, extra_info: Any = None) -> Any:
        others = [transfer for transfer in pool_transfers or () if str(transfer.name) != KV]
        hits = self.batch_exists(keys, extra_info) if not others else 0
        return PoolTransferResult(hits, {KV: hits, **{str(transfer.name): 0 for transfer in others}})

    # -- pages in the host pool ------------------------------------------------------------------------------------

    def batch_get_v1(self, keys: list[str], host_indices: torch.Tensor, extra_info: Any = None) -> list[bool]:
        def get(traffic: Traffic) -> list[bool]:
            known = self._known(keys)
            targets = _whole(traffic.pages.numbers(host_indices, len(keys)))
            known = known[: len(targets)]
            with self._meter.prefetch(len(known)):
                return traffic.bring(known, targets)

        return _padded(self._guarded([], get), len(keys))

    def batch_set_v1(self, keys: list[str], host_indices: torch.Tensor, extra_info: Any = None) -> list[bool]:
        def put(traffic: Traffic) -> list[bool]:
            known = self._known(keys)
            sources = _whole(traffic.pages.numbers(host_indices, len(keys)))
            known = known[: len(sources)]
            with self._meter.backup(len(known)):
                return traffic.keep(known, sources)

        return _padded(self._guarded([], put), len(keys))

    def batch_get_v2(self, transfers: list[Any], extra_info: Any = None) -> dict[str, list[bool]]:
        return {transfer.name: self._each(transfer, self.batch_get_v1) for transfer in transfers}

    def batch_set_v2(self, transfers: list[Any], extra_info: Any = None) -> dict[str, list[bool]]:
        return {transfer.name: self._each(transfer, self.batch_set_v1) for transfer in transfers}

    @staticmethod
    def _each(transfer: Any, call: Callable[[list[str], torch.Tensor], list[bool]]) -> list[bool]:
        keys = list(transfer.keys or ())
        if str(transfer.name) != KV or transfer.host_indices is None:
            return [False] * len(keys)
        return call(keys, transfer.host_indices)

    # -- flat pages, the older interface ---------------------------------------------------------------------------

    def batch_get(self, keys: list[str], target_locations: Any = None, target_sizes: Any = None) -> list[Any]:
        """Fills the given flat tensors; None for pages that are not there."""
        targets = list(target_locations or ())[: len(keys)]
        nothing: list[bool] = []
        got = self._guarded(nothing, lambda traffic: traffic.bring_flat(self._known(keys)[: len(targets)], targets))
        return [
            target if there else None for target, there in zip(targets, _padded(got, len(targets)), strict=True)
        ] + [None] * (len(keys) - len(targets))

    def batch_set(
        self, keys: list[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None
    ) -> bool:
        sources = list(values if values is not None else ())[: len(keys)]
        nothing: list[bool] = []
        put = self._guarded(nothing, lambda traffic: traffic.keep_flat(self._known(keys)[: len(sources)], sources))
        return len(put) == len(keys) and all(put)

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        return self.batch_get([key], [target_location])[0] if target_location is not None else None

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        return value is not None and self.batch_set([key], [value])


def _whole(numbers: Sequence[int]) -> list[int]:
    """The leading pages that are whole."""
    return list(numbers[: numbers.index(-1)]) if -1 in numbers else list(numbers)


def _padded(answers: Sequence[bool], count: int) -> list[bool]:
    """As many answers as keys: HiCache takes a list that is too short for success on a set."""
    return [*answers, *([False] * (count - len(answers)))]
