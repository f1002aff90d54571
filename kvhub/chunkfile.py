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
       144    16  tenant's tag (0: none, or written before there were tags)
       160     8  codecs in the order in which they were applied, where several were (codec 5), else 0
       168    24  bytes that each of them but the last made, 8 for each
       240    16  xxh3-128 over the other 4080 bytes of the header
       256  3840  layout text (JSON, UTF-8)

A reader checks header, key, namespace and length, then the payload.  Anything unexpected is a miss.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Container, Sequence

import attrs
import xxhash

from kvhub.errors import Damaged as Damaged
from kvhub.errors import Foreign as Foreign
from kvhub.types import KEY_BYTES, MOST_CODECS, MOST_GROWTH, SEVERAL, Key

MAGIC = b"KVHUBCHK"
VERSION = 1
HEADER_BYTES = 4096
XXH3_128 = 1
TENANT_BYTES = 16
_FIXED = struct.Struct("<8sHHBBHQQ32s32s16sqII16s16s8s3Q")
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
    """The codec's byte."""
    checksum_kind: int = XXH3_128
    version: int = VERSION
    tenant: bytes = b""
    """Tag of the tenant whose chunk it is (`kvhub.keys.Context.tenant`), empty where the header names none."""
    codecs: tuple[int, ...] = ()
    """Every codec that made the stored payload, in the order in which they were applied."""
    between: tuple[int, ...] = ()
    """Bytes that each of them but the last made."""


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
    codecs: Sequence[int] = (),
    between: Sequence[int] = (),
    payload_bytes: int | None = None,
    created_ns: int | None = None,
    checksum: bytes = b"",
    tenant: bytes = b"",
) -> bytes:
    """The 4096 bytes that go before `payload` (as stored; `payload_bytes` is its length after decoding).

    `codecs` made it, in this order, `between` are the bytes that each but the last made.
    """
    text = layout.encode()
    if len(key) != KEY_BYTES or len(namespace) != KEY_BYTES or len(text) > HEADER_BYTES - _LAYOUT_AT:
        raise ValueError(f"key and namespace have 32 bytes and a layout at most {HEADER_BYTES - _LAYOUT_AT}")
    if len(codecs) > MOST_CODECS or len(between) != max(0, len(codecs) - 1) or len(tenant) not in (0, TENANT_BYTES):
        raise ValueError(f"at most {MOST_CODECS} codecs, a length between each two, a tag of {TENANT_BYTES} bytes")
    size = memoryview(payload).nbytes
    codec = SEVERAL if len(codecs) > 1 else sum(codecs)
    header = bytearray(HEADER_BYTES)
    _FIXED.pack_into(
        header, 0, MAGIC, VERSION, HEADER_BYTES, codec, XXH3_128, 0, size,
        size if payload_bytes is None else payload_bytes, key, namespace, checksum or payload_checksum(payload),
        time.time_ns() if created_ns is None else created_ns, generated, len(text), writer[:16], tenant,
        bytes(codecs) if codec == SEVERAL else b"", *between, *(0,) * (MOST_CODECS - 1 - len(between)),
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
        tenant,
        codes,
        *between,
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
    codecs: tuple[int, ...] = (codec,) if codec else ()
    if codec == SEVERAL:
        codecs = tuple(codes.rstrip(b"\0"))
        if not 2 <= len(codecs) <= MOST_CODECS or not {0, SEVERAL}.isdisjoint(codecs):
            raise Damaged("header")
    return Header(
        key, space, stored, payload, check, made, gen, text, writer, codec, kind, version,
        tenant if any(tenant) else b"", codecs, tuple(between[: max(0, len(codecs) - 1)]),
    )  # fmt: skip


def check(
    header: Header, key: Key, namespace: bytes, total_bytes: int, room: int, codecs: Container[int] = (0,)
) -> None:
    """Hold a header against what was asked for, before the payload is looked at.

    `total_bytes` is the whole object's size, `room` what the slot may take once decoded, `codecs` the codecs that
    can be read, 0 among them for payloads as they are.  Raises Damaged or Foreign.
    """
    if any(code not in codecs for code in header.codecs or (0,)) or header.checksum_kind != XXH3_128:
        raise Foreign("codec")
    if header.key != key:
        raise Damaged("key")
    if header.namespace != namespace:
        raise Damaged("namespace")
    if header.stored_bytes + HEADER_BYTES != total_bytes:
        raise Damaged("length")
    grown = max(header.stored_bytes, *header.between, 0) - header.payload_bytes
    if grown > MOST_GROWTH or (header.stored_bytes != header.payload_bytes and not header.codec):
        raise Damaged("length")
    if header.payload_bytes > room:
        raise Damaged("oversize")


def check_payload(header: Header, payload: memoryview | bytes, checksum: bytes = b"") -> None:
    """Hold the payload against its checksum, computed here unless it is given.  Raises Damaged."""
    if (checksum or payload_checksum(payload)) != header.checksum:
        raise Damaged("checksum")
