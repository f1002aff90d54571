"""Where each number of a block lies: a layout's axis orders turned into byte strides, one plane for K and one for V."""

from __future__ import annotations

from functools import lru_cache

import attrs

from kvhub.errors import LayoutError
from kvhub.layout import Layout


@attrs.frozen
class Plane:
    """Keys or values of one block.  The number (layer l, head h, token t, dim d) lies, in bytes from the block's start,
    at `offset + l * layer + h * head + t * token + d * dim`."""

    offset: int
    layer: int
    head: int
    token: int
    dim: int
    heads: int
    dims: int
    item: int
    """Bytes of one number."""


@lru_cache(maxsize=64)
def planes(layout: Layout) -> tuple[Plane, ...]:
    """(keys, values) of a cuttable layout, (latent,) of MLA.  Raises LayoutError for opaque bytes.

    Axes up to `c` are shared by both planes; behind it each has its own order and its own number of dims, and the
    values follow the keys.
    """
    if not layout.cuttable:
        raise LayoutError(
            f"layout {layout.tag or 'without a tag'!r} of kind 'opaque' has no axes: its blocks move whole and are "
            "never converted; store and retrieve it in whole blocks between engines of the same layout"
        )
    sizes = {"l": layout.layers, "h": layout.heads, "t": layout.block_tokens, "d": layout.key_dim, "c": 2}
    if layout.kind == "mla":
        return (_plane(layout.key_order, sizes, 0, layout, layout.key_dim),)
    cut = layout.key_order.index("c") + 1
    shared = layout.key_order[: cut - 1]
    spans = []
    for order, dims in ((layout.key_order, layout.key_dim), (layout.value_order, layout.value_dim)):
        span = 1
        for letter in order[cut:]:
            span *= dims if letter == "d" else sizes[letter]
        spans.append(span)
    found = []
    for order, dims, start in (
        (layout.key_order, layout.key_dim, 0),
        (layout.value_order, layout.value_dim, spans[0]),
    ):
        own = sizes | {"d": dims}
        strides = _strides(order[cut:], own, 1) | _strides(shared, own, sum(spans))
        found.append(_from_strides(strides, start, layout, dims))
    return tuple(found)


def _strides(order: str, sizes: dict[str, int], fastest: int) -> dict[str, int]:
    strides = {}
    for letter in reversed(order):
        strides[letter] = fastest
        fastest *= sizes[letter]
    return strides


def _plane(order: str, sizes: dict[str, int], start: int, layout: Layout, dims: int) -> Plane:
    return _from_strides(_strides(order, sizes, 1), start, layout, dims)


def _from_strides(strides: dict[str, int], start: int, layout: Layout, dims: int) -> Plane:
    item = layout.item_bytes
    return Plane(
        offset=start * item,
        layer=strides["l"] * item,
        head=strides["h"] * item,
        token=strides["t"] * item,
        dim=strides["d"] * item,
        heads=layout.heads,
        dims=dims,
        item=item,
    )


def walk(source: Plane, target: Plane) -> tuple[int, ...]:
    """How to step through both planes at once, as the kernels take it: heads, dims, item bytes, then the byte strides
    of head, token and dim, of the source and of the target.  Heads that lie end to end in both become one run."""
    heads, dims, item = source.heads, source.dims, source.item
    if source.dim == target.dim == item and source.head == target.head == dims * item:
        heads, dims = 1, heads * dims
    return (heads, dims, item, source.head, source.token, source.dim, target.head, target.token, target.dim)
