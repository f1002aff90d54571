"""Every copy, byte for byte against the oracle: all layouts, random ranges, random tables, padded pages."""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch")

from kvhub_kernels import Plan, copying, cpu_native, cpu_torch, gather, known, scatter  # noqa: E402


def layouts(layers=2, tokens=4, heads=3, dim=4, dtype="float32", value_dim=0):
    return {
        "vec": known.vllm_cpu(layers, tokens, heads, dim, dtype, instruction_set="vec", value_dim=value_dim),
        "nhd": known.nhd(layers, tokens, heads, dim, dtype, value_dim=value_dim),
        "hnd": known.hnd(layers, tokens, heads, dim, dtype, value_dim=value_dim),
        "canonical": known.canonical(layers, tokens, heads, dim, dtype, value_dim=value_dim),
    }


STRAIGHT = layouts() | {
    "mla": known.mla(2, 4, 9, "bfloat16"),
    "mixed-dims": known.hnd(2, 4, 2, 4, "float16", value_dim=2),
    "fp8": known.nhd(1, 8, 2, 16, "float8_e4m3fn"),
}


@pytest.mark.parametrize("name", STRAIGHT)
def test_gather_and_scatter_write_the_range_and_nothing_else(kernel, world, make_plan, name):
    for seed in range(1 if kernel == "triton" else 3):  # the interpreter is slow
        layout, chance = STRAIGHT[name], random.Random(seed)
        size = 2 * layout.block_bytes + 8 * chance.randint(0, 3)
        memory = world(layout, blocks=7, slots=4, slot_bytes=size, pad=8 * (seed % 3), one=seed % 2 == 0, seed=seed)
        for partial in (False, True):
            plan = make_plan(chance, layout, slots=4, blocks=7, per_chunk=2, partial=partial)
            for into_engine, call in ((False, gather), (True, scatter)):
                stores, slots, moved = memory.expect(plan, layout, into_engine=into_engine)
                assert call(memory.engine, memory.arena, plan) == moved
                assert memory.stores == stores
                assert memory.slot_memory == slots


PAIRS = [(a, b) for a in layouts() for b in layouts() if a != b]


@pytest.mark.parametrize(("stored", "own"), PAIRS)
def test_scatter_converts_between_all_cuttable_layouts(kernel, world, make_plan, stored, own):
    chance = random.Random(f"{stored} {own}")
    cases = [("float32", 4, 4, 0), ("bfloat16", 4, 8, 2), ("uint8", 6, 4, 0)]
    if kernel == "triton":  # the interpreter takes a second per case
        cases = [chance.choice(cases)]
    for dtype, tokens, source_tokens, value_dim in cases:
        source = layouts(tokens=source_tokens, dtype=dtype, value_dim=value_dim)[stored]
        target = layouts(tokens=tokens, dtype=dtype, value_dim=value_dim)[own]
        slot_bytes = source.payload_bytes(2 * tokens) + 16
        memory = world(target, blocks=6, slots=3, slot_bytes=slot_bytes, pad=16, one=False, seed=tokens)
        for partial in (False, True):
            plan = make_plan(chance, target, slots=3, blocks=6, per_chunk=2, partial=partial)
            stores, slots, moved = memory.expect(plan, source, into_engine=True)
            assert scatter(memory.engine, memory.arena, plan, source) == moved
            assert memory.stores == stores
            assert memory.slot_memory == slots


@pytest.mark.parametrize("dtype", ["uint8", "bfloat16", "float32", "float64"])
def test_transposition_of_sizes_that_fill_no_whole_tile(kernel, world, make_plan, dtype):
    chance = random.Random(dtype)
    sizes = [(32, 48), (33, 35), (70, 17), (1, 66)]
    for tokens, dim in sizes if kernel != "triton" else [chance.choice(sizes)]:
        source = known.vllm_cpu(1, tokens, 2, dim, dtype, instruction_set="vec")
        target = known.nhd(1, tokens, 2, dim, dtype)
        for one, other in ((source, target), (target, source)):
            memory = world(other, blocks=3, slots=2, slot_bytes=one.block_bytes, pad=64, one=True, seed=dim)
            plan = make_plan(chance, other, slots=2, blocks=3, per_chunk=1, partial=tokens > 40)
            stores, _, moved = memory.expect(plan, one, into_engine=True)
            assert scatter(memory.engine, memory.arena, plan, one) == moved
            assert memory.stores == stores


def test_large_batches_through_streaming_stores_and_threads_equal_the_torch_path(world, monkeypatch):
    """Above 2 MiB stores bypass the caches, pages of 16 KiB and more run four ways: the same bytes must arrive."""
    if not cpu_native.available:
        pytest.skip("installed without a compiler")
    for tokens, dim, slack in ((64, 64, 0), (64, 64, 8), (48, 36, 4)):
        vec = known.vllm_cpu(2, tokens, 4, dim, "float32", instruction_set="vec")
        nhd = known.nhd(2, tokens, 4, dim, "float32")
        count = (3 << 20) // vec.block_bytes + 2
        table = random.Random(dim).sample(range(count), count)
        rest = [[block] for block in table], [0] * count, [tokens] * count
        for source, target in ((vec, vec), (vec, nhd), (nhd, vec)):
            size = {"blocks": count, "slots": count, "slot_bytes": source.block_bytes + slack, "pad": slack}
            made = {}
            for name, module, threads in (("torch", cpu_torch, 1), ("one", cpu_native, 1), ("three", cpu_native, 3)):
                memory = world(target, **size, one=False, seed=dim)
                monkeypatch.setattr(copying, "_kernel", lambda s, t, module=module: module)
                plan = Plan(range(count), *rest)
                assert scatter(memory.engine, memory.arena, plan, source, threads=threads) == count * vec.block_bytes
                if source == target:
                    gather(memory.engine, memory.arena, Plan(range(count)[::-1], *rest), threads=threads)
                made[name] = (memory.stores, memory.slot_memory)
            assert made["one"] == made["torch"]
            assert made["three"] == made["torch"]


def test_negative_control_an_exchanged_block_is_noticed(kernel, world):
    """The comparison above must fail for a copy that is wrong in one block only."""
    layout = STRAIGHT["vec"]
    memory = world(layout, blocks=4, slots=2, slot_bytes=2 * layout.block_bytes, pad=0, one=False, seed=1)
    right, wrong = Plan([0], [[2, 1]], [0], [8]), Plan([0], [[1, 2]], [0], [8])
    _, slots, _ = memory.expect(right, layout, into_engine=False)
    gather(memory.engine, memory.arena, wrong)
    assert memory.slot_memory != slots
    gather(memory.engine, memory.arena, right)
    assert memory.slot_memory == slots


def test_negative_control_a_payload_read_in_the_wrong_layout_is_noticed(kernel, world):
    nhd, hnd = layouts()["nhd"], layouts()["hnd"]
    memory = world(hnd, blocks=2, slots=1, slot_bytes=2 * nhd.block_bytes, pad=0, one=False, seed=2)
    plan = Plan([0], [[0, 1]], [0], [8])
    stores, _, _ = memory.expect(plan, nhd, into_engine=True)
    scatter(memory.engine, memory.arena, plan)
    assert memory.stores != stores
    scatter(memory.engine, memory.arena, plan, nhd)
    assert memory.stores == stores


def test_A10_only_the_range_from_local_to_hit_is_written(kernel, world):
    """Engine block 16, chunk 256: 288 local and 512 external tokens write 288..511, and 256..287 stay as they were."""
    layout = known.nhd(1, 16, 1, 2, "bfloat16")
    memory = world(layout, blocks=40, slots=2, slot_bytes=16 * layout.block_bytes, pad=0, one=False, seed=3)
    second = list(range(20, 36))
    before = bytes(memory.stores[0])
    token = layout.block_bytes // 16
    moved = scatter(memory.engine, memory.arena, Plan([1], [second], [32], [256]))
    assert moved == 224 * token
    after = bytes(memory.stores[0])
    assert after[: 22 * layout.block_bytes] == before[: 22 * layout.block_bytes]
    start = 22 * layout.block_bytes
    payload = memory.slot_memory[memory.slot_bytes :]
    assert after[start : start + 14 * layout.block_bytes] == payload[2 * layout.block_bytes : 16 * layout.block_bytes]
    assert after[36 * layout.block_bytes :] == before[36 * layout.block_bytes :]
    # 14816 local and 14820 external round down to the same block: there is nothing to load.
    before = bytes(memory.stores[0])
    assert scatter(memory.engine, memory.arena, Plan([1], [[-1, 5] + [-1] * 14], [16], [16])) == 0
    assert bytes(memory.stores[0]) == before


def test_A22_rows_with_inline_scales_move_as_opaque_bytes_of_declared_size(kernel, world):
    """128 fp8 numbers and one fp32 scale per head: rows of 132 bytes, pages of 16 x 8 rows."""
    layout = known.opaque(2, 16, 2 * 132 * 16 * 8, tag="fp8 with a scale per head")
    memory = world(layout, blocks=4, slots=2, slot_bytes=2 * layout.block_bytes, pad=512, one=False, seed=4)
    assert memory.page == 16896
    before, _ = memory.copies()
    gather(memory.engine, memory.arena, Plan([1], [[3, 0]], [0], [32]))
    for store in memory.stores:
        for block in (0, 3):
            store[block * memory.step : block * memory.step + memory.page] = bytes(memory.page)
    assert memory.stores != before
    scatter(memory.engine, memory.arena, Plan([1], [[3, 0]], [0], [32]))
    assert memory.stores == before
