"""`ZstdCodec`: byte planes, each compressed where that pays and stored as it is where not.

offset  size       field
     0     1       form (1)
     1     1       width: bytes of an item, 1, 2, 4 or 8
     2     1       planes that are zstd frames, one bit each; bit 0 is the highest plane
     3     5       zero
     8     8 each  stored bytes of each plane, highest first (little endian)
         ...       the planes, then the bytes behind the last whole item
"""

from __future__ import annotations

import struct
import threading
from typing import ClassVar

import attrs
import numpy as np
import zstandard

from kvhub.codec import About, Codec
from kvhub.errors import Foreign, LayoutError
from kvhub.layout import Layout
from kvhub_zstd import planes

FORM = 1
_HEAD = struct.Struct("<BBB5x")
_MOST_LEVEL = 19
_SAMPLE = 1 << 16
"""Bytes that are tried where the width of an item is not known."""


def _level(value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST_LEVEL:
        raise ValueError(f"expected a level from 1 (fast) to {_MOST_LEVEL}, found {value!r}")
    return value


@attrs.frozen
class ZstdConfig:
    """The options of `use: zstd`."""

    level: int = attrs.field(
        default=1,
        converter=_level,
        metadata={"help": "zstd's level; above 1 saving takes several times longer, and KV gets hardly smaller"},
    )


class _Tools(threading.local):
    """zstandard's objects may not be used by two threads at once."""

    def __init__(self, level: int) -> None:
        self.compressor = zstandard.ZstdCompressor(level=level)
        self.decompressor = zstandard.ZstdDecompressor()


class ZstdCodec(Codec):
    """Exact.  What gets smaller by less than a twentieth is stored as it is: decoding costs more than that saves."""

    name, code = "zstd", 1
    Config = ZstdConfig
    least_ratio: ClassVar[float] = 1.05
    config: ZstdConfig

    def __init__(self, config: ZstdConfig, name: str) -> None:
        super().__init__(config, name)
        self._tools = _Tools(config.level)

    def encode(self, payload: memoryview, about: About) -> memoryview | None:
        data = np.frombuffer(payload, np.uint8)
        width = self._width(data, "" if about.encoded else about.layout)
        whole = len(data) // width * width
        mask, parts = 0, list[bytes | memoryview]()
        for at, plane in enumerate(planes.split(data[:whole], width)):
            packed = self._packed(plane)
            if packed is not None:
                mask |= 1 << at
            parts.append(plane.data if packed is None else packed)
        sizes = struct.pack(f"<{width}Q", *(len(part) for part in parts))
        return self._joined([_HEAD.pack(FORM, width, mask) + sizes, *parts, data[whole:].data], len(data))

    def decode(self, stored: memoryview, room: memoryview, about: About) -> int:
        form, width, mask = _HEAD.unpack_from(stored)
        if form != FORM:
            raise Foreign("form")
        if width not in planes.WIDTHS or mask >> width:
            raise ValueError(f"width {width}, planes {mask:#x}")
        target = np.frombuffer(room, np.uint8)
        count = len(target) // width
        start = _HEAD.size + 8 * width
        parts = []
        for at, size in enumerate(struct.unpack_from(f"<{width}Q", stored, _HEAD.size)):
            if size > stored.nbytes - start:
                raise ValueError("a plane ends behind the payload")
            parts.append(self._plane(stored[start : start + size], count, packed=bool(mask >> at & 1)))
            start += size
        rest = np.frombuffer(stored[start:], np.uint8)
        if len(rest) != len(target) - count * width:
            raise ValueError(f"{len(rest)} bytes behind the planes")
        planes.join(parts, target[: count * width])
        target[count * width :] = rest
        return len(target)

    def _joined(self, parts: list[bytes | memoryview], before: int) -> memoryview | None:
        """The parts in one piece, if that is small enough; `b"".join` would let no other thread run meanwhile."""
        size = sum(map(len, parts))
        if size * self.least_ratio > before:
            return None
        made, at = np.empty(size, np.uint8), 0
        for part in parts:
            np.copyto(made[at : at + len(part)], np.frombuffer(part, np.uint8))
            at += len(part)
        return made.data

    def _width(self, data: planes.Bytes, text: str) -> int:
        """Bytes of an item: as the layout says, or where it says nothing the width that compresses best."""
        try:
            layout = Layout.parse(text)
            if layout.cuttable:
                return layout.item_bytes
        except LayoutError:
            pass
        middle = max(len(data) - _SAMPLE, 0) // 16 * 8
        sample = data[middle : middle + _SAMPLE]
        return min((self._tried(sample[: len(sample) // 8 * 8], width), width) for width in (1, 2, 4))[1]

    def _tried(self, sample: planes.Bytes, width: int) -> int:
        parts = planes.split(sample, width)
        return sum(len(part if (packed := self._packed(part)) is None else packed) for part in parts)

    def _packed(self, plane: planes.Bytes) -> bytes | None:
        """The plane as a zstd frame, or None where that is not smaller by a sixteenth.

        A part of it is tried first: the low planes of floats are noise, and noise takes the longest.
        """
        pack = self._tools.compressor.compress
        middle = max(len(plane) - _SAMPLE, 0) // 2
        sample = plane[middle : middle + _SAMPLE]
        if len(pack(sample.data)) * 16 > len(sample) * 15:
            return None
        packed: bytes = pack(plane.data)
        return packed if len(packed) * 16 <= len(plane) * 15 else None

    def _plane(self, part: memoryview, count: int, *, packed: bool) -> planes.Bytes:
        if packed:
            # The frame's own word is held to first: a frame of a few bytes may unpack to any number.
            if zstandard.get_frame_parameters(part).content_size != count:
                raise ValueError("a plane of another length")
            found = np.frombuffer(self._tools.decompressor.decompress(part, allow_extra_data=False), np.uint8)
        else:
            found = np.frombuffer(part, np.uint8)
        if len(found) != count:
            raise ValueError(f"a plane of {len(found)} bytes, not {count}")
        return found
