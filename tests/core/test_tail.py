"""Tails: how much of one agrees with a prompt, and that bytes which are no tail agree with nothing."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvhub.keys import Chain, Context, Namespace
from kvhub.layout import Layout
from kvhub.tail import Measure, common_tokens, trailer_bytes, write_trailer

LAYOUT = Layout("attention", 2, 4, 1, 4, 4, "float16", "lcthd", "lcthd")
SPACE = Namespace("m", "r", "f", "g", chunk_tokens=16)


def digests(tokens: list[int], limit: int = 16) -> list[bytes]:
    chain = Chain(Context().root(SPACE), 16)
    chain.extend(tokens)
    return chain.digests(0, limit)


def tail(tokens: list[int]) -> memoryview:
    slot = memoryview(bytearray(4096))
    return slot[: write_trailer(slot, LAYOUT, digests(tokens))]


def test_the_payload_is_whole_blocks_then_digests_then_the_mark() -> None:
    payload = tail([5, 6, 7, 8, 9])
    assert payload.nbytes == LAYOUT.payload_bytes(5) + trailer_bytes(5) == 2 * LAYOUT.block_bytes + 5 * 16 + 8
    assert bytes(payload[-8:]) == b"KVHT\x05\x00\x00\x00"


words = st.lists(st.integers(0, 3), min_size=1, max_size=15)


@given(words, st.lists(st.integers(0, 3), max_size=20))
def test_F11_the_common_run_is_as_long_as_the_tokens_agree(kept: list[int], asked: list[int]) -> None:
    both = min(len(kept), len(asked))
    wanted = next((at for at in range(both) if kept[at] != asked[at]), both)
    assert common_tokens(tail(kept), LAYOUT, digests(asked)) == min(wanted, 16)


@given(words, st.integers(0, 4095), st.integers(1, 255))
def test_A30_a_flipped_trailer_never_makes_the_run_longer(kept: list[int], at: int, mask: int) -> None:
    payload = tail(kept)
    asked = digests([*kept, 1])
    payload[LAYOUT.payload_bytes(len(kept)) + at % trailer_bytes(len(kept))] ^= mask
    assert common_tokens(payload, LAYOUT, asked) < len(kept) + (at % trailer_bytes(len(kept)) >= len(kept) * 16)


@pytest.mark.parametrize("change", [-1, 1, -8, 16])
def test_a_payload_of_another_length_is_no_tail(change: int) -> None:
    whole = memoryview(bytearray(4096))
    kept = tail([1, 2, 3])
    whole[: kept.nbytes] = kept
    assert common_tokens(whole[: kept.nbytes + change], LAYOUT, digests([1, 2, 3])) == 0


@given(st.binary(max_size=600))
def test_bytes_that_are_no_tail_agree_with_nothing(payload: bytes) -> None:
    assert common_tokens(memoryview(payload), LAYOUT, digests([1, 2, 3])) == 0


def test_a_count_of_nothing_and_of_too_much_is_no_tail() -> None:
    for count in (0, 4, 2**31):
        payload = tail([1, 2, 3])
        payload[-4:] = count.to_bytes(4, "little")
        assert common_tokens(payload, LAYOUT, digests([1, 2, 3])) == 0


def test_a_tail_of_another_token_order_is_measured_by_its_own_layout() -> None:
    other = attrs.evolve(LAYOUT, block_tokens=8)
    slot = memoryview(bytearray(4096))
    length = write_trailer(slot, other, digests([1, 2, 3, 4, 5]))
    assert length == other.block_bytes + trailer_bytes(5)
    assert common_tokens(slot[:length], other, digests([1, 2, 3])) == 3


def test_a_measure_says_what_fits() -> None:
    measure = Measure(LAYOUT, 16)
    assert measure.chunk_bytes == LAYOUT.payload_bytes(16)
    assert measure.slot_payload == measure.chunk_bytes + trailer_bytes(16)
    assert measure.layout("") is LAYOUT
    assert measure.layout(LAYOUT.text) == LAYOUT
    assert measure.fits("", 16, measure.chunk_bytes)
    for length in (0, measure.chunk_bytes - 1, measure.chunk_bytes + 1):
        assert not measure.fits("", 16, length)
    assert not measure.fits("what", 16, measure.chunk_bytes)


def test_a_measure_reads_layouts_that_can_be_converted_and_remembers_only_some() -> None:
    measure = Measure(LAYOUT, 16)
    hnd = attrs.evolve(LAYOUT, key_order="lchtd", value_order="lchtd")
    assert measure.layout(hnd.text) == hnd
    assert measure.fits(hnd.text, 16, hnd.payload_bytes(16))
    for number in range(500):
        assert measure.layout(f"nonsense {number}") is None
    assert len(measure._known) < 100
    assert measure.layout(hnd.text) == hnd
