"""`Fp8Codec` and `Int8Codec`: one code per number, one scale per vector of a head.

    offset  size     field
         0     1     form (1)
         1     7     zero
         8   ...     for keys, then for values (MLA: the latent alone):
                         scales, float32 little endian, in the layout's order of axes without the head's dimension
                         codes, one byte for each number, in the layout's order

A number is its code's value times its scale.  Sizes follow from the layout and from the payload's length.

Why a scale for each layer, token, head and K or V: a scale must cover its largest number, and of KV these lie in a few
channels of the keys, some layers and the first tokens.  A coarser scale would let one token's outlier round its
neighbours away.  It costs 4 bytes for each `dim` numbers: 3 % at 128.
"""

from __future__ import annotations

import abc
import struct
from typing import ClassVar

import attrs
import numpy as np

from kvhub.codec import About, Codec
from kvhub.errors import Foreign, LayoutError
from kvhub.layout import Layout
from kvhub.tail import kept_tokens
from kvhub_quant import floats, view
from kvhub_quant.floats import Array

FORM = 1
_HEAD = struct.Struct("<B7x")
_SMALLEST = 1e-30
"""Vectors whose largest number is below become zeros: the reciprocal of their scale would be no number."""


@attrs.frozen
class QuantConfig:
    """The options of `use: quant/fp8` and `use: quant/int8`: there are none."""


class _Eight(Codec):
    """What both have in common."""

    lossy = True
    Config = QuantConfig
    largest: ClassVar[float]
    """The largest number that a code stands for."""

    @classmethod
    def identity(cls, config: QuantConfig) -> str:
        return f"{cls.name} per token and head, form {FORM}"

    @abc.abstractmethod
    def _codes(self, numbers: Array) -> Array:
        """Codes of numbers whose absolute value is `largest` at most."""

    @abc.abstractmethod
    def _numbers(self, codes: Array) -> Array:
        """What codes, as bytes, stand for; float32."""

    def encode(self, payload: memoryview, about: About) -> memoryview | None:
        layout = _known(about.layout) if not about.encoded else None
        if layout is None or payload.nbytes % layout.block_bytes or not payload.nbytes:
            return None
        if kept_tokens(payload, layout):
            return None
        items = np.frombuffer(payload, floats.STORED[layout.dtype])
        parts = view.vectors(items, layout)
        # Not a bytearray: that is filled with zeros first, and no other thread runs meanwhile.
        made = np.empty(_HEAD.size + sum(_stored(array, axis) for array, axis in parts), np.uint8).data
        _HEAD.pack_into(made, 0, FORM)
        start = _HEAD.size
        for array, axis in parts:
            scales, codes = _places(made[start:], array, axis)
            for piece in view.pieces(array, axis):
                numbers = floats.to_float32(array[piece], layout.dtype)
                top = np.abs(numbers).max(axis, keepdims=True)
                if not np.isfinite(top).all():
                    return None
                top = np.where(top < _SMALLEST, np.float32(0), top)
                scales[piece] = top.squeeze(axis) / np.float32(self.largest)
                with np.errstate(divide="ignore"):
                    factor = np.where(top > 0, np.float32(self.largest) / top, np.float32(0))
                codes[piece] = self._codes(numbers * factor)
            start += _stored(array, axis)
        return made

    def decode(self, stored: memoryview, room: memoryview, about: About) -> int:
        (form,) = _HEAD.unpack_from(stored)
        if form != FORM:
            raise Foreign("form")
        layout = _known(about.layout)
        if layout is None:
            raise Foreign("layout")
        parts = view.vectors(np.frombuffer(room, floats.STORED[layout.dtype]), layout)
        if stored.nbytes != _HEAD.size + sum(_stored(array, axis) for array, axis in parts):
            raise ValueError(f"{stored.nbytes} bytes stored for {room.nbytes}")
        start = _HEAD.size
        for array, axis in parts:
            scales, codes = _places(stored[start:], array, axis)
            if not np.isfinite(scales).all():
                raise ValueError("a scale is no number")
            for piece in view.pieces(array, axis):
                numbers = self._numbers(codes[piece])
                with np.errstate(over="ignore"):  # only of scales that no writer of ours has stored
                    numbers *= np.expand_dims(scales[piece], axis)
                    array[piece] = floats.from_float32(numbers, layout.dtype)
            start += _stored(array, axis)
        return room.nbytes


class Int8Codec(_Eight):
    """Whole numbers from -127 to 127: each number is off by 1/254 of its vector's largest at most."""

    name, code, kind, largest = "int8", 3, "int8", 127.0

    def _codes(self, numbers: Array) -> Array:
        return np.rint(numbers, out=numbers).astype(np.int8).view(np.uint8)

    def _numbers(self, codes: Array) -> Array:
        return codes.view(np.int8).astype(np.float32)


class Fp8Codec(_Eight):
    """Floats of 8 bits, e4m3: each number is off by a fifteenth of itself at most, small ones of a vector by more."""

    name, code, kind, largest = "fp8", 2, "fp8", floats.LARGEST

    def _codes(self, numbers: Array) -> Array:
        return floats.to_fp8(numbers)

    def _numbers(self, codes: Array) -> Array:
        return floats.from_fp8(codes)


def _known(text: str) -> Layout | None:
    """The layout, if its numbers are floats of more than 8 bits and can be told apart."""
    try:
        layout = Layout.parse(text)
    except LayoutError:
        return None
    return layout if layout.cuttable and layout.dtype in floats.STORED else None


def _stored(array: Array, axis: int) -> int:
    return int(array.size + 4 * (array.size // array.shape[axis]))


def _places(memory: memoryview, array: Array, axis: int) -> tuple[Array, Array]:
    """Where in `memory` the scales and the codes of an array are."""
    shape = array.shape
    count = array.size // shape[axis]
    scales = np.frombuffer(memory, "<f4", count).reshape(shape[:axis] + shape[axis + 1 :])
    codes = np.frombuffer(memory, np.uint8, array.size, offset=4 * count).reshape(shape)
    return scales, codes
