"""`ExampleCodec`: payloads deflated by zlib, where that pays.

1 byte   form, 1
n bytes  a zlib stream of the payload
"""

from __future__ import annotations

import zlib
from typing import ClassVar

import attrs

from kvhub.codec import About, Codec
from kvhub.errors import Foreign

FORM = 1
LEAST_SAVED = 20
"""What gets smaller by less than one part in so many is not worth the time to decode it."""


def _level(value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 9:
        raise ValueError(f"expected a level from 1 (fast) to 9 (small), found {value!r}")
    return value


@attrs.frozen
class ExampleCodecConfig:
    """Options of a codec with `use: example`."""

    level: int = attrs.field(default=1, converter=_level, metadata={"help": "1 is fast, 9 makes the least bytes"})


class ExampleCodec(Codec):
    """Exact; what does not get smaller is stored as it is."""

    name: ClassVar[str] = "example"
    code: ClassVar[int] = 159
    """128 to 255 are for codecs of other projects; codecs whose chunks meet in one store need different ones."""
    Config: ClassVar[type] = ExampleCodecConfig

    def encode(self, payload: memoryview, about: About) -> bytes | None:
        made = zlib.compress(payload, self.config.level)
        return bytes([FORM]) + made if len(made) * LEAST_SAVED < payload.nbytes * (LEAST_SAVED - 1) else None

    def decode(self, stored: memoryview, room: memoryview, about: About) -> int:
        if stored[0] != FORM:
            raise Foreign("form")  # a later release wrote it: a miss, and the object stays
        tool = zlib.decompressobj()
        data = tool.decompress(stored[1:], room.nbytes + 1)  # bounded: the stream may come from anyone
        if len(data) != room.nbytes or tool.unconsumed_tail or not tool.eof or tool.unused_data:
            raise ValueError("not what was encoded")
        room[:] = data
        return len(data)
