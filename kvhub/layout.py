"""What a chunk's bytes mean: layers, heads, K/V order, dtype; and the text of that, which travels with the bytes.

A chunk is `blocks` engine blocks one after the other; each block holds all layers.  Inside a block the order of
the axes is told by two words, one for keys and one for values, over the letters

    l layer    c key-or-value    h head    t token    d dimension

from the slowest axis to the fastest.  The block axis is always the slowest and is not written.  Keys and values
share the letters up to and including `c`; behind it each may go its own way.  Examples, per layer and block:

    vLLM, FlashAttention, NHD     [2, tokens, heads, dim]       "lcthd" / "lcthd"
    vLLM, FlashAttention, HND     [2, heads, tokens, dim]       "lchtd" / "lchtd"
    vLLM, CPU, instruction set "vec": keys transposed inside a head, values not, fused in one head
                                  [heads, (dim x tokens | tokens x dim)]    "lhcdt" / "lhctd"
    MLA latent                    [tokens, latent]              "lthd" / "" with one head and no values
    opaque state                  bytes nobody may cut or convert

The key of a chunk does not depend on its layout: a reader converts where both layouts are known.
"""

from __future__ import annotations

import json
from functools import cached_property
from typing import Any

import attrs

from kvhub.errors import LayoutError

ITEM_BYTES = {
    "float32": 4, "float16": 2, "bfloat16": 2, "float64": 8,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "uint8": 1, "int8": 1,
}  # fmt: skip
KINDS = ("attention", "mla", "opaque")
_WORDS = ("kind", "dtype", "key_order", "value_order", "tag")
LAYOUT_TEXT_MAX = 2048
"""Bytes that the text of a layout may take: it has to fit the chunk header with room to spare."""


@attrs.frozen(slots=False)
class Layout:
    """Axis order, sizes and item type of one engine block, all layers; see the module's docstring."""

    kind: str
    layers: int
    block_tokens: int
    heads: int = 1
    """KV heads on this parallel rank."""
    key_dim: int = 0
    value_dim: int = 0
    """0 for MLA, whose latent is kept as keys only."""
    dtype: str = "uint8"
    key_order: str = ""
    value_order: str = ""
    opaque_bytes: int = 0
    """Bytes of one block with all layers; only for `kind="opaque"`."""
    tag: str = ""
    """For opaque bytes: who wrote them and on what (`vllm-cpu amx`).  Equal layouts have equal tags."""

    def __attrs_post_init__(self) -> None:
        problems = list(self._problems())
        if problems:
            raise LayoutError(f"layout of kind {self.kind!r}: " + "; ".join(problems))

    def _problems(self) -> list[str]:
        found = []
        for field in attrs.fields(Layout):
            value, wanted = getattr(self, field.name), str if field.name in _WORDS else int
            if not isinstance(value, wanted) or isinstance(value, bool):
                found.append(f"{field.name} must be of type {wanted.__name__}, found {value!r}")
        if found:
            return found
        if self.kind not in KINDS:
            found.append(f"kind must be one of {', '.join(KINDS)}")
        if self.layers < 1 or self.block_tokens < 1:
            found.append(f"layers and block_tokens must be at least 1, found {self.layers} and {self.block_tokens}")
        if self.dtype not in ITEM_BYTES:
            found.append(f"unknown dtype {self.dtype!r}")
        if self.kind == "opaque":
            if self.opaque_bytes < 1:
                found.append("opaque_bytes must be at least 1")
            return found
        if self.heads < 1 or self.key_dim < 1 or self.value_dim < 0:
            found.append("heads and key_dim must be at least 1")
        letters = "lchtd" if self.kind == "attention" else "lhtd"
        for name, order in (("key_order", self.key_order), ("value_order", self.value_order)):
            if name == "value_order" and self.kind == "mla":
                if order or self.value_dim:
                    found.append("MLA keeps no values: value_order and value_dim must be empty")
            elif sorted(order) != sorted(letters):
                found.append(f"{name} must use each of {letters!r} once, found {order!r}")
        if self.kind == "attention" and not found:
            cut = self.key_order.index("c") + 1
            if self.key_order[:cut] != self.value_order[:cut]:
                found.append(f"orders differ before 'c': {self.key_order!r} and {self.value_order!r}")
            if self.value_dim < 1:
                found.append("value_dim must be at least 1")
            if "d" in self.key_order[:cut] and self.key_dim != self.value_dim:
                found.append("with 'd' before 'c', key_dim and value_dim must be equal")
        return found

    @property
    def cuttable(self) -> bool:
        """Whether single tokens can be addressed; opaque bytes move in whole blocks only."""
        return self.kind != "opaque"

    @cached_property
    def item_bytes(self) -> int:
        """Bytes of one number."""
        return ITEM_BYTES[self.dtype]

    @cached_property
    def block_bytes(self) -> int:
        """Bytes of one block with all its layers."""
        if self.kind == "opaque":
            return self.opaque_bytes
        dims = self.key_dim + self.value_dim
        return self.layers * self.block_tokens * self.heads * dims * self.item_bytes

    @property
    def token_bytes(self) -> float:
        """Bytes per token, all layers; for planning and metrics."""
        return self.block_bytes / self.block_tokens

    def payload_bytes(self, tokens: int) -> int:
        """Bytes of a chunk that holds `tokens` tokens: whole blocks, the last one perhaps part filled."""
        return -(-tokens // self.block_tokens) * self.block_bytes

    @cached_property
    def text(self) -> str:
        """Canonical JSON: equal layouts have equal texts, in every process and version of Python."""
        text = json.dumps(attrs.asdict(self), sort_keys=True, separators=(",", ":"))
        if len(text.encode()) > LAYOUT_TEXT_MAX:
            raise LayoutError(f"layout text has {len(text)} bytes, more than {LAYOUT_TEXT_MAX}; shorten its tag")
        return text

    @classmethod
    def parse(cls, text: str) -> Layout:
        """The layout that `text` describes.  Raises LayoutError for anything that this version does not know."""
        try:
            fields: Any = json.loads(text)
            return cls(**fields)
        except (ValueError, TypeError, RecursionError) as error:
            raise LayoutError(f"cannot read a layout from {text[:120]!r}: {error}") from error

    def same_content(self, other: Layout) -> bool:
        """Whether the two hold the same numbers, perhaps in another order: what a conversion needs."""
        return (
            self.cuttable
            and other.cuttable
            and (self.kind, self.layers, self.heads, self.key_dim, self.value_dim, self.dtype)
            == (other.kind, other.layers, other.heads, other.key_dim, other.value_dim, other.dtype)
        )
