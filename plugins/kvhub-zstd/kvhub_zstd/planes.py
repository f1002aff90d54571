"""Byte planes: all highest bytes of the items together, then all second ones, and so on.

Of a float the highest byte is sign and exponent, which takes few values in KV; the lowest is noise.  Numbers in memory
are little endian, so the highest byte of an item is its last.
"""

from __future__ import annotations

from typing import Any

import numpy as np

WIDTHS = (1, 2, 4, 8)
_PIECE = 1 << 15
"""Items at a time: what is read and written stays in a core's cache, which doubles the speed."""

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


def _items(data: Bytes, width: int) -> np.ndarray[Any, Any]:
    return data.view(np.dtype(f"<u{width}"))


def split(data: Bytes, width: int) -> list[Bytes]:
    """The planes, highest first; `data` has a multiple of `width` bytes."""
    if width == 1:
        return [data]
    items = _items(data, width)
    planes = [np.empty(len(items), np.uint8) for _ in range(width)]
    for start in range(0, len(items), _PIECE):
        piece = items[start : start + _PIECE]
        for at, plane in enumerate(planes):
            part = plane[start : start + _PIECE]
            np.right_shift(piece, np.array(8 * (width - 1 - at), items.dtype), out=part, casting="unsafe")
    return planes


def join(planes: list[Bytes], target: Bytes) -> None:
    """Fill `target` from its planes, highest first."""
    if len(planes) == 1:
        np.copyto(target, planes[0])
        return
    items = _items(target, len(planes))
    eight = np.array(8, items.dtype)
    for start in range(0, len(items), _PIECE):
        piece = items[start : start + _PIECE]
        np.copyto(piece, planes[0][start : start + _PIECE])
        for plane in planes[1:]:
            np.left_shift(piece, eight, out=piece)
            np.bitwise_or(piece, plane[start : start + _PIECE], out=piece)
