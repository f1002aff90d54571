"""Layouts that engines are known to use, with where each is known from.

All of them keep one tensor per layer, so 'l' comes first.  Any two with the same layers, heads, dims and dtype convert
into each other.  What is not here is `opaque`: stored and retrieved in whole blocks between equals only.
"""

from __future__ import annotations

from kvhub.errors import LayoutError
from kvhub.layout import Layout

CPU_TRANSPOSED = ("vec", "vec16")
"""vLLM's CPU instruction sets whose blocks are packed as `vllm_cpu` describes."""


def vllm_cpu(
    layers: int, block_tokens: int, heads: int, dim: int, dtype: str, *, instruction_set: str, value_dim: int = 0
) -> Layout:
    """vLLM's CPU_ATTN block, [heads, tokens, 2 * dim] by its shape.

    The shape says nothing about the inside.  For the instruction sets "vec" and "vec16" each head holds its keys as
    [dim, tokens] and behind them its values as [tokens, dim]: measured on vLLM 0.32 by writing marked keys through its
    own `cpu_attn_reshape_and_cache`, and so written in its csrc/cpu/cpu_attn_vec.hpp, which vec16 inherits.  "amx"
    interleaves pairs of numbers in groups of 16 tokens, and other sets have their own ways; those are opaque here.
    """
    if instruction_set not in CPU_TRANSPOSED:
        size = layers * block_tokens * heads * (dim + (value_dim or dim))
        return opaque(
            layers, block_tokens, size * _item(dtype), tag=f"vllm-cpu {instruction_set} {heads}x{dim} {dtype}"
        )
    return _attention("lhcdt", "lhctd", layers, block_tokens, heads, dim, value_dim, dtype)


def nhd(layers: int, block_tokens: int, heads: int, dim: int, dtype: str, *, value_dim: int = 0) -> Layout:
    """FlashAttention's token-major block, [2, tokens, heads, dim]: vLLM with VLLM_KV_CACHE_LAYOUT=NHD, its default."""
    return _attention("lcthd", "lcthd", layers, block_tokens, heads, dim, value_dim, dtype)


def hnd(layers: int, block_tokens: int, heads: int, dim: int, dtype: str, *, value_dim: int = 0) -> Layout:
    """The head-major block, [2, heads, tokens, dim]: vLLM with VLLM_KV_CACHE_LAYOUT=HND (FlashInfer on Blackwell,
    and transfers between different parallel sizes, which cut by head)."""
    return _attention("lchtd", "lchtd", layers, block_tokens, heads, dim, value_dim, dtype)


def canonical(layers: int, block_tokens: int, heads: int, dim: int, dtype: str, *, value_dim: int = 0) -> Layout:
    """Token by token, keys beside values: [tokens, 2, heads, dim].  No engine's; what a tool that reads single tokens
    converts to."""
    return _attention("ltchd", "ltchd", layers, block_tokens, heads, dim, value_dim, dtype)


def mla(layers: int, block_tokens: int, latent: int, dtype: str) -> Layout:
    """Multi-head latent attention, [tokens, latent]: one latent with its rope part per token, the same on every rank
    and in every backend (vLLM's CPU_MLA: block 16, latent 576)."""
    return Layout("mla", layers, block_tokens, key_dim=latent, dtype=dtype, key_order="lthd")


def opaque(layers: int, block_tokens: int, block_bytes: int, *, tag: str) -> Layout:
    """Bytes of `block_bytes` per block (all layers) that nobody may cut: recurrent state, KV with scales in its rows,
    packings of unknown order.  `tag` says who wrote them and on what; different tags never mix."""
    if not tag:
        raise LayoutError("opaque blocks need a tag that says who wrote them and on what, such as 'vllm-cpu amx'")
    return Layout("opaque", layers, block_tokens, opaque_bytes=block_bytes, tag=tag)


def _attention(
    key_order: str, value_order: str, layers: int, block_tokens: int, heads: int, dim: int, value_dim: int, dtype: str
) -> Layout:
    return Layout(
        "attention",
        layers,
        block_tokens,
        heads=heads,
        key_dim=dim,
        value_dim=value_dim or dim,
        dtype=dtype,
        key_order=key_order,
        value_order=value_order,
    )


def _item(dtype: str) -> int:
    return Layout("mla", 1, 1, key_dim=1, dtype=dtype, key_order="lthd").item_bytes
