"""KV that looks like a model's: channels with scales and offsets of their own, a few outliers, tokens that resemble."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np

from kvhub.layout import Layout

Array = np.ndarray[Any, Any]
NHD = Layout(
    "attention", layers=4, block_tokens=16, heads=2, key_dim=64, value_dim=64, dtype="bfloat16",
    key_order="lcthd", value_order="lcthd",
)  # fmt: skip
HND = attrs.evolve(NHD, key_order="lchtd", value_order="lchtd")
TURNED = attrs.evolve(NHD, key_order="lhcdt", value_order="lhctd", value_dim=32)
MLA = Layout("mla", layers=4, block_tokens=16, key_dim=144, dtype="bfloat16", key_order="lthd")
OPAQUE = Layout("opaque", layers=4, block_tokens=16, opaque_bytes=NHD.block_bytes, tag="blocks of an engine")
UNKNOWN = '{"kind":"of the future"}'


def numbers(count: int, dim: int, seed: int = 1) -> Array:
    """float32 of shape (count, dim), rows being neighbouring tokens."""
    draw = np.random.default_rng(seed)
    scale = np.exp(draw.normal(0.0, 0.7, dim))
    scale[draw.choice(dim, max(1, dim // 32), replace=False)] *= 12.0
    offset = draw.normal(0.0, 1.0, dim) * scale
    steps = draw.normal(0.0, 1.0, (count, dim))
    rows = np.empty_like(steps)
    last = steps[0]
    for at in range(count):
        last = 0.5 * last + 0.87 * steps[at]
        rows[at] = last
    return (rows * scale * 0.4 + offset).astype(np.float32)


def stored(values: Array, dtype: str) -> bytes:
    """Numbers as items of a layout's dtype; fp8 cuts the mantissa instead of rounding."""
    if dtype == "bfloat16":
        return (values.view(np.uint32) >> np.uint32(16)).astype("<u2").tobytes()
    if dtype in ("float8_e4m3fn", "float8_e5m2"):
        halves = (values / 256).astype(np.float16).view(np.uint16)
        shift = 7 if dtype == "float8_e4m3fn" else 8
        return (
            (((halves & np.uint16(0x7FFF)) >> np.uint16(shift)) | (halves >> np.uint16(8)) & np.uint16(0x80))
            .astype(np.uint8)
            .tobytes()
        )
    return values.astype({"float16": "<f2", "float32": "<f4"}[dtype]).tobytes()


def kv(layout: Layout, tokens: int, seed: int = 1) -> bytes:
    """A payload of `layout`, rows of numbers along its fastest axes; of opaque layouts bfloat16."""
    size = layout.payload_bytes(tokens)
    dtype = layout.dtype if layout.cuttable else "bfloat16"
    items = size // (layout.item_bytes if layout.cuttable else 2)
    dim = layout.key_dim or 64
    return stored(numbers(-(-items // dim), dim, seed).reshape(-1)[:items], dtype)
