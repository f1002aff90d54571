"""What is refused, in which words, and that nothing is copied then."""

from __future__ import annotations

import attrs
import pytest

torch = pytest.importorskip("torch")

from kvhub.errors import LayoutError, MisuseError  # noqa: E402
from kvhub.layout import Layout  # noqa: E402
from kvhub_kernels import EngineBlocks, Plan, arena_tensor, convert, gather, known, scatter  # noqa: E402

NHD = known.nhd(2, 16, 8, 4, "bfloat16")


def layers(*shape, dtype=torch.bfloat16, count=2):
    return [torch.zeros(shape, dtype=dtype) for _ in range(count)]


@pytest.mark.parametrize(
    ("tensors", "layout", "words"),
    [
        (layers(5, 2, 16, 8, 4, count=1), NHD, "1 tensors for 2 layers"),
        (layers(5, 2, 16, 8, 4, dtype=torch.float32), NHD, "items of 4 bytes (float32) where bfloat16 has 2"),
        (layers(5, 2, 16, 8, 4, dtype=torch.float16), NHD, "dtype float16 where the layout says bfloat16"),
        (layers(5, 2, 16, 8, 5), NHD, "2560 bytes per block where the layout says 2048"),
        ([x.transpose(2, 3) for x in layers(5, 2, 8, 16, 4)], NHD, "not contiguous inside a block"),
        ([layers(1, 2, 16, 8, 4, count=1)[0].expand(5, -1, -1, -1, -1)] * 2, NHD, "blocks overlap: 0 bytes apart"),
        (layers(5, 2, 16, 8, 4)[:1] + layers(6, 2, 16, 8, 4)[:1], NHD, "layers differ in blocks: 5, 6"),
        (layers(5, 8, 16, 8), Layout("attention", 2, 16, heads=8, key_dim=4, value_dim=4, dtype="bfloat16",
         key_order="clthd", value_order="clthd"), "one tensor per layer needs 'l' as the slowest axis"),
    ],
)  # fmt: skip
def test_tensors_that_contradict_the_layout_are_refused(tensors, layout, words):
    with pytest.raises(LayoutError) as caught:
        EngineBlocks(tensors, layout)
    assert words in str(caught.value)
    assert "declare the layout that the engine really has" in str(caught.value)


def test_A20_head_major_memory_declared_token_major_is_refused_though_the_bytes_are_as_many():
    shape_hnd = layers(5, 2, 8, 16, 4)
    EngineBlocks(shape_hnd, known.hnd(2, 16, 8, 4, "bfloat16"))
    with pytest.raises(LayoutError, match=r"axes of \[2, 8, 16, 4\] where the layout's order says \[2, 16, 8, 4\]"):
        EngineBlocks(shape_hnd, NHD)


def test_A20_known_orders_are_converted_by_marker_and_not_by_shape(world):
    hnd = known.hnd(1, 16, 8, 4, "float32")
    payload = torch.zeros(1, hnd.block_bytes, dtype=torch.uint8)
    marks = payload.view(torch.float32).view(2, 8, 16, 4)
    for head in range(8):
        for token in range(16):
            marks[:, head, token] = 100 * head + token
    blocks = torch.zeros(3, 2, 16, 8, 4)
    engine = EngineBlocks([blocks], known.nhd(1, 16, 8, 4, "float32"))
    scatter(engine, payload, Plan([0], [[2]], [0], [16]), hnd)
    assert blocks[2, 1, 5, 3].tolist() == [305.0] * 4
    assert blocks[:2].abs().sum() == 0


def test_A21_memory_that_keeps_all_keys_before_all_values_is_refused():
    memory = torch.zeros(2, 5, 16, 8, 4, dtype=torch.bfloat16)
    with pytest.raises(LayoutError, match="not contiguous inside a block"):
        EngineBlocks([memory.transpose(0, 1)] * 2, NHD)


def test_opaque_blocks_are_never_copied_in_part_and_never_converted(kernel, world):
    state = known.opaque(2, 16, 640, tag="mamba")
    memory = world(state, blocks=3, slots=2, slot_bytes=1280, pad=32, one=False, seed=5)
    before = memory.copies()
    for call in (gather, scatter):
        with pytest.raises(LayoutError, match=r"1 of 2 blocks would be copied in part.*'mamba' is opaque"):
            call(memory.engine, memory.arena, Plan([0], [[1, 2]], [0], [31]))
    other = known.opaque(2, 16, 640, tag="mamba2")
    with pytest.raises(LayoutError, match="they differ in tag 'mamba2' and 'mamba'"):
        scatter(memory.engine, memory.arena, Plan([0], [[1, 2]], [0], [32]), other)
    assert memory.copies() == before


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"heads": 4}, "heads 4 and 8"),
        ({"dtype": "float16"}, "dtype 'float16' and 'bfloat16'"),
        ({"layers": 3}, "layers 3 and 2"),
        ({"key_dim": 8, "value_dim": 8}, "key_dim 8 and 4, value_dim 8 and 4"),
    ],
)
def test_payloads_of_other_content_are_not_converted(change, words):
    engine = EngineBlocks(layers(5, 2, 16, 8, 4), NHD)
    arena = torch.zeros(2, 1 << 16, dtype=torch.uint8)
    with pytest.raises(LayoutError, match=words):
        scatter(engine, arena, Plan([0], [[1]], [0], [16]), attrs.evolve(NHD, **change))


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (([2], [[1]], [0], [16]), "slots 2 to 2 where the arena has 0 to 1"),
        (([-1], [[1]], [0], [16]), "slots -1 to -1"),
        (([0], [[5]], [0], [16]), "engine blocks 5 to 5 where there are 0 to 4"),
        (([0], [[-1]], [3], [4]), "engine blocks -1 to -1"),
        (([0], [[1]], [0], [17]), r"inside \[0, 16\)"),
        (([0], [[1]], [9], [8]), "run forward"),
        (([0, 1], [[1, 2, 3], [1, 2, 3]], [0, 0], [16, 48]), "slots of 8192 bytes, and 48 tokens take 12288"),
    ],
)
def test_plans_that_name_what_is_not_there_are_misuse_and_copy_nothing(plan, words):
    engine = EngineBlocks(layers(5, 2, 16, 8, 4), NHD)
    arena = torch.ones(2, 8192, dtype=torch.uint8)
    for call in (gather, scatter):
        with pytest.raises(MisuseError, match=words):
            call(engine, arena, Plan(*plan))
    assert arena.eq(1).all()
    assert not any(layer.any() for layer in engine.layers)


def test_plans_of_wrong_shape_or_kind_are_misuse():
    for bad in (
        ([0, 1], [[1]], [0], [16]),
        ([0], [1], [0], [16]),
        ([0], [[1]], [0.5], [16]),
        ([0], [[1], [2, 3]], [0], [1]),
    ):
        with pytest.raises(MisuseError, match="a plan "):
            Plan(*bad)


def test_an_empty_plan_copies_nothing():
    engine = EngineBlocks(layers(5, 2, 16, 8, 4), NHD)
    arena = torch.zeros(2, 8192, dtype=torch.uint8)
    assert gather(engine, arena, Plan([], [], [], [])) == 0
    assert scatter(engine, arena, Plan([0], [[-1]], [7], [7])) == 0


def test_a_plan_survives_as_plain_numbers():
    plan = Plan([3, 1], [[4, -1], [2, 0]], [0, 8], [16, 32])
    sent = {field.name: getattr(plan, field.name).tolist() for field in attrs.fields(Plan)}
    again = Plan(**sent)
    assert again.blocks.tolist() == [[4, -1], [2, 0]]
    assert again.slots.dtype == "int64"


def test_an_arena_is_seen_without_a_copy_and_only_if_it_is_writable_and_of_that_size():
    memory = bytearray(4096)
    arena = arena_tensor(memoryview(memory), 2, 2048)
    arena[1, 5] = 9
    assert memory[2053] == 9
    for view, slots in ((memoryview(bytes(4096)), 2), (memoryview(memory), 3)):
        with pytest.raises(MisuseError, match=f"an arena of {slots} slots of 2048 bytes"):
            arena_tensor(view, slots, 2048)
    engine = EngineBlocks(layers(5, 2, 16, 8, 4), NHD)
    with pytest.raises(MisuseError, match="arena must be uint8"):
        gather(engine, torch.zeros(2, 8192), Plan([0], [[1]], [0], [16]))


def test_convert_brings_payloads_into_another_layout_row_by_row(kernel):
    vec = known.vllm_cpu(2, 4, 2, 8, "float32", instruction_set="vec16")
    token = known.canonical(2, 8, 2, 8, "float32")
    src = torch.randint(0, 255, (3, 2 * vec.block_bytes), dtype=torch.uint8)
    there, back = torch.zeros(3, token.block_bytes, dtype=torch.uint8), torch.zeros_like(src)
    assert convert(vec, token, src, there) == src.numel()
    assert convert(token, vec, there, back) == src.numel()
    assert torch.equal(src, back)
    assert not torch.equal(src, there)
    keys = src.view(torch.float32).view(3, 2, 2, 2, 2, 8 * 4)[:, :, :, :, 0]  # [row, block, layer, head, dim x token]
    seen = there.view(torch.int32).view(3, 2, 8, 2, 2, 8)
    assert seen[1, 1, 6, 0, 1].tolist() == keys[1, 1, 1, 1].view(torch.int32).view(8, 4)[:, 2].tolist()
    with pytest.raises(MisuseError, match="dst has slots of 1024 bytes"):
        convert(vec, token, src, there[:, :1024])


def test_instruction_sets_of_unknown_packing_are_opaque():
    amx = known.vllm_cpu(4, 32, 2, 64, "bfloat16", instruction_set="amx")
    vec = known.vllm_cpu(4, 32, 2, 64, "bfloat16", instruction_set="vec")
    assert (amx.kind, amx.block_bytes) == ("opaque", vec.block_bytes)
    with pytest.raises(LayoutError, match="differ in kind 'opaque' and 'attention'"):
        scatter(EngineBlocks(layers(2, 2, 32, 128, count=4), vec), torch.zeros(1, 1), Plan([], [], [], []), amx)
    with pytest.raises(LayoutError, match="need a tag"):
        known.opaque(1, 16, 64, tag="")


def test_host_memory_that_a_device_cannot_reach_is_refused_with_the_call_that_pins_it():
    pytest.importorskip("triton")
    from kvhub_kernels import cuda_triton
    from kvhub_kernels.sides import SlotSide

    with pytest.raises(LayoutError, match=r"8192 bytes of host memory are not pinned.*cudaHostRegister"):
        cuda_triton.require_reachable(SlotSide(torch.zeros(1, 8192, dtype=torch.uint8), NHD))
