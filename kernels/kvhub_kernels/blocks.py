"""`EngineBlocks`: the engine's KV memory, held against the layout that was declared for it before a byte moves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from kvhub.errors import LayoutError
from kvhub.layout import ITEM_BYTES, Layout


class EngineBlocks:
    """The engine's KV memory: per layer one tensor whose dim 0 is the block.

    `layers[i][block]` holds `layout.block_bytes / layout.layers` bytes, contiguous inside; the step from block to
    block may be larger (padded pages).  Layers may be slices of one storage or separate allocations, on one device.

    Raises LayoutError for a tensor whose strides, item size, dtype or byte count contradict the layout.  Shapes are
    compared too where the tensor has one axis per letter of the layout, so that a head-major block declared token-major
    is refused.  A tensor that passes may still be packed in a way that no shape shows: prove it by a canary through the
    engine's own write path.

    The tensors stay referenced and their addresses are taken once, so an engine must not reallocate them.
    """

    def __init__(self, layers: Sequence[torch.Tensor], layout: Layout) -> None:
        self.layers = tuple(layers)
        self.layout = layout
        problems = list(_problems(self.layers, layout))
        if problems:
            raise LayoutError(
                f"the engine's KV memory contradicts the layout declared for it ({layout.kind}, key order "
                f"{layout.key_order!r}): {'; '.join(problems)}; declare the layout that the engine really has, or "
                "describe the blocks as opaque"
            )
        first = self.layers[0]
        self.device = first.device
        self.blocks = int(first.shape[0])
        self.page_bytes = layout.block_bytes // layout.layers
        """Bytes of one block in one layer."""
        self.addresses = np.array([layer.data_ptr() for layer in self.layers], dtype=np.int64)
        self.steps = np.array([layer.stride(0) * layer.element_size() for layer in self.layers], dtype=np.int64)
        """Bytes from one block to the next, per layer."""


def _problems(layers: tuple[torch.Tensor, ...], layout: Layout) -> list[str]:
    found: list[str] = []
    if layout.cuttable and not layout.key_order.startswith("l"):
        found.append(f"one tensor per layer needs 'l' as the slowest axis, found key order {layout.key_order!r}")
    if len(layers) != layout.layers:
        found.append(f"{len(layers)} tensors for {layout.layers} layers")
        return found
    if layout.block_bytes % layout.layers:
        found.append(f"{layout.block_bytes} bytes per block are not a multiple of {layout.layers} layers")
    page = layout.block_bytes // layout.layers
    for index, layer in enumerate(layers):
        fault = _layer_problem(layer, layout, page)
        if fault:
            found.append(f"layer {index}, shape {tuple(layer.shape)}, strides {tuple(layer.stride())}: {fault}")
    if not found:
        for name, seen in (("blocks", {layer.shape[0] for layer in layers}), ("device", {x.device for x in layers})):
            if len(seen) > 1:
                found.append(f"layers differ in {name}: {', '.join(sorted(map(str, seen)))}")
    return found


def _layer_problem(layer: torch.Tensor, layout: Layout, page: int) -> str:
    if layer.dim() < 1 or layer.shape[0] < 1 or layer.layout != torch.strided:
        return "needs the block as dim 0, at least one block, and plain strides"
    item = layer.element_size()
    dtype = str(layer.dtype).removeprefix("torch.")
    if layout.cuttable:
        if item != layout.item_bytes:
            return f"items of {item} bytes ({dtype}) where {layout.dtype} has {layout.item_bytes}"
        # Integer tensors are how engines hold KV types that torch lacks kernels for (fp8 as uint8).
        if layer.dtype.is_floating_point and dtype in ITEM_BYTES and dtype != layout.dtype:
            return f"dtype {dtype} where the layout says {layout.dtype}"
    inside = layer[0].numel() * item
    if inside != page:
        return f"{inside} bytes per block where the layout says {page}"
    if not layer[0].is_contiguous():
        return "not contiguous inside a block (permute it to the order in which the bytes lie)"
    if layer.shape[0] > 1 and layer.stride(0) * item < page:
        return f"blocks overlap: {layer.stride(0) * item} bytes apart, {page} bytes long"
    expected = _shape(layout)
    seen = [size for size in layer.shape[1:] if size != 1]
    if expected is not None and len(seen) == len(expected) and seen != expected:
        return f"axes of {seen} where the layout's order says {expected}"
    return ""


def _shape(layout: Layout) -> list[int] | None:
    """Sizes of one layer's block in the layout's order, without axes of size 1; None if K and V differ in order."""
    if not layout.cuttable or (
        layout.kind == "attention" and (layout.key_order != layout.value_order or layout.key_dim != layout.value_dim)
    ):
        return None
    sizes = {"c": 2, "h": layout.heads, "t": layout.block_tokens, "d": layout.key_dim}
    return [sizes[letter] for letter in layout.key_order if letter != "l" and sizes[letter] != 1]
