"""Device pool, host pool and storage backend as SGLang puts them together, for one rank."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from kvhub_sglang.facts import Model

PAGE = 16
LAYERS = 4
SIZE = 512
VOCABULARY = 320
YAML = """\
kvhub: 1
chunk_tokens: 16
limits: {{lookup: 5s, staging: 8MiB}}
stores:
  pool: {{use: nfs, root: "{pool}"}}
roles:
  both: {{store: [pool], retrieve: [{{from: pool, deadline: 5s}}]}}
"""
LAYOUTS = {
    "mha": {
        "layer_first": ("direct", "kernel"),
        "page_first": ("kernel",),
        "page_first_direct": ("direct",),
        "page_head": ("kernel",),
    },
    "mla": {"layer_first": ("direct", "kernel"), "page_first": ("kernel",), "page_first_direct": ("direct",)},
}
"""Host memory layouts that SGLang offers, with the copies that it allows for each."""


def model(**other: Any) -> Model:
    """What the backend would read of a server's settings."""
    facts: dict[str, Any] = {
        "path": "nowhere", "revision": "r1", "architectures": ("Tiny",), "dtype": "bfloat16", "kv_dtype": "auto",
        "quantization": None, "scales": "", "config": {"num_hidden_layers": LAYERS}, "vocabulary": VOCABULARY,
        "longest": 4096, "speculative": None, "lora": False,
    }  # fmt: skip
    return Model(**{**facts, **other})


class Stack:
    """One rank's pools and its backend."""

    def __init__(
        self,
        kind: str,
        layout: str,
        config: Path,
        *,
        dtype: torch.dtype = torch.bfloat16,
        zero_copy: bool = True,
        role: str = "both",
        heads: int = 2,
        geometry: tuple[int, int, int, int] = (SIZE, PAGE, LAYERS, 32),
        **storage: Any,
    ) -> None:
        """`geometry`: tokens of the device pool, tokens of a page, layers, head dimension."""
        self.kind, self.layout, self.dtype = kind, layout, dtype
        self._config, self._role, self._zero_copy, self._storage = config, role, zero_copy, storage
        self.device, self.buffers = _device(kind, dtype, heads, geometry)
        self.host = _host(kind, self.device, layout, geometry[1])
        self.backend: Any = None

    def attach(self) -> None:
        """Load the backend as SGLang does."""
        from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig, PoolName
        from sglang.srt.mem_cache.storage import StorageBackendFactory

        extra = {
            "backend_name": "kvhub", "module_path": "kvhub_sglang.storage", "class_name": "KvhubStorage",
            "config": str(self._config), "role": self._role,
        } | ({"interface_v1": 1} if self._zero_copy else {})  # fmt: skip
        told = {
            "tp_rank": 0, "tp_size": 1, "pp_rank": 0, "pp_size": 1, "attn_cp_rank": 0, "attn_cp_size": 1,
            "is_mla_model": self.kind == "mla", "enable_storage_metrics": False,
            "is_page_first_layout": self.layout == "page_first", "model_name": "tiny",
        }  # fmt: skip
        config = HiCacheStorageConfig(**{**told, **self._storage}, extra_config=extra)
        self.backend = StorageBackendFactory.create_backend("dynamic", config, self.host)
        self.backend.register_mem_pool_host(self.host)
        self.backend.register_mem_host_pool_v2(self.host, PoolName.KV)
        self.backend.on_host_pools_registered()

    def close(self) -> None:
        if self.backend is not None:
            self.backend.close()

    # -- tokens and hashes -----------------------------------------------------------------------------------------

    @staticmethod
    def tokens(pages: int, seed: int = 0) -> list[int]:
        dice = random.Random(seed)
        return [dice.randrange(VOCABULARY) for _ in range(pages * PAGE)]

    @staticmethod
    def hashes(tokens: Sequence[int], prior: str | None = None) -> list[str]:
        """What SGLang's lookup calls the pages; the backend hears of it, as in the engine."""
        from sglang.srt.mem_cache import utils

        return list(utils.get_hash_str(list(tokens), prior, page_size=PAGE))

    # -- pages -----------------------------------------------------------------------------------------------------

    def fill(self) -> None:
        """Random bytes in all of the device pool."""
        for buffer in self.buffers:
            raw = buffer.view(torch.uint8)
            raw.copy_(torch.randint(0, 256, raw.shape, dtype=torch.uint8))

    def wipe(self) -> None:
        """Other bytes in both pools."""
        self.host.kv_buffer.view(torch.uint8).fill_(0xAA)
        for buffer in self.buffers:
            buffer.view(torch.uint8).fill_(0x55)

    @staticmethod
    def device_slots(pages: int, seed: int) -> torch.Tensor:
        chosen = random.Random(seed).sample(range(1, SIZE // PAGE), pages)
        return torch.cat([torch.arange(page * PAGE, (page + 1) * PAGE) for page in chosen])

    def host_slots(self, pages: int) -> torch.Tensor:
        slots = self.host.alloc(pages * PAGE)
        assert slots is not None
        return torch.as_tensor(slots)

    def content(self, slots: torch.Tensor) -> list[torch.Tensor]:
        """The device pool's bytes in these slots."""
        return [buffer[slots].view(torch.uint8).clone() for buffer in self.buffers]

    def to_host(self, host: torch.Tensor, device: torch.Tensor, io: str) -> None:
        self.host.backup_from_device_all_layer(self.device, host, device, io)

    def to_device(self, host: torch.Tensor, device: torch.Tensor, io: str) -> None:
        for layer in range(LAYERS):
            self.host.load_to_device_per_layer(self.device, host, device, layer, io)

    # -- the interface, all three ways -----------------------------------------------------------------------------

    def put(self, mode: str, keys: Sequence[str], slots: torch.Tensor) -> list[bool]:
        from sglang.srt.mem_cache.hicache_storage import PoolName, PoolTransfer

        if mode == "v1":
            return list(self.backend.batch_set_v1(list(keys), slots, None))
        if mode == "v2":
            transfer = PoolTransfer(name=PoolName.KV, host_indices=slots, keys=list(keys))
            return list(self.backend.batch_set_v2([transfer])[PoolName.KV])
        flat = [self.host.get_data_page(int(slots[at * PAGE])) for at in range(len(keys))]
        return [bool(self.backend.batch_set(list(keys), flat))] * len(keys)

    def take(self, mode: str, keys: Sequence[str], slots: torch.Tensor) -> list[bool]:
        from sglang.srt.mem_cache.hicache_storage import PoolName, PoolTransfer

        if mode == "v1":
            return list(self.backend.batch_get_v1(list(keys), slots, None))
        if mode == "v2":
            transfer = PoolTransfer(name=PoolName.KV, host_indices=slots, keys=list(keys))
            return list(self.backend.batch_get_v2([transfer])[PoolName.KV])
        got = self.backend.batch_get(list(keys), [self.host.get_dummy_flat_data_page() for _ in keys])
        for at, page in enumerate(got):
            if page is not None:
                self.host.set_from_flat_data_page(int(slots[at * PAGE]), page)
        return [page is not None for page in got]

    def stored(self, pages: int, *, mode: str = "v1", seed: int = 0) -> tuple[list[str], list[torch.Tensor]]:
        """Random KV of so many pages in the pool: their hashes and what the device had."""
        self.fill()
        io = LAYOUTS[self.kind][self.layout][0]
        keys, device = self.hashes(self.tokens(pages, seed)), self.device_slots(pages, seed)
        host = self.host_slots(pages)
        self.to_host(host, device, io)
        assert self.put(mode, keys, host) == [True] * pages
        assert self.backend.hub.flush(5.0)
        self.host.free(host)
        return keys, self.content(device)

    def loaded(self, keys: Sequence[str], *, mode: str = "v1", seed: int = 1) -> tuple[int, list[torch.Tensor]]:
        """Load pages into other places than they came from; how many came, and what the device has of them."""
        self.wipe()
        io = LAYOUTS[self.kind][self.layout][-1]
        host, device = self.host_slots(len(keys)), self.device_slots(len(keys), seed)
        came = self.take(mode, keys, host)
        count = came.index(False) if False in came else len(came)
        assert len(came) == len(keys)
        if count:
            self.to_device(host[: count * PAGE], device[: count * PAGE], io)
        self.host.free(host)
        return count, self.content(device[: count * PAGE])


Start = Callable[..., Stack]


def same(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> bool:
    """Whether all layers hold the same bytes."""
    return all(torch.equal(mine, theirs) for mine, theirs in zip(one, other, strict=True))


def _device(
    kind: str, dtype: torch.dtype, heads: int, geometry: tuple[int, int, int, int]
) -> tuple[Any, list[torch.Tensor]]:
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool

    size, page, layers, dim = geometry
    shared = {
        "size": size, "page_size": page, "dtype": dtype, "layer_num": layers, "device": "cpu",
        "enable_memory_saver": False,
    }  # fmt: skip
    if kind == "mha":
        pool = MHATokenToKVPool(**shared, head_num=heads, head_dim=dim, enable_alt_stream=False)
        return pool, [*pool.k_buffer, *pool.v_buffer]
    pool = MLATokenToKVPool(**shared, kv_lora_rank=64, qk_rope_head_dim=16)
    return pool, list(pool.kv_buffer)


def _host(kind: str, device: Any, layout: str, page: int) -> Any:
    from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
    from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost

    info = device.get_device_pool_infos()[0].buffer_info
    shared = {"pin_memory": False, "device": "cpu", "device_capacity_tokens": device.size,
              "start_layer": device.start_layer, "end_layer": device.end_layer}  # fmt: skip
    if kind == "mha":
        return MHATokenToKVPoolHost(info, 2.0, 0, page, layout, **shared)
    return MLATokenToKVPoolHost(info, 2.0, 0, page, layout, target_layer_num=device.layer_num, **shared)
