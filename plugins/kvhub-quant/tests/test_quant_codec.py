"""KV in 8 bits: how far numbers are off, in every layout; what is left alone; what is refused."""

from __future__ import annotations

import itertools
import struct

import attrs
import numpy as np
import pytest
from format.kv import HND, MLA, NHD, OPAQUE, TURNED, UNKNOWN, kv
from hypothesis import given, settings
from hypothesis import strategies as st

from kvhub import chunkfile
from kvhub.codec import About, Codecs
from kvhub.errors import Damaged, Foreign
from kvhub.layout import Layout
from kvhub.tail import write_trailer
from kvhub.testing.region import make_key
from kvhub.types import Op, Outcome
from kvhub_quant import Fp8Codec, Int8Codec, QuantConfig, floats, view

CODECS = {"fp8": Fp8Codec(QuantConfig(), "fp8"), "int8": Int8Codec(QuantConfig(), "int8")}
LAYOUTS = {
    "NHD": NHD,
    "HND": HND,
    "keys and values apart": TURNED,
    "MLA": MLA,
    "fp16": attrs.evolve(NHD, dtype="float16"),
    "fp32": attrs.evolve(HND, dtype="float32"),
    "dimension first": attrs.evolve(NHD, key_order="ldcth", value_order="ldcht"),
    "dimension before all": attrs.evolve(NHD, key_order="dclth", value_order="dclth"),
    "key-or-value last": attrs.evolve(NHD, key_order="lthdc", value_order="lthdc"),
}


def about(size: int, text: str = NHD.text) -> About:
    return About(make_key("one"), bytes(32), text, size)


def coded(codec: Fp8Codec | Int8Codec, payload: bytes, layout: Layout) -> bytes:
    made = codec.encode(memoryview(payload), about(len(payload), layout.text))
    assert made is not None
    return bytes(made)


def back(codec: Fp8Codec | Int8Codec, stored: bytes, size: int, text: str) -> bytes:
    room = bytearray(size)
    Codecs(codec).decode((codec.code,), memoryview(stored), memoryview(room), about(size, text))
    return bytes(room)


def numbers(payload: bytes, layout: Layout) -> list[tuple[np.ndarray, int]]:
    """Keys and values as float64, and which axis is the head's dimension."""
    items = np.frombuffer(payload, floats.STORED[layout.dtype])
    return [
        (floats.to_float32(array, layout.dtype).astype(np.float64), axis) for array, axis in view.vectors(items, layout)
    ]


@pytest.mark.parametrize(("name", "codec"), [*itertools.product(LAYOUTS, CODECS)])
def test_every_number_is_within_its_bound(name: str, codec: str) -> None:
    """Half a step of the code, by the largest of its own vector, and the rounding of the item that it comes back as."""
    layout = LAYOUTS[name]
    payload = kv(layout, 64)
    stored = coded(CODECS[codec], payload, layout)
    loaded = back(CODECS[codec], stored, len(payload), layout.text)
    item = {"bfloat16": 2.0**-8, "float16": 2.0**-10, "float32": 2.0**-23}[layout.dtype]
    for (before, axis), (after, _) in zip(numbers(payload, layout), numbers(loaded, layout), strict=True):
        top = np.abs(before).max(axis, keepdims=True)
        if codec == "int8":
            allowed = top / 254 * 1.0001
        else:
            allowed = np.maximum(np.abs(before) * (1 / 16 + 1 / 1024), top / 448 * 2.0**-10 * 1.01)
        assert (np.abs(after - before) <= allowed + (np.abs(before) + allowed) * item).all()
        assert not np.array_equal(before, after)


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_views_are_the_layout_s(name: str) -> None:
    """A number that is put where the layout says is found under its coordinates, and views are no copies."""
    layout = LAYOUTS[name]
    items = np.zeros(2 * layout.block_bytes // layout.item_bytes, floats.STORED[layout.dtype])
    parts = view.vectors(items, layout)
    assert all(np.shares_memory(array, items) for array, _ in parts)
    assert sum(array.size for array, _ in parts) == items.size
    for number, (array, axis) in enumerate(parts):
        array[...] = number + 1
        assert array.shape[0] == 2 and array.shape[axis] == (layout.value_dim if number else layout.key_dim)
    assert np.unique(items, return_counts=True)[1].tolist() == [array.size for array, _ in parts]
    if layout.kind == "attention" and layout.key_order.startswith("lc"):
        per_layer = items.reshape(2, layout.layers, -1)
        half = layout.block_tokens * layout.heads * layout.key_dim
        assert (per_layer[..., :half] == parts[0][0].flat[0]).all()
        assert (per_layer[..., half:] == parts[1][0].flat[0]).all()


@pytest.mark.parametrize("codec", CODECS)
def test_an_outlier_rounds_nobody_but_its_own_vector(codec: str) -> None:
    """Why scales are per layer, token, head and K or V."""
    plain = np.ones(2 * NHD.block_bytes // 4, "<u4").view("<u2")
    plain[:] = np.float32(0.3).view(np.uint32) >> 16
    spoilt = plain.copy()
    spoilt[12345] = np.float32(30000.0).view(np.uint32) >> 16
    results = [
        np.frombuffer(back(CODECS[codec], coded(CODECS[codec], items.tobytes(), NHD), items.nbytes, NHD.text), "<u2")
        for items in (plain, spoilt)
    ]
    differ = np.flatnonzero(results[0] != results[1])
    assert {at // 64 for at in differ} == {12345 // 64}


@pytest.mark.parametrize(("codec", "least"), [("fp8", 1.88), ("int8", 1.88)])
def test_ratio(codec: str, least: float) -> None:
    payload = kv(NHD, 64)
    assert len(payload) / len(coded(CODECS[codec], payload, NHD)) > least
    wide = attrs.evolve(NHD, dtype="float32", key_dim=128, value_dim=128)
    payload = kv(wide, 16)
    assert len(payload) / len(coded(CODECS[codec], payload, wide)) > 3.87


@pytest.mark.parametrize("codec", CODECS)
def test_what_is_not_known_stays_as_it_is(codec: str) -> None:
    payload = kv(NHD, 64)
    for size, text in (
        (len(payload), OPAQUE.text),
        (len(payload), UNKNOWN),
        (len(payload), attrs.evolve(NHD, dtype="float8_e4m3fn").text),
        (len(payload) - 2, NHD.text),
        (0, NHD.text),
    ):
        assert CODECS[codec].encode(memoryview(payload)[:size], about(size, text)) is None, text


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("layout", [NHD, attrs.evolve(NHD, layers=1, heads=1, key_dim=1, value_dim=1, block_tokens=2)])
def test_a_tail_stays_as_it_is(codec: str, layout: Layout) -> None:
    """Its digests are no numbers.  Of the second layout every trailer is as long as some blocks: its mark tells."""
    for count in range(40, 44):
        slot = bytearray(layout.payload_bytes(count) + 16 * count + 8)
        slot[: layout.payload_bytes(count)] = kv(layout, count)
        size = write_trailer(memoryview(slot), layout, [bytes([n]) * 16 for n in range(count)])
        assert CODECS[codec].encode(memoryview(slot)[:size], about(size, layout.text)) is None


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_number_stays_as_it_is(codec: str, dtype: str, value: float) -> None:
    layout = attrs.evolve(NHD, dtype=dtype)
    items = np.frombuffer(kv(layout, 16), floats.STORED[dtype]).copy()
    items[777] = np.float32(value).view(np.uint32) >> 16 if dtype == "bfloat16" else value
    assert CODECS[codec].encode(memoryview(items.tobytes()), about(items.nbytes, layout.text)) is None


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("value", [0.0, -0.0, 1e-38, 3.0e38, 65504.0])
def test_extremes(codec: str, value: float) -> None:
    """Zeros stay zeros, the largest numbers stay finite, and what is near nothing becomes nothing."""
    items = np.full(NHD.block_bytes // 2, np.float32(value).view(np.uint32) >> 16, "<u2")
    loaded = back(CODECS[codec], coded(CODECS[codec], items.tobytes(), NHD), items.nbytes, NHD.text)
    found = floats.to_float32(np.frombuffer(loaded, "<u2"), "bfloat16")
    expected = floats.to_float32(items, "bfloat16")
    assert np.isfinite(found).all()
    assert np.allclose(found, expected, rtol=2.0**-8, atol=1e-30)


def test_fp8_codes_are_e4m3() -> None:
    """Held against the definition: sign, 4 bits of exponent with a bias of 7, 3 of mantissa."""
    codes = np.array([code for code in range(256) if code & 0x7F != 0x7F], np.uint8)
    expected = []
    for code in codes.tolist():
        exponent, mantissa = code >> 3 & 15, code & 7
        value = mantissa * 2.0**-9 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
        expected.append(-value if code & 0x80 else value)
    assert floats.from_fp8(codes).tolist() == expected
    assert floats.to_fp8(np.array(expected, np.float32)).tolist() == codes.tolist()
    assert max(expected) == floats.LARGEST


@given(st.floats(-448, 448, width=32))
def test_fp8_rounds_to_a_nearest_code(value: float) -> None:
    (found,) = floats.from_fp8(floats.to_fp8(np.array([value], np.float32)))
    table = floats.from_fp8(np.array([code for code in range(256) if code & 0x7F != 0x7F], np.uint8))
    nearest = np.abs(table - value).min()
    assert abs(float(found) - value) <= nearest + abs(value) / 1024 + 2.0**-16


@given(st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-(2.0**126), max_value=2.0**126))
def test_bfloat16_rounds_to_even(value: float) -> None:
    (bits,) = floats.from_float32(np.array([value], np.float32), "bfloat16")
    (found,) = floats.to_float32(np.array([bits], np.uint16), "bfloat16")
    if bits & 0x7FFF:
        above, below = floats.to_float32(np.array([bits + 1, bits - 1], np.uint16), "bfloat16").tolist()
        assert abs(float(found) - value) <= min(abs(above - value), abs(below - value))


PAYLOAD = kv(NHD, 16)


@pytest.mark.parametrize("codec", CODECS)
def test_what_is_cut_longer_or_has_no_scale_is_refused(codec: str) -> None:
    good = coded(CODECS[codec], PAYLOAD, NHD)
    nothing = good[:8] + struct.pack("<f", float("nan")) + good[12:]
    for stored in (b"", good[:7], good[:-1], good + b"\0", nothing):
        with pytest.raises(Damaged, match="codec"):
            back(CODECS[codec], stored, len(PAYLOAD), NHD.text)
    for stored, text, word in ((b"\x02" + good[1:], NHD.text, "form"), (good, UNKNOWN, "layout")):
        with pytest.raises(Foreign, match=word):
            back(CODECS[codec], stored, len(PAYLOAD), text)


@given(st.binary(max_size=500), st.integers(0, 5000), st.sampled_from(sorted(CODECS)))
@settings(max_examples=200)
def test_random_bytes_are_refused(stored: bytes, size: int, codec: str) -> None:
    with pytest.raises((Damaged, Foreign)):
        back(CODECS[codec], stored + b"\xff", size, NHD.text)


@given(st.integers(0, 8 * 2000 - 1), st.sampled_from(sorted(CODECS)))
@settings(max_examples=100)
def test_any_flipped_bit_ends(bit: int, codec: str) -> None:
    """By itself a codec decodes it to other numbers: the payload's checksum comes first."""
    damaged = bytearray(coded(CODECS[codec], PAYLOAD, NHD))
    damaged[bit // 8] ^= 1 << bit % 8
    try:
        assert len(back(CODECS[codec], bytes(damaged), len(PAYLOAD), NHD.text)) == len(PAYLOAD)
    except Damaged as error:
        assert error.reason in ("codec", "form")


@pytest.mark.parametrize("codec", CODECS)
def test_on_a_store_damage_of_what_is_rounded_is_corrupt(files, codec: str) -> None:
    driver, key = files.open(Codecs(CODECS[codec])), make_key("kv")
    driver.fill(0, PAYLOAD)

    def save() -> None:
        done = driver.run(Op.SAVE, [key], [0], [len(PAYLOAD)], layouts=[NHD.text])
        assert done.outcomes == (Outcome.DONE,)

    save()
    context = driver.member.context
    good = files.read(context, key)
    assert good is not None and chunkfile.parse(good).codec == CODECS[codec].code
    expected = back(CODECS[codec], good[4096:], len(PAYLOAD), NHD.text)
    assert driver.read([key]) == [expected]
    for at in (4096, 4110, len(good) // 2, len(good) - 1):
        damaged = bytearray(good)
        damaged[at] ^= 4
        files.write(context, key, bytes(damaged))
        assert driver.load([key]).outcomes == (Outcome.CORRUPT,)
        save()
    assert driver.read([key]) == [expected], "and the same numbers come back each time"


def test_the_namespace_is_told_what_changes_numbers() -> None:
    told = {codec.identity(QuantConfig()) for codec in (Fp8Codec, Int8Codec)}
    assert told == {"fp8 per token and head, form 1", "int8 per token and head, form 1"}
    assert all(codec.lossy for codec in CODECS.values())
