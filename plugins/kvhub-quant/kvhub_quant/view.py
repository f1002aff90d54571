"""Keys and values of a payload as arrays, without a copy, wherever the layout puts them."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np

from kvhub.layout import Layout

Array = np.ndarray[Any, Any]
_PIECE = 1 << 16
"""Numbers at a time: what is computed on them stays in a core's cache."""


def vectors(items: Array, layout: Layout) -> list[tuple[Array, int]]:
    """(array, axis of the head's dimension) for keys and for values; for MLA the latent alone.

    `items` holds whole blocks.  Axes are the layout's from the slowest to the fastest, behind one for the blocks and
    without the one of key-or-value.
    """
    sizes = {"l": layout.layers, "h": layout.heads, "t": layout.block_tokens, "d": layout.key_dim}
    of_values = sizes | {"d": layout.value_dim}
    if layout.kind == "mla":
        return [_shaped(items, (-1,), layout.key_order, sizes)]
    cut = layout.key_order.index("c")
    outer = layout.key_order[:cut]
    keys, values = layout.key_order[cut + 1 :], layout.value_order[cut + 1 :]
    most = prod(sizes[axis] for axis in keys)
    rows = items.reshape(-1, *(sizes[axis] for axis in outer), most + prod(of_values[axis] for axis in values))
    lead = rows.shape[:-1]
    return [
        _shaped(rows[..., :most], lead, keys, sizes, outer),
        _shaped(rows[..., most:], lead, values, of_values, outer),
    ]


def _shaped(rows: Array, lead: tuple[int, ...], axes: str, sizes: dict[str, int], outer: str = "") -> tuple[Array, int]:
    return rows.reshape(*lead, *(sizes[axis] for axis in axes)), 1 + (outer + axes).index("d")


def pieces(array: Array, axis: int) -> Iterator[tuple[slice | int, ...]]:
    """Indices that cut an array along its first axes into pieces of bearable size, never along `axis`."""
    for block in range(array.shape[0]):
        if array.ndim < 3 or axis == 1:
            yield (slice(block, block + 1),)
            continue
        step = max(1, _PIECE * array.shape[1] // max(1, array[block].size))
        for first in range(0, array.shape[1], step):
            yield slice(block, block + 1), slice(first, first + step)
