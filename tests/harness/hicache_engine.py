"""The contract's engine with HiCache's shape: real device pool, real host pool, real backend, a small model.

SGLang's scheduler cannot be driven step by step from outside.  This stands in for it: the fake engine's scheduler
and model, whose tokens follow from every byte of KV, over SGLang's own pools and copies, with HiCache's three threads'
work in between (lookup and get before a request runs, write-through after a page is full) through `KvhubStorage`.
"""

from __future__ import annotations

import itertools
import queue
import threading
from array import array
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import numpy as np
import torch
import yaml

from harness.hicache import LAYOUTS, Stack, model
from kvhub.keys import Context
from kvhub.plan import Report
from kvhub.requests import Finish
from kvhub.testing.engine_driver import EngineSetup, Unable
from kvhub.testing.fake_engine import FakeEngine
from kvhub.testing.fake_engine_copier import Ended
from kvhub.testing.fake_engine_memory import POISON, FakeModel
from kvhub.testing.fake_engine_queue import Queue

PAGE, LAYERS, HEADS, DIM = 16, 2, 2, 4
ROW = HEADS * DIM
TOKEN_BYTES = 2 * LAYERS * ROW


class DeviceMemory:
    """Blocks of the fake engine inside SGLang's device pool; page 0 is the pool's padding."""

    def __init__(self, stack: Stack, blocks: int) -> None:
        self.blocks = blocks
        self.layout = SimpleNamespace(block_tokens=PAGE)
        pool = stack.device
        sides = [part for layer in range(LAYERS) for part in (pool.k_buffer[layer], pool.v_buffer[layer])]
        self._sides = [side.view(torch.uint8).view(side.shape[0], ROW).numpy() for side in sides]

    @staticmethod
    def slots(blocks: Sequence[int]) -> torch.Tensor:
        """The pool's token slots of blocks."""
        starts = (torch.as_tensor(list(blocks), dtype=torch.int64) + 1) * PAGE
        return (starts[:, None] + torch.arange(PAGE)).reshape(-1)

    def read(self, blocks: Sequence[int], tokens: int) -> bytes:
        slots = self.slots(blocks[: -(-tokens // PAGE)])[:tokens].numpy()
        return np.concatenate([side[slots] for side in self._sides], axis=1).tobytes()

    def write(self, blocks: Sequence[int], position: int, vector: bytes) -> None:
        slot = (blocks[position // PAGE] + 1) * PAGE + position % PAGE
        for at, side in enumerate(self._sides):
            side[slot] = np.frombuffer(vector, np.uint8)[at * ROW : (at + 1) * ROW]

    def block(self, number: int) -> bytes:
        return self.read([number], PAGE)

    def poison(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            for side in self._sides:
                side[(number + 1) * PAGE : (number + 2) * PAGE] = POISON


@attrs.define
class Request:
    """What HiCache keeps of a request."""

    tokens: Sequence[int]
    context: Context
    stored: int = 0
    found: int | None = None
    host: torch.Tensor | None = None
    first: int = 0
    asked: bool = False
    over: bool = False
    counted: bool = False
    loading: bool = False


class HiCache:
    """Session and worker of the fake engine at once, as HiCache's controller is."""

    def __init__(self, stack: Stack, layout: str) -> None:
        self.stack, self.backend = stack, stack.backend
        self.hub = self.backend.hub
        self._io = LAYOUTS["mha"][layout]
        self._requests: dict[str, Request] = {}
        self._loads: list[tuple[str, torch.Tensor, torch.Tensor]] = []
        self._full: list[tuple[Request, int, int, list[int]]] = []
        self._received: set[str] = set()
        self._lock = threading.RLock()
        self._pending = 0
        self._work = {name: queue.Queue[Any]() for name in ("prefetch", "backup")}
        self._threads = [threading.Thread(target=self._run, args=(work,), daemon=True) for work in self._work.values()]
        for thread in self._threads:
            thread.start()

    def _run(self, work: queue.Queue[Any]) -> None:
        while (call := work.get()) is not None:
            try:
                call()
            finally:
                with self._lock:
                    self._pending -= 1

    def _later(self, name: str, call: Callable[[], None]) -> None:
        with self._lock:
            self._pending += 1
        self._work[name].put(call)

    # -- what the scheduler tells ----------------------------------------------------------------------------------

    def knows(self, name: str) -> bool:
        return name in self._requests

    def begin(self, name: str, tokens: Sequence[int], context: Context, params: Any = None) -> None:
        self._requests[name] = Request(tokens, context)

    def decline(self, params: Any) -> None:
        """There are no promises."""

    def lookup(self, name: str, computed: int) -> int | None:
        """Prefetch once: the answer is what lies in the host pool when the thread has ended."""
        request = self._requests[name]
        with self._lock:
            if request.asked and request.first != computed // PAGE and request.found is not None:
                self._let_go(request)
            if not request.asked:
                request.asked, request.first = True, computed // PAGE
                hashes = self._hashes(request, len(request.tokens) - 1)[request.first :]
                self._later("prefetch", lambda: self._prefetch(request, hashes))
            return request.found

    def _hashes(self, request: Request, tokens: int) -> list[str]:
        from sglang.srt.mem_cache import utils
        from sglang.srt.mem_cache.radix_cache import RadixKey

        pages = tokens // PAGE
        if not pages or request.context.adapter is not None or request.context.items:
            return []  # as the adapter has it: neither is ever kept
        key = RadixKey(array("q", request.tokens[: pages * PAGE]), cache_salt=request.context.salt)
        return list(utils.get_storage_hash_str(key, None, page_size=PAGE))

    def _prefetch(self, request: Request, hashes: list[str]) -> None:
        found, slots = 0, None
        try:
            found = self.backend.batch_exists(hashes) if hashes else 0
            with self._lock:
                slots = self.stack.host.alloc(found * PAGE) if found else None
            if slots is not None:
                request.loading = True
                came = self.backend.batch_get_v1(hashes[:found], slots, None)
                found = came.index(False) if False in came else found
            else:
                found = 0
        finally:
            with self._lock:
                if slots is not None and found * PAGE < len(slots):
                    self.stack.host.free(slots[found * PAGE :])
                    slots = slots[: found * PAGE]
                request.host, request.found, request.loading = slots, found * PAGE, False
                if request.over:
                    self._let_go(request)

    def _let_go(self, request: Request) -> None:
        if request.host is not None and len(request.host):
            self.stack.host.free(request.host)
        request.host, request.found, request.asked = None, None, False

    def allocated(self, name: str, blocks: Sequence[int], external: int) -> None:
        request = self._requests[name]
        if not request.counted:
            # SGLang counts these itself (`cached_tokens_details`); the laws look for them here.
            request.counted = True
            self.hub.reports.count("prompt_tokens", len(request.tokens))
            self.hub.reports.count("hit_tokens", request.first * PAGE, member="engine")
        if external and request.host is not None:
            pages = external // PAGE
            wanted = blocks[request.first : request.first + pages]
            self._loads.append((name, request.host[: pages * PAGE], DeviceMemory.slots(wanted)))

    def advance(self, name: str, computed: int, blocks: Sequence[int]) -> None:
        """Pages that this step's pass makes full are written through behind it."""
        request = self._requests.get(name)
        full = min(computed, len(request.tokens)) // PAGE if request is not None else 0
        if request is not None and full > request.stored:
            first, request.stored = request.stored, full
            self._full.append((request, first, full, list(blocks[first:full])))

    def preempted(self, name: str) -> None:
        request = self._requests.get(name)
        with self._lock:
            if request is not None and request.found is not None:
                self._let_go(request)

    def finish(self, name: str, computed: int, blocks: Sequence[int], *, aborted: bool) -> Finish:
        request = self._requests.pop(name)
        with self._lock:
            request.over = True
            if request.found is not None:
                self._let_go(request)
        self._loads = [load for load in self._loads if load[0] != name]
        return Finish(hold=False)

    # -- a step ----------------------------------------------------------------------------------------------------

    def plan(self, *, idle: bool = False) -> None:
        """Nothing to hand over: this is the worker, too."""

    def before_forward(self, plan: None) -> None:
        for name, host, device in self._loads:
            for layer in range(LAYERS):
                self.stack.host.load_to_device_per_layer(self.stack.device, host, device, layer, self._io[-1])
            self._received.add(name)
        self._loads = []

    def after_forward(self) -> None:
        for request, first, full, blocks in self._full:
            hashes = self._hashes(request, full * PAGE)
            with self._lock:
                host = self.stack.host.alloc((full - first) * PAGE) if hashes else None
            if host is None:
                continue
            self.stack.host.backup_from_device_all_layer(
                self.stack.device, host, DeviceMemory.slots(blocks), self._io[0]
            )
            tokens = array("q", request.tokens[first * PAGE : full * PAGE])
            _write_storage(host, tokens, hashes[first:], hashes[:first])
            self._later("backup", lambda keys=hashes[first:], slots=host: self._backup(keys, slots))
        self._full = []

    def _backup(self, keys: list[str], slots: torch.Tensor) -> None:
        self.backend.batch_set_v1(keys, slots, None)
        with self._lock:
            self.stack.host.free(slots)

    def ended(self) -> Ended:
        received, self._received = self._received, set()
        return Ended(Report(), frozenset(received), frozenset(), frozenset())

    def done(self, report: Report) -> None:
        """Copies end inside a step."""

    def busy(self) -> bool:
        return self._pending > 0

    def loading(self, name: str) -> bool:
        """Whether the request's pages are on their way to the host pool."""
        request = self._requests.get(name)
        return request is not None and request.loading

    def counts(self) -> dict[str, int]:
        used = self.stack.host.size - self.stack.host.available_size()
        return {"requests": len(self._requests), "hicache": self._pending, "host slots": int(used)}

    def close(self) -> None:
        for work in self._work.values():
            work.put(None)
        for thread in self._threads:
            thread.join(20)
        self.stack.close()


def _write_storage(host: torch.Tensor, tokens: array[int], hashes: list[str], prefix: list[str]) -> None:
    """The controller's own method, whose arguments the backend listens to."""
    from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import HybridCacheController

    HybridCacheController.write_storage(SimpleNamespace(backup_queue=queue.Queue()), host, tokens, hashes, prefix)


class HiCacheEngine(FakeEngine):
    """An `EngineDriver` over HiCache with one host memory layout."""

    _numbers = itertools.count()

    def __init__(
        self,
        config: Mapping[str, Any] | None,
        role: str,
        setup: EngineSetup,
        *,
        layout: str,
        folder: Path,
        read: Callable[[Any], None],
    ) -> None:
        """`read` sets what the backend reads of a server's settings."""
        if setup.drafts:
            raise Unable("speculative decoding is refused at start: its pages are keyed by pairs of tokens")
        if setup.layout == "opaque":
            raise Unable("HiCache has no opaque pages: every layout of its host pools is known")
        if config is not None and "transports" in config:
            raise Unable("HiCache has storage and no peers: prefill and decode meet in the pool")
        layout = {"": layout, "other": "page_head" if layout != "page_head" else "layer_first"}[setup.layout]
        path = folder / f"engine-{next(self._numbers)}.yaml"
        path.write_text(yaml.safe_dump(dict(config or {})))
        stack = Stack(
            "mha", layout, path, dtype=torch.float8_e5m2, role=role, heads=HEADS,
            geometry=(setup.blocks * PAGE, PAGE, LAYERS, DIM),
        )  # fmt: skip
        self.setup = setup
        self.memory: Any = DeviceMemory(stack, setup.blocks)
        self.model = FakeModel(f"fake {setup.revision}", TOKEN_BYTES)
        self.session: Any = None
        self.copier: Any = SimpleNamespace(
            before_forward=None, after_forward=lambda: None, close=lambda: None,
            ended=lambda: Ended(Report(), frozenset(), frozenset(), frozenset()),
        )  # fmt: skip
        if config is not None:
            read(model(revision=setup.revision, vocabulary=1 << 20, config={"num_hidden_layers": LAYERS}))
            stack.attach()
            self.session = self.copier = HiCache(stack, layout)
        self.queue = Queue(self.session, setup, PAGE)
        self._hicache: HiCache | None = self.session
        self._names = itertools.count(1)
        self._results = {}
        self._closed = False

    def state(self, name: str) -> str:
        """HiCache loads while a request waits to be admitted."""
        loading = self._hicache is not None and self._hicache.loading(name)
        return "loading" if loading else super().state(name)
