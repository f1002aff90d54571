"""A slow, plain oracle: it lists a block's numbers in the order of the layout's letters, with no stride arithmetic."""

from __future__ import annotations

import itertools
import os
import random
from functools import lru_cache

import pytest

from kvhub.layout import Layout

os.environ.setdefault("TRITON_INTERPRET", "1")  # read when a kernel is defined


@lru_cache(maxsize=256)
def positions(layout: Layout) -> dict[tuple[int, str, int, int, int], int]:
    """(layer, 'k' or 'v', head, token, dim) to the byte offset in a block."""
    sizes = {"l": layout.layers, "h": layout.heads, "t": layout.block_tokens}
    found: dict[tuple[int, str, int, int, int], int] = {}

    def put(which: str, coordinate: dict[str, int]) -> None:
        spot = (coordinate["l"], which, coordinate["h"], coordinate["t"], coordinate["d"])
        found[spot] = len(found) * layout.item_bytes

    def spread(letters: str, dims: int) -> itertools.product[tuple[int, ...]]:
        return itertools.product(*(range(dims if x == "d" else sizes[x]) for x in letters))

    if layout.kind == "mla":
        for numbers in spread(layout.key_order, layout.key_dim):
            put("k", dict(zip(layout.key_order, numbers, strict=True)))
        return found
    shared, keys = layout.key_order.split("c")
    values = layout.value_order.split("c")[1]
    for outer in spread(shared, layout.key_dim):
        base = dict(zip(shared, outer, strict=True))
        for which, letters, dims in (("k", keys, layout.key_dim), ("v", values, layout.value_dim)):
            for inner in spread(letters, dims):
                put(which, base | dict(zip(letters, inner, strict=True)))
    return found


def copy_tokens(
    read, source: Layout, write, target: Layout, pairs: list[tuple[tuple[int, int], tuple[int, int]]]
) -> int:
    """Copy single tokens, item by item.  `pairs`: ((page, token), (page, token)); `read(page, layer, offset)` and
    `write(page, layer, offset)` give (bytearray, index) of a byte of that page, offset in a block of all layers."""
    count = 0
    here, there = positions(source), positions(target)
    for (page, token), (goal, spot) in pairs:
        for (layer, which, head, t, dim), offset in here.items():
            if t != token:
                continue
            memory, at = read(page, layer, offset)
            aim, to = write(goal, layer, there[layer, which, head, spot, dim])
            aim[to : to + source.item_bytes] = memory[at : at + source.item_bytes]
            count += source.item_bytes
    return count


class World:
    """An engine and an arena full of random bytes, and the same bytes once more for the oracle."""

    def __init__(
        self, layout: Layout, *, blocks: int, slots: int, slot_bytes: int, pad: int, one: bool, seed: int
    ) -> None:
        import torch

        from kvhub_kernels import EngineBlocks, arena_tensor

        chance = random.Random(seed)
        self.layout, self.blocks, self.slots, self.slot_bytes = layout, blocks, slots, slot_bytes
        self.page = layout.block_bytes // layout.layers
        self.step = self.page + pad
        span = blocks * self.step
        amount = layout.layers if one else 1
        stores = [bytearray(chance.randbytes(span * amount)) for _ in range(1 if one else layout.layers)]
        self.memory = [stores[0 if one else layer] for layer in range(layout.layers)]
        self.base = [layer * span if one else 0 for layer in range(layout.layers)]
        kind = getattr(torch, layout.dtype)
        tensors = []
        for layer in range(layout.layers):
            raw = torch.frombuffer(self.memory[layer], dtype=torch.uint8)
            pages = raw[self.base[layer] : self.base[layer] + span].view(blocks, self.step)[:, : self.page]
            tensors.append(pages.view(kind) if layout.cuttable else pages)
        self.engine = EngineBlocks(tensors, layout)
        self.slot_memory = bytearray(chance.randbytes(slots * slot_bytes))
        self.arena = arena_tensor(memoryview(self.slot_memory), slots, slot_bytes)
        self.stores = stores

    def copies(self) -> tuple[list[bytearray], bytearray]:
        return [bytearray(store) for store in self.stores], bytearray(self.slot_memory)

    def expect(self, plan, source: Layout, *, into_engine: bool) -> tuple[list[bytearray], bytearray, int]:
        """What the memory must be after the plan, by the oracle, and the bytes that it moves."""
        stores, slot_memory = self.copies()
        per_layer = stores if len(stores) > 1 else stores * self.layout.layers

        def engine(block: int, layer: int, offset: int) -> tuple[bytearray, int]:
            return per_layer[layer], self.base[layer] + block * self.step + offset - layer * self.page

        def slot(place: int, layer: int, offset: int) -> tuple[bytearray, int]:
            row, block = divmod(place, 1 << 20)
            return slot_memory, row * self.slot_bytes + block * source.block_bytes + offset

        moved = 0
        for row, place in enumerate(plan.slots.tolist()):
            for token in range(int(plan.first[row]), int(plan.last[row])):
                block, spot = divmod(token, self.layout.block_tokens)
                index, at = divmod(token, source.block_tokens)
                inside = (int(plan.blocks[row][block]), spot)
                outside = ((place << 20) + index, at)
                if into_engine:
                    moved += copy_tokens(slot, source, engine, self.layout, [(outside, inside)])
                else:
                    moved += copy_tokens(engine, self.layout, slot, source, [(inside, outside)])
        return stores, slot_memory, moved


@pytest.fixture
def world():
    return World


def _kernels() -> list[str]:
    return ["native", "torch", "triton"]


@pytest.fixture(params=_kernels())
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each way of copying in turn, on the same CPU tensors; Triton's runs in its interpreter."""
    from kvhub_kernels import copying, cpu_native, cpu_torch

    module = {"native": cpu_native, "torch": cpu_torch}.get(request.param)
    if request.param == "native" and not cpu_native.available:
        pytest.skip("installed without a compiler")
    if request.param == "triton":
        pytest.importorskip("triton")
        from kvhub_kernels import cuda_triton as module
    monkeypatch.setattr(copying, "_kernel", lambda source, target: module)
    return str(request.param)


def random_plan(chance: random.Random, layout: Layout, *, slots: int, blocks: int, per_chunk: int, partial: bool):
    """Distinct slots and blocks in random order, with random token ranges (whole chunks unless `partial`)."""
    from kvhub_kernels import Plan

    count = chance.randint(1, min(slots, blocks // per_chunk))
    table = chance.sample(range(blocks), count * per_chunk)
    chunk = per_chunk * layout.block_tokens
    first, last = [], []
    for _ in range(count):
        low, high = sorted((chance.randint(0, chunk), chance.randint(0, chunk))) if partial else (0, chunk)
        first.append(low)
        last.append(high)
    rows = [table[i * per_chunk : (i + 1) * per_chunk] for i in range(count)]
    for row, low, high in zip(rows, first, last, strict=True):
        for index in range(per_chunk):
            if (index + 1) * layout.block_tokens <= low or index * layout.block_tokens >= high:
                row[index] = -1
    return Plan(chance.sample(range(slots), count), rows, first, last)


@pytest.fixture
def make_plan():
    return random_plan
