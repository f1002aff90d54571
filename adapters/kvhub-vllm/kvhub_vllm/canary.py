"""The canary: proves what this engine's KV blocks mean, through the engine's own write path.

A scratch tensor of the real tensors' shape gets a known pattern, written by the very code that the model's forward pass
will use.  A layout is believed only if reading the scratch through it gives the pattern back, bit for bit.  So a new
version of the engine, or another instruction set, that packs its blocks differently is noticed at start, not in the
answers: its blocks are then opaque, moved whole and shared only with engines that are the same.
"""

from __future__ import annotations

from typing import Any

import attrs
import torch

from kvhub.errors import LayoutError
from kvhub.layout import Layout
from kvhub_kernels import EngineBlocks, Plan, arena_tensor, gather

CANONICAL = {"attention": ("lcthd", "lcthd"), "mla": ("lthd", "")}
ORDERS = (
    ("lhcdt", "lhctd"),  # CPU "vec": keys transposed inside a head
    ("lchtd", "lchtd"),  # HND
    ("lcthd", "lcthd"),  # NHD
    ("lhtcd", "lhtcd"),  # HND, keys and values fused per token
    ("lthcd", "lthcd"),  # NHD, fused
    ("lhctd", "lhctd"),
)
BLOCKS = 2


@attrs.frozen
class Proof:
    """A layout, and why it is only opaque if it is."""

    layout: Layout
    why_opaque: str = ""


def prove(layer: Any, tensor: torch.Tensor, spec: Any, layers: int, *, tag: str) -> Proof:
    """The layout of one KV block (all `layers` of it), proven on a scratch copy of `tensor`'s shape.

    `layer` is the engine's attention layer that owns `tensor`; `spec` its KV spec.  Opaque, tagged with `tag`, where no
    known layout gives the pattern back.  Raises LayoutError for blocks that are not contiguous.
    """
    page = tensor[0].numel() * tensor.element_size()
    if not tensor[0].is_contiguous():
        raise LayoutError(
            f"KV of {tuple(tensor.shape)} with strides {tensor.stride()}: a block is not one stretch of memory in this "
            f"engine's layout; choose a layout whose first axis is the block (vLLM: HND or NHD with blocks first)"
        )
    opaque = Layout("opaque", layers, int(spec.block_size), opaque_bytes=page * layers, tag=tag)
    mla = "MLA" in type(spec).__name__
    try:
        pattern = _write(layer, tensor, spec, mla)
    except Exception as error:
        return Proof(opaque, f"the engine's write path refused a test pattern: {type(error).__name__}: {error}")
    scratch, expected = pattern
    for orders in (CANONICAL["mla"],) if mla else ORDERS:
        try:
            candidate = _layout(spec, tensor, 1, orders, mla)
            if candidate.block_bytes == page and torch.equal(_read(scratch, candidate), expected):
                return Proof(_layout(spec, tensor, layers, orders, mla))
        except (LayoutError, RuntimeError, ValueError):
            continue
    return Proof(opaque, "a test pattern came back in no known order")


def _layout(spec: Any, tensor: torch.Tensor, layers: int, orders: tuple[str, str], mla: bool) -> Layout:
    value = 0 if mla else int(getattr(spec, "head_size_v", None) or spec.head_size)
    return Layout(
        "mla" if mla else "attention",
        layers,
        int(spec.block_size),
        int(spec.num_kv_heads),
        int(spec.head_size),
        value,
        str(tensor.dtype).removeprefix("torch."),
        orders[0],
        orders[1],
    )


def _write(layer: Any, tensor: torch.Tensor, spec: Any, mla: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Write a pattern through the engine; (scratch tensor, canonical bytes [blocks, block bytes])."""
    scratch = torch.zeros((BLOCKS, *tensor.shape[1:]), dtype=tensor.dtype, device=tensor.device)
    tokens, heads, size = BLOCKS * int(spec.block_size), int(spec.num_kv_heads), int(spec.head_size)
    slots = torch.arange(tokens, dtype=torch.int64, device=tensor.device)
    kind = getattr(layer, "dtype", None) or (tensor.dtype if tensor.dtype.is_floating_point else torch.float32)
    # Small integers in a fixed shuffle: exact in every floating type down to bfloat16, and no two neighbours alike.
    generator = torch.Generator().manual_seed(7)
    if mla:
        rope = int(layer.qk_rope_head_dim)
        whole = _numbers((tokens, 1, size), generator, kind, tensor.device)
        latent, rotary = whole[:, 0, : size - rope].contiguous(), whole[:, :, size - rope :].contiguous()
        # Registered with a head axis of one in some versions, while their write path wants it without.
        cache = scratch.squeeze(1) if scratch.dim() == 4 and scratch.shape[1] == 1 else scratch
        layer.impl.do_kv_cache_update(latent, rotary, cache, slots, "auto", layer._k_scale)
        return scratch, whole.to(tensor.dtype).reshape(BLOCKS, -1).view(torch.uint8)
    value_size = int(getattr(spec, "head_size_v", None) or size)
    key = _numbers((tokens, heads, size), generator, kind, tensor.device)
    value = _numbers((tokens, heads, value_size), generator, kind, tensor.device)
    layer.impl.do_kv_cache_update(layer, key, value, scratch, slots)
    parts = [part.to(tensor.dtype).reshape(BLOCKS, -1) for part in (key, value)]
    return scratch, torch.cat(parts, dim=1).contiguous().view(torch.uint8)


def _numbers(shape: tuple[int, ...], generator: torch.Generator, kind: torch.dtype, device: Any) -> torch.Tensor:
    return torch.randint(-127, 128, shape, generator=generator).to(device=device, dtype=kind)


def _read(scratch: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Blocks of `scratch` as canonical bytes, through the kernels that will move the real ones."""
    from kvhub_kernels import convert

    engine = EngineBlocks([scratch], layout)
    buffer = bytearray(BLOCKS * layout.block_bytes)
    arena = arena_tensor(memoryview(buffer), BLOCKS, layout.block_bytes)
    tokens = layout.block_tokens
    gather(engine, arena, Plan((0, 1), ((0,), (1,)), (0, 0), (tokens, tokens)))
    orders = CANONICAL[layout.kind]
    canonical = Layout(
        layout.kind, 1, tokens, layout.heads, layout.key_dim, layout.value_dim, layout.dtype, orders[0], orders[1]
    )
    out = torch.empty_like(arena)
    convert(layout, canonical, arena, out)
    return out
