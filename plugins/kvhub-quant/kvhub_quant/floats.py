"""Numbers: 16-bit and 32-bit floats to float32 and back, and float32 to fp8 codes and back.

fp8 is e4m3 as in the OCP "8-bit Floating Point Specification" (1 sign, 4 exponent with a bias of 7, 3 mantissa, largest
448).  A float16 has a bias of 15, so that the code of x is the upper half of the float16 of x / 256, rounded: numpy has
instructions for float16, and this is more than twice as fast as a table of the library `ml_dtypes`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
STORED = {"bfloat16": "<u2", "float16": "<f2", "float32": "<f4"}
"""Layout dtype -> how numpy sees its items; it knows no bfloat16."""
LARGEST = 448.0
_SHIFT = np.float32(256.0)


def to_float32(items: Array, dtype: str) -> Array:
    """The numbers of items as `STORED` says; a new array, or `items` itself."""
    if dtype == "bfloat16":
        return (items.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return items.astype(np.float32, copy=False)


def from_float32(numbers: Array, dtype: str) -> Array:
    """The nearest items, ties to even."""
    if dtype == "bfloat16":
        bits = numbers.view(np.uint32)
        odd = (bits >> np.uint32(16)) & np.uint32(1)
        return ((bits + (np.uint32(0x7FFF) + odd)) >> np.uint32(16)).astype(np.uint16)
    return numbers.astype(STORED[dtype], copy=False)


def to_fp8(numbers: Array) -> Array:
    """Codes of numbers from -448 to 448, off by 1/16 + 1/2048 of the number at most, or by 2**-10 below 2**-6."""
    bits = (numbers * (1 / _SHIFT)).astype(np.float16).view(np.uint16)
    rounded = (bits + (np.uint16(0x3F) + ((bits >> np.uint16(7)) & np.uint16(1)))) >> np.uint16(7)
    return ((rounded & np.uint16(0x7F)) | ((bits >> np.uint16(8)) & np.uint16(0x80))).astype(np.uint8)


def _table() -> Array:
    codes = np.arange(256, dtype=np.uint16)
    halves = ((codes & np.uint16(0x80)) << np.uint16(8)) | ((codes & np.uint16(0x7F)) << np.uint16(7))
    return halves.view(np.float16).astype(np.float32) * _SHIFT


_OF_CODE = _table()


def from_fp8(codes: Array) -> Array:
    """The numbers that codes stand for; the two that stand for none in e4m3 come as 480 and are never written."""
    return np.take(_OF_CODE, codes)
