"""The chunk format, the same on every medium: a header of 4096 bytes, then the payload.

All numbers little endian.  Bytes not named are zero.

    offset  size  field
         0     8  magic "KVHUBCHK"
         8     2  version of this format (1)
        10     2  header bytes (4096)
        12     1  codec of the payload (0: none)
        13     1  checksum of the payload (1: xxh3-128 over the stored payload)
        14     2  flags (0)
        16     8  stored payload bytes
        24     8  payload bytes after decoding
        32    32  key
        64    32  namespace digest
        96    16  payload checksum
       112     8  creation time, nanoseconds since 1970
       120     4  how many of its tokens were generated
       124     4  bytes of the layout text
       128    16  writer: incarnation of the hub
       240    16  xxh3-128 over the other 4080 bytes of the header
       256  3840  layout text (JSON, UTF-8)

A reader checks header, key, namespace and length, then the payload.  Anything unexpected is a miss.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Container

import attrs
import xxhash

from kvhub.errors import Damaged as Damaged
from kvhub.errors import Foreign as Foreign
from kvhub.types import KEY_BYTES, MOST_GROWTH, Key

MAGIC = b"KVHUBCHK"
VERSION = 1
HEADER_BYTES = 4096
XXH3_128 = 1
_FIXED = struct.Struct("<8sHHBBHQQ32s32s16sqII16s")
CODEC_AT = 12
"""Where the codec's byte is in a header."""
_SUM_AT, _LAYOUT_AT = 240, 256


@attrs.frozen
class Header:
    """A header that passed its own checksum."""

    key: Key
    namespace: bytes
    stored_bytes: int
    payload_bytes: int
    checksum: bytes
    created_ns: int
    generated: int
    layout: str
    writer: bytes
    codec: int = 0
    checksum_kind: int = XXH3_128
    version: int = VERSION


def payload_checksum(payload: memoryview | bytes) -> bytes:
    """xxh3-128 of the stored payload, 16 bytes."""
    return xxhash.xxh3_128_digest(payload)


class PayloadChecksum:
    """The same, piece by piece: a store that hashes what it has just read finds it in the processor's cache."""

    def __init__(self) -> None:
        self._state = xxhash.xxh3_128()

    def add(self, piece: memoryview) -> None:
        """The next bytes of the payload."""
        self._state.update(piece)

    def digest(self) -> bytes:
        """16 bytes, equal to `payload_checksum` of all pieces in a row."""
        digest: bytes = self._state.digest()
        return digest


def pack(
    key: Key,
    namespace: bytes,
    payload: memoryview | bytes,
    *,
    layout: str = "",
    generated: int = 0,
    writer: bytes = b"",
    codec: int = 0,
    payload_bytes: int | None = None,
    created_ns: int | None = None,
    checksum: bytes = b"",
) -> bytes:
    """The 4096 bytes that go before `payload` (as stored; `payload_bytes` is its length after decoding)."""
    text = layout.encode()
    if len(key) != KEY_BYTES or len(namespace) != KEY_BYTES or len(text) > HEADER_BYTES - _LAYOUT_AT:
        raise ValueError(f"key and namespace have 32 bytes and a layout at most {HEADER_BYTES - _LAYOUT_AT}")
    size = memoryview(payload).nbytes
    header = bytearray(HEADER_BYTES)
    _FIXED.pack_into(
        header, 0, MAGIC, VERSION, HEADER_BYTES, codec, XXH3_128, 0, size,
        size if payload_bytes is None else payload_bytes, key, namespace, checksum or payload_checksum(payload),
        time.time_ns() if created_ns is None else created_ns, generated, len(text), writer[:16],
    )  # fmt: skip
    header[_LAYOUT_AT : _LAYOUT_AT + len(text)] = text
    header[_SUM_AT : _SUM_AT + 16] = _header_sum(header)
    return bytes(header)


def _header_sum(header: bytearray | bytes | memoryview) -> bytes:
    view = memoryview(header)
    state = xxhash.xxh3_128(view[:_SUM_AT])
    state.update(view[_SUM_AT + 16 : HEADER_BYTES])
    return state.digest()


def parse(data: bytes | bytearray | memoryview) -> Header:
    """Read a header.  Raises Foreign for another version and Damaged for anything else that is wrong."""
    view = memoryview(data)
    if view.nbytes < HEADER_BYTES:
        raise Damaged("truncated")
    fields = _FIXED.unpack_from(view, 0)
    (
        magic,
        version,
        header_bytes,
        codec,
        kind,
        _,
        stored,
        payload,
        key,
        space,
        check,
        made,
        gen,
        size,
        writer,
    ) = fields
    if magic != MAGIC:
        raise Damaged("magic")
    if version != VERSION:
        raise Foreign("version")
    if header_bytes != HEADER_BYTES or size > HEADER_BYTES - _LAYOUT_AT:
        raise Damaged("header")
    if bytes(view[_SUM_AT : _SUM_AT + 16]) != _header_sum(view):
        raise Damaged("header")
    try:
        text = bytes(view[_LAYOUT_AT : _LAYOUT_AT + size]).decode()
    except UnicodeDecodeError:
        raise Damaged("header") from None
    return Header(key, space, stored, payload, check, made, gen, text, writer, codec, kind, version)


def check(
    header: Header, key: Key, namespace: bytes, total_bytes: int, room: int, codecs: Container[int] = (0,)
) -> None:
    """Hold a header against what was asked for, before the payload is looked at.

    `total_bytes` is the whole object's size, `room` what the slot may take once decoded, `codecs` the codec bytes that
    can be read.  Raises Damaged or Foreign.
    """
    if header.codec not in codecs or header.checksum_kind != XXH3_128:
        raise Foreign("codec")
    if header.key != key:
        raise Damaged("key")
    if header.namespace != namespace:
        raise Damaged("namespace")
    if header.stored_bytes + HEADER_BYTES != total_bytes:
        raise Damaged("length")
    grown = header.stored_bytes - header.payload_bytes
    if grown > MOST_GROWTH or (grown and not header.codec):
        raise Damaged("length")
    if header.payload_bytes > room:
        raise Damaged("oversize")


def check_payload(header: Header, payload: memoryview | bytes, checksum: bytes = b"") -> None:
    """Hold the payload against its checksum, computed here unless it is given.  Raises Damaged."""
    if (checksum or payload_checksum(payload)) != header.checksum:
        raise Damaged("checksum")
