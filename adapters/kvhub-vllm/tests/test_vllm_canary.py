"""The canary against write paths that pack blocks in every known order, and in none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the engine environment: make engine")

import torch

from kvhub.errors import LayoutError
from kvhub_vllm.canary import prove

TOKENS, HEADS, DIM = 16, 2, 8


class FullAttentionSpec:
    block_size, num_kv_heads, head_size, head_size_v = TOKENS, HEADS, DIM, DIM


class MLAAttentionSpec:
    block_size, num_kv_heads, head_size, head_size_v = TOKENS, 1, 24, 0


def layer(write: Any) -> SimpleNamespace:
    return SimpleNamespace(impl=SimpleNamespace(do_kv_cache_update=write), qk_rope_head_dim=8, _k_scale=None)


def packed(key: Any, value: Any, order: str) -> Any:
    """Blocks of [tokens, heads, dim] keys and values in one of the orders, flat per block."""
    blocks = key.shape[0] // TOKENS
    k, v = (part.reshape(blocks, TOKENS, HEADS, DIM) for part in (key, value))
    if order == "transposed keys":
        return torch.cat([k.permute(0, 2, 3, 1).flatten(2), v.permute(0, 2, 1, 3).flatten(2)], dim=2).flatten(1)
    both = torch.stack([k, v])  # c b t h d
    axes = {"HND": (1, 0, 3, 2, 4), "NHD": (1, 0, 2, 3, 4), "fused NHD": (1, 2, 3, 0, 4), "fused HND": (1, 3, 2, 0, 4)}
    return both.permute(axes[order]).flatten(1)


@pytest.mark.parametrize(
    ("order", "words", "shape"),
    [
        ("transposed keys", ("lhcdt", "lhctd"), (HEADS, TOKENS, 2 * DIM)),
        ("HND", ("lchtd", "lchtd"), (2, HEADS, TOKENS, DIM)),
        ("NHD", ("lcthd", "lcthd"), (2, TOKENS, HEADS, DIM)),
        ("fused NHD", ("lthcd", "lthcd"), (TOKENS, HEADS, 2 * DIM)),
        ("fused HND", ("lhtcd", "lhtcd"), (HEADS, TOKENS, 2 * DIM)),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_known_orders_are_recognised(order: str, words: tuple[str, str], shape: tuple[int, ...], dtype: str) -> None:
    """Also where the shape says nothing: transposed keys and fused HND have the same."""

    def write(_: Any, key: Any, value: Any, cache: Any, slots: Any) -> None:
        cache.view(cache.shape[0], -1)[:] = packed(key, value, order).to(cache.dtype)

    tensor = torch.zeros(5, *shape, dtype=getattr(torch, dtype))
    proof = prove(layer(write), tensor, FullAttentionSpec(), 3, tag="t")
    assert proof.why_opaque == ""
    found = proof.layout
    assert (found.kind, found.layers, found.key_order, found.value_order, found.dtype) == (
        "attention",
        3,
        *words,
        dtype,
    )
    assert int(tensor.count_nonzero()) == 0, "the engine's own blocks are not written"


def test_the_latent_of_MLA_is_recognised() -> None:
    def write(latent: Any, rotary: Any, cache: Any, slots: Any, kind: str, scale: Any) -> None:
        assert cache.dim() == 3
        cache.view(-1, 24)[slots] = torch.cat([latent, rotary[:, 0]], dim=1).to(cache.dtype)

    proof = prove(layer(write), torch.zeros(5, 1, TOKENS, 24), MLAAttentionSpec(), 2, tag="t")
    assert (proof.layout.kind, proof.layout.key_dim, proof.layout.value_dim) == ("mla", 24, 0)


def swapped(_: Any, key: Any, value: Any, cache: Any, slots: Any) -> None:
    cache.view(cache.shape[0], -1)[:] = packed(value, key, "NHD")


def reversed_tokens(_: Any, key: Any, value: Any, cache: Any, slots: Any) -> None:
    cache.view(cache.shape[0], -1)[:] = packed(key, value, "NHD").flip(1)


def refusing(*_: Any) -> None:
    raise RuntimeError("needs a device")


@pytest.mark.parametrize(
    ("write", "why"), [(swapped, "no known order"), (reversed_tokens, "no known order"), (refusing, "needs a device")]
)
def test_what_no_layout_explains_is_opaque(write: Any, why: str) -> None:
    tensor = torch.zeros(5, 2, TOKENS, HEADS, DIM)
    proof = prove(layer(write), tensor, FullAttentionSpec(), 3, tag="vllm 9 cpu")
    assert why in proof.why_opaque
    assert (proof.layout.kind, proof.layout.tag) == ("opaque", "vllm 9 cpu")
    assert proof.layout.block_bytes == 3 * 2 * TOKENS * HEADS * DIM * 4


def test_A21_blocks_that_are_not_one_stretch_are_refused() -> None:
    tensor = torch.zeros(2, 5, TOKENS, HEADS, DIM).transpose(0, 1)
    with pytest.raises(LayoutError, match="a block is not one stretch of memory"):
        prove(layer(swapped), tensor, FullAttentionSpec(), 1, tag="t")
