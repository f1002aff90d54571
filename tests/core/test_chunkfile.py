"""The chunk format: golden bytes, and every kind of damage told by its word."""

from __future__ import annotations

import itertools
import os
import struct
from collections.abc import Callable
from hashlib import sha256

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from kvhub import chunkfile
from kvhub.chunkfile import HEADER_BYTES, Damaged, Foreign

KEY = bytes(range(32))
SPACE = bytes(range(100, 132))
PAYLOAD = b"kv" * 500
WRITER = b"incarnation-0001"
GOLDEN = "927226374ab51f6a0c79ed09ff0377d16518449e50ab9df3e08c554f6daa0194"
"""sha256 of `packed()`: when it changes, chunks on disk change, and so must VERSION."""


def packed(payload: bytes = PAYLOAD, **more: object) -> bytes:
    facts: dict[str, object] = {
        "layout": '{"l":1}',
        "generated": 7,
        "writer": WRITER,
        "created_ns": 1_700_000_000,
    } | more
    return chunkfile.pack(KEY, SPACE, payload, **facts)  # type: ignore[arg-type]


def verify(header: bytes, payload: bytes = PAYLOAD, *, room: int = 4096) -> chunkfile.Header:
    """What a store does on load, in its order."""
    parsed = chunkfile.parse(header)
    chunkfile.check(parsed, KEY, SPACE, len(header) + len(payload), room)
    chunkfile.check_payload(parsed, payload)
    return parsed


def resealed(change: Callable[[bytearray], None], header: bytes | None = None) -> bytes:
    """A header that was changed and given a fitting checksum: what another writer might have meant."""
    data = bytearray(header or packed())
    change(data)
    data[240:256] = xxhash.xxh3_128_digest(bytes(data[:240] + data[256:]))
    return bytes(data)


def put(at: int, value: bytes) -> Callable[[bytearray], None]:
    def change(data: bytearray) -> None:
        data[at : at + len(value)] = value

    return change


def test_golden_bytes() -> None:
    """Another implementation reads what this one writes by the table in the module, and the reverse."""
    header = packed()
    assert len(header) == HEADER_BYTES == 4096
    expected = struct.pack(
        "<8sHHBBHQQ32s32s16sqII16s", b"KVHUBCHK", 1, 4096, 0, 1, 0, 1000, 1000, KEY, SPACE,
        xxhash.xxh3_128_digest(PAYLOAD), 1_700_000_000, 7, 7, WRITER,
    )  # fmt: skip
    assert header[: len(expected)] == expected and len(expected) == 144
    assert header[144:240] == bytes(96)
    assert header[240:256] == xxhash.xxh3_128_digest(header[:240] + header[256:])
    assert header[256:] == b'{"l":1}'.ljust(3840, b"\0")
    assert sha256(header).hexdigest() == GOLDEN


def test_round_trip() -> None:
    header = verify(packed())
    assert (header.key, header.namespace, header.writer, header.layout) == (KEY, SPACE, WRITER, '{"l":1}')
    assert (header.stored_bytes, header.payload_bytes, header.generated, header.created_ns) == (
        1000,
        1000,
        7,
        1_700_000_000,
    )
    assert header.checksum == chunkfile.payload_checksum(PAYLOAD)


@given(
    st.binary(min_size=32, max_size=32),
    st.binary(max_size=200),
    st.text('a"{}é模\0', max_size=300),
    st.integers(0, 2**32 - 1),
)
def test_round_trip_of_anything(key: bytes, payload: bytes, layout: str, generated: int) -> None:
    header = chunkfile.parse(chunkfile.pack(key, SPACE, payload, layout=layout, generated=generated))
    chunkfile.check(header, key, SPACE, HEADER_BYTES + len(payload), 200)
    chunkfile.check_payload(header, payload)
    assert (header.layout, header.generated, header.writer) == (layout, generated, bytes(16))


def test_empty_payload_is_a_chunk() -> None:
    assert verify(packed(b""), b"").stored_bytes == 0


SINGLE_FIELDS = {
    "magic": (put(0, b"KVHUBCHX"), "magic"),
    "version": (put(8, b"\x02"), "version"),
    "header bytes": (put(10, b"\x01"), "header"),
    "codec": (put(12, b"\x01"), "codec"),
    "checksum kind": (put(13, b"\x02"), "codec"),
    "stored bytes": (put(16, struct.pack("<Q", 999)), "length"),
    "payload bytes": (put(24, struct.pack("<Q", 999)), "length"),
    "key": (put(32, b"\xff"), "key"),
    "namespace": (put(64, b"\xff"), "namespace"),
    "payload checksum": (put(96, b"\xff\xee"), "checksum"),
    "text of the layout": (put(256, b"\xff"), "header"),
    "bytes of the layout": (put(124, struct.pack("<I", 3841)), "header"),
}


@pytest.mark.parametrize("field", SINGLE_FIELDS)
def test_each_field_is_held_against_what_was_asked(field: str) -> None:
    change, word = SINGLE_FIELDS[field]
    with pytest.raises(Damaged) as caught:
        verify(resealed(change))
    assert caught.value.reason == word == str(caught.value)
    assert isinstance(caught.value, Foreign) == (word in ("version", "codec"))


@pytest.mark.parametrize("field", [12, 13, 14, 16, 24, 32, 64, 96, 112, 120, 124, 128, 144, 239, 240, 255, 256, 4095])
def test_a_field_changed_without_its_checksum(field: int) -> None:
    header = bytearray(packed())
    header[field] ^= 1
    with pytest.raises(Damaged, match=r"^header$"):
        verify(bytes(header))


@pytest.mark.parametrize("left", [0, 1, 143, 4095])
def test_truncated_header(left: int) -> None:
    with pytest.raises(Damaged, match=r"^truncated$"):
        chunkfile.parse(packed()[:left])


@pytest.mark.parametrize("payload", [PAYLOAD[:-1], PAYLOAD + b"k", b""])
def test_wrong_length(payload: bytes) -> None:
    with pytest.raises(Damaged, match=r"^length$"):
        verify(packed(), payload)


def test_room_is_held() -> None:
    assert verify(packed(), room=1000)
    with pytest.raises(Damaged, match=r"^oversize$"):
        verify(packed(), room=999)


def test_the_order_of_the_checks() -> None:
    """With everything wrong at once the first check speaks; the payload's checksum is the last."""
    wrong = resealed(lambda data: [change(data) for name, (change, _) in SINGLE_FIELDS.items() if name[0] in "sknp"])
    header = chunkfile.parse(wrong)
    for key, space, total, word in (
        (KEY, SPACE, 0, "key"),
        (header.key, SPACE, 0, "namespace"),
        (header.key, header.namespace, 0, "length"),
    ):
        with pytest.raises(Damaged, match=rf"^{word}$"):
            chunkfile.check(header, key, space, total, 4096)
    chunkfile.check(header, header.key, header.namespace, HEADER_BYTES + 999, 4096)
    with pytest.raises(Damaged, match=r"^checksum$"):
        chunkfile.check_payload(header, PAYLOAD[:999])


@settings(max_examples=300)
@given(st.integers(0, 8 * (HEADER_BYTES + len(PAYLOAD)) - 1))
def test_A30_any_flipped_bit_is_caught(bit: int) -> None:
    data = bytearray(packed() + PAYLOAD)
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(Damaged) as caught:
        verify(bytes(data[:HEADER_BYTES]), bytes(data[HEADER_BYTES:]))
    expected = "checksum" if bit >= 8 * HEADER_BYTES else "magic" if bit < 64 else "version" if bit < 80 else "header"
    assert caught.value.reason == expected


@given(st.binary(max_size=5000))
def test_garbage_is_never_a_chunk(data: bytes) -> None:
    with pytest.raises(Damaged):
        chunkfile.parse(data)


@pytest.mark.parametrize(
    ("key", "space", "layout"), [(KEY[:31], SPACE, ""), (KEY, SPACE + b"x", ""), (KEY, SPACE, "é" * 1921)]
)
def test_what_does_not_fit_is_refused(key: bytes, space: bytes, layout: str) -> None:
    with pytest.raises(ValueError, match="32 bytes and a layout at most 3840"):
        chunkfile.pack(key, space, b"", layout=layout)


def test_C25_another_version_is_foreign_before_anything_else() -> None:
    """Nothing of a header of another version is believed, not even that its checksum is where ours is."""
    with pytest.raises(Foreign, match=r"^version$"):
        chunkfile.parse(packed()[:8] + b"\x02\x00" + bytes(4086))


@pytest.mark.parametrize("cuts", [[], [1], [4096, 4097, 90_000]])
def test_a_checksum_taken_in_pieces_is_that_of_the_whole(cuts: list[int]) -> None:
    data = memoryview(os.urandom(100_000))
    taken = chunkfile.PayloadChecksum()
    for first, last in itertools.pairwise([0, *cuts, len(data)]):
        taken.add(data[first:last])
    assert taken.digest() == chunkfile.payload_checksum(data)
    header = chunkfile.parse(chunkfile.pack(bytes(32), bytes(32), data))
    chunkfile.check_payload(header, b"", taken.digest())
    taken.add(data[:1])
    with pytest.raises(chunkfile.Damaged, match="checksum"):
        chunkfile.check_payload(header, data, taken.digest())
