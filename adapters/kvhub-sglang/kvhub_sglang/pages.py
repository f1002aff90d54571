"""Where a page of HiCache's host memory lies, for every layout that SGLang offers, and copies between it and slots.

A host pool keeps a page in one stretch of memory or in several, its segments:

    layout             buffer, MHA (K, V first)             segments          in a slot
    layer_first        [2, layer, size, head, dim]          2 per layer       "lcthd"
    page_first         [2, size, layer, head, dim]          K, V              "ctlhd"
    page_first_direct  [2, page, layer, token, head, dim]   K, V              "clthd"
    page_head          [2, page, head, token, layer, dim]   K, V              "chtld"

MLA keeps one latent instead of K and V: [layer, size, 1, dim], [size, layer, 1, dim], [page, layer, token, 1, dim].
A slot holds the segments one after the other.  What came from an engine with another order is converted on the way into
the page, without a stop in between.

Source: SGLang 0.5.23, `mem_cache/pool_host/{mha,mla}.py`, `init_kv_buffer` and `get_page_buffer_meta`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from kvhub.errors import LayoutError
from kvhub.layout import Layout
from kvhub_kernels import (
    EngineBlocks,
    Plan,
    convert,
    cpu_native,
    cpu_torch,
    gather,
    native,
    require_convertible,
    scatter,
)
from kvhub_kernels.plan import Ints
from kvhub_kernels.planes import Plane
from kvhub_kernels.sides import Place, SlotSide

ORDERS = {
    ("attention", "layer_first"): "lcthd",
    ("attention", "page_first"): "ctlhd",
    ("attention", "page_first_direct"): "clthd",
    ("attention", "page_head"): "chtld",
    ("mla", "layer_first"): "lthd",
    ("mla", "page_first"): "tlhd",
    ("mla", "page_first_direct"): "lthd",
}
FLAT = {
    ("attention", "layer_first"): "clthd",
    ("mla", "layer_first"): "lthd",
}
"""Order of the flat pages of the older interface, where it is not that of the segments."""


class HostPages:
    """One host pool's pages."""

    def __init__(self, pool: Any) -> None:
        """Raises LayoutError for a pool whose memory is not what its layout says."""
        self.layout = layout_of(pool)
        self.flat = flat_layout(self.layout, str(pool.layout))
        self.page_tokens = int(pool.page_size)
        segments = list(_segments(pool, self.layout))
        self.pages = int(segments[0].shape[0])
        whole = Layout(
            "opaque", len(segments), self.page_tokens, opaque_bytes=self.layout.block_bytes, tag=f"sglang {pool.layout}"
        )
        self._blocks = EngineBlocks(segments, whole)
        self._side = _PageSide(pool, self.layout, self.pages)

    def numbers(self, host_indices: torch.Tensor, count: int) -> list[int]:
        """The pages that `count` keys' token slots lie in; -1 for what is no whole page."""
        size = self.page_tokens
        slots = host_indices.to("cpu", torch.int64)
        if slots.numel() != count * size:
            return [-1] * count
        rows = slots.view(count, size)
        whole = (rows[:, 0] % size == 0) & (rows == rows[:, :1] + torch.arange(size)).all(dim=1)
        inside = (rows[:, 0] >= 0) & (rows[:, 0] < self.pages * size)
        return [int(page) for page in torch.where(whole & inside, rows[:, 0] // size, -1)]

    def read(self, pages: Sequence[int], arena: torch.Tensor, slots: Sequence[int]) -> None:
        """Copy pages into slots as they are."""
        gather(self._blocks, arena, self._plan(pages, slots))

    def write(
        self, pages: Sequence[int], arena: torch.Tensor, slots: Sequence[int], source: Layout, *, threads: int = 1
    ) -> None:
        """Copy slots, whose payload is in `source`, into pages.  Raises LayoutError where it cannot be converted."""
        if source == self.layout:
            scatter(self._blocks, arena, self._plan(pages, slots), threads=threads)
            return
        require_convertible(source, self.layout)
        size = self.page_tokens
        step = int(np.gcd(source.block_tokens, size))
        pieces = np.arange(0, size, step, dtype=np.int64)
        page, slot = (np.repeat(np.asarray(which, dtype=np.int64), len(pieces)) for which in (pages, slots))
        token = np.tile(pieces, len(pages))
        at = Place(slot, token // source.block_tokens, token % source.block_tokens)
        to = Place(page, np.zeros_like(page), token)
        kernel = cpu_native if native else cpu_torch
        # A side is what tells addresses, and this one does; its type is not among those that the kernels name.
        target: Any = self._side
        kernel.move(SlotSide(arena, source), at, target, to, np.full(len(page), step, dtype=np.int64), threads)

    def read_flat(self, pages: Sequence[torch.Tensor], arena: torch.Tensor, slots: Sequence[int]) -> None:
        """Copy flat pages of the older interface into slots."""
        length = self.layout.block_bytes
        for page, slot in zip(pages, slots, strict=True):
            row = page.contiguous().view(torch.uint8).view(1, -1)
            convert(self.flat, self.layout, row, arena[slot : slot + 1, :length])

    def write_flat(self, page: torch.Tensor, arena: torch.Tensor, slot: int, source: Layout) -> None:
        """Copy a slot into a flat page of the older interface."""
        length = source.payload_bytes(self.page_tokens)
        convert(source, self.flat, arena[slot : slot + 1, :length], page.view(torch.uint8).view(1, -1))

    def _plan(self, pages: Sequence[int], slots: Sequence[int]) -> Plan:
        count = len(slots)
        return Plan(slots, np.asarray(pages, dtype=np.int64).reshape(-1, 1), [0] * count, [self.page_tokens] * count)


def layout_of(pool: Any) -> Layout:
    """The layout of one page of a host pool, as it lies in a slot.  Raises LayoutError for a pool that is none of those
    that are known."""
    name = str(pool.layout)
    kind = {"MHATokenToKVPoolHost": "attention", "MLATokenToKVPoolHost": "mla"}.get(type(pool).__name__)
    order = ORDERS.get((kind or "", name))
    if kind is None or order is None:
        known = ", ".join(sorted({layout for _, layout in ORDERS}))
        raise LayoutError(
            f"the host pool {type(pool).__name__} with layout {name} is none that kvhub knows; set "
            f"--hicache-mem-layout to one of {known}, or run this model without kvhub"
        )
    tokens, layers = int(pool.page_size), int(pool.layer_num)
    dtype = str(_buffers(pool)[0].dtype).removeprefix("torch.")
    if kind == "mla":
        return Layout("mla", layers, tokens, key_dim=int(pool.kv_cache_dim), dtype=dtype, key_order=order)
    heads, dim = int(pool.head_num), int(pool.head_dim)
    return Layout("attention", layers, tokens, heads, dim, dim, dtype, order, order)


def flat_layout(layout: Layout, name: str) -> Layout:
    """The layout of a flat page."""
    order = FLAT.get((layout.kind, name), layout.key_order)
    return Layout(
        layout.kind, layout.layers, layout.block_tokens, layout.heads, layout.key_dim, layout.value_dim, layout.dtype,
        order, order if layout.kind == "attention" else "",
    )  # fmt: skip


def _buffers(pool: Any) -> list[torch.Tensor]:
    """Keys and values, or the latent, as the pool's own shape has them."""
    buffer = pool.kv_buffer
    if not isinstance(buffer, torch.Tensor):
        raise LayoutError(
            f"the host pool {type(pool).__name__} keeps {type(buffer).__name__} instead of one tensor; run this model "
            f"without kvhub"
        )
    return [buffer[0], buffer[1]] if type(pool).__name__ == "MHATokenToKVPoolHost" else [buffer]


def _expected(pool: Any, layout: Layout) -> tuple[int, ...]:
    tokens, layers, size = layout.block_tokens, layout.layers, int(pool.size)
    row = (layout.heads, layout.key_dim)
    return {
        "layer_first": (layers, size, *row),
        "page_first": (size, layers, *row),
        "page_first_direct": (size // tokens, layers, tokens, *row),
        "page_head": (size // tokens, layout.heads, tokens, layers, layout.key_dim),
    }[str(pool.layout)]


def _segments(pool: Any, layout: Layout) -> list[torch.Tensor]:
    """One tensor [pages, bytes of the segment] per segment, in the order in which a slot has them."""
    buffers = _buffers(pool)
    for buffer in buffers:
        if tuple(buffer.shape) != _expected(pool, layout) or not buffer.is_contiguous():
            raise LayoutError(
                f"the host pool's buffer has shape {tuple(buffer.shape)} and strides {buffer.stride()} where layout "
                f"{pool.layout} has {_expected(pool, layout)}; this version of SGLang packs pages in a way that kvhub "
                f"does not know"
            )
    pages = int(pool.size) // layout.block_tokens
    if pool.layout == "layer_first":
        return [buffer[layer].view(torch.uint8).view(pages, -1) for layer in range(layout.layers) for buffer in buffers]
    return [buffer.view(torch.uint8).view(pages, -1) for buffer in buffers]


class _PageSide:
    """Pages as the kernels' copies see one of their two sides: addresses, or views for torch."""

    def __init__(self, pool: Any, layout: Layout, pages: int) -> None:
        self.layout = layout
        self._buffers = _buffers(pool)
        self._pages = pages
        self._by_layer = str(pool.layout) == "layer_first"

    def _which(self, plane: Plane) -> int:
        return 1 if plane.offset else 0

    def _steps(self, plane: Plane) -> tuple[int, int]:
        """Bytes from page to page, and from layer to layer, inside one buffer."""
        buffer = self._buffers[0]
        run = buffer.numel() * buffer.element_size()
        if self._by_layer:
            return run // self.layout.layers // self._pages, run // self.layout.layers
        return run // self._pages, plane.layer

    def tokens(self, place: Place, plane: Plane) -> Ints:
        """Addresses of each piece's first token in `plane`, [pieces, layers]."""
        page, layer = self._steps(plane)
        base = self._buffers[self._which(plane)].data_ptr()
        first: Ints = base + place.page * page + place.token * plane.token
        return first[:, None] + (np.arange(self.layout.layers, dtype=np.int64) * layer)[None, :]

    def plane_view(self, plane: Plane, layer: int) -> torch.Tensor:
        """[pages, heads, tokens, dims] of one layer, as integers of the item's size."""
        words = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}
        page, step = self._steps(plane)
        memory = self._buffers[self._which(plane)]
        sizes = (self._pages, plane.heads, self.layout.block_tokens, plane.dims)
        strides = tuple(number // plane.item for number in (page, plane.head, plane.token, plane.dim))
        offset = memory.storage_offset() + layer * step // plane.item
        view = torch.empty(0, dtype=words[plane.item], device=memory.device)
        return view.set_(memory.untyped_storage(), offset, sizes, strides)

    def index(self, place: Place) -> tuple[torch.Tensor, ...]:
        return (torch.from_numpy(place.page),)
