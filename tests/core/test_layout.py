"""Layouts: which are sound, how many bytes they take, and that a text from anywhere is read rightly or refused."""

from __future__ import annotations

import json

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvhub.errors import LayoutError
from kvhub.layout import LAYOUT_TEXT_MAX, Layout
from kvhub.tail import Measure

NHD = Layout("attention", 28, 16, 8, 128, 128, "bfloat16", "lcthd", "lcthd")
HND = attrs.evolve(NHD, key_order="lchtd", value_order="lchtd")
TRANSPOSED = attrs.evolve(NHD, key_order="lhcdt", value_order="lhctd")
MLA = Layout("mla", 27, 64, 1, 576, 0, "bfloat16", "lthd", "")
OPAQUE = Layout("opaque", 2, 16, opaque_bytes=16896, tag="vllm fp8 inline scales")
SOUND = [NHD, HND, TRANSPOSED, MLA, OPAQUE]


@pytest.mark.parametrize("layout", SOUND)
def test_a_layout_is_read_from_its_own_text(layout: Layout) -> None:
    assert Layout.parse(layout.text) == layout
    assert Layout.parse(layout.text).text == layout.text


def test_bytes_are_those_of_whole_blocks() -> None:
    assert NHD.block_bytes == 28 * 16 * 8 * 256 * 2
    assert MLA.block_bytes == 27 * 64 * 576 * 2
    assert [NHD.payload_bytes(tokens) // NHD.block_bytes for tokens in (0, 1, 15, 16, 17, 64)] == [0, 1, 1, 1, 2, 4]
    assert NHD.token_bytes == 28 * 8 * 256 * 2


def test_A22_inline_scales_are_opaque_bytes_of_the_declared_size() -> None:
    """A row of 128 fp8 items and a scale of 4 bytes: 132 bytes, 16 tokens of 8 heads."""
    layout = Layout("opaque", 1, 16, opaque_bytes=16 * 8 * 132, tag="fp8 inline")
    assert layout.block_bytes == 16896
    assert not layout.cuttable
    assert layout.payload_bytes(64) == 4 * 16896


def test_A20_the_same_bytes_in_another_order_are_another_layout() -> None:
    assert NHD.block_bytes == HND.block_bytes
    assert NHD.text != HND.text
    assert NHD.same_content(HND)


@pytest.mark.parametrize(
    "other",
    [
        attrs.evolve(NHD, layers=29), attrs.evolve(NHD, heads=4), attrs.evolve(NHD, key_dim=64, value_dim=64),
        attrs.evolve(NHD, dtype="float16"), MLA, OPAQUE,
    ],
)  # fmt: skip
def test_A20_other_content_is_never_taken_for_the_same(other: Layout) -> None:
    assert not NHD.same_content(other)
    measure = Measure(NHD, 64)
    assert measure.layout(other.text) is None
    assert not measure.fits(other.text, 64, other.payload_bytes(64))


def test_A23_opaque_state_of_another_writer_is_not_read() -> None:
    measure = Measure(OPAQUE, 64)
    assert measure.layout(OPAQUE.text) == OPAQUE
    assert measure.layout(attrs.evolve(OPAQUE, tag="vllm fp8 other").text) is None


WRONG = {
    "kind": {"kind": "state"},
    "no layers": {"layers": 0},
    "no tokens": {"block_tokens": 0},
    "dtype": {"dtype": "fp8"},
    "order short": {"key_order": "lcth"},
    "order twice": {"key_order": "lctthd"},
    "orders differ before c": {"key_order": "lhctd", "value_order": "lchtd"},
    "no values": {"value_dim": 0},
    "d before c": {"key_order": "ldcht", "value_order": "ldcht", "value_dim": 64},
    "fraction": {"layers": 28.0},
    "truth": {"heads": True},
    "list for an order": {"key_order": list("lcthd")},
    "number for a tag": {"tag": 7},
    "none": {"dtype": None},
}


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG)
def test_an_unsound_layout_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(LayoutError, match="layout of kind"):
        attrs.evolve(NHD, **change)  # type: ignore[arg-type]
    with pytest.raises(LayoutError):
        Layout.parse(json.dumps(attrs.asdict(NHD) | change))


def test_mla_keeps_no_values_and_opaque_needs_its_size() -> None:
    with pytest.raises(LayoutError, match="MLA keeps no values"):
        attrs.evolve(MLA, value_dim=64)
    with pytest.raises(LayoutError, match="opaque_bytes must be at least 1"):
        Layout("opaque", 1, 16)


def test_every_problem_is_told_at_once() -> None:
    with pytest.raises(LayoutError) as caught:
        attrs.evolve(NHD, layers=0, dtype="x", key_order="abc")
    for word in ("layers", "dtype 'x'", "key_order"):
        assert word in str(caught.value)


def test_a_text_must_fit_the_chunk_header() -> None:
    with pytest.raises(LayoutError, match="shorten its tag"):
        _ = attrs.evolve(OPAQUE, tag="x" * LAYOUT_TEXT_MAX).text


@pytest.mark.parametrize("text", ["[" * 3000, "{}", "[]", "null", '{"kind":"attention"}', "1e400", '{"a":1}', "\ud800"])
def test_A22_a_text_that_is_no_layout_is_refused_and_nothing_else(text: str) -> None:
    with pytest.raises(LayoutError):
        Layout.parse(text)
    assert Measure(NHD, 64).layout(text) is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)


@given(field=st.sampled_from(sorted(attrs.asdict(NHD))), value=json_values)
def test_whatever_stands_in_a_field_is_a_sound_layout_or_refused(field: str, value: object) -> None:
    text = json.dumps(attrs.asdict(NHD) | {field: value})
    try:
        found = Layout.parse(text)
    except LayoutError:
        return
    assert type(getattr(found, field)) is type(getattr(NHD, field))
    assert found.block_bytes > 0
    assert Layout.parse(found.text) == found
