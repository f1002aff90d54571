"""Compression of KV: every bit comes back, from every layout and length, and nothing else is ever believed."""

from __future__ import annotations

import contextlib
import struct
import threading

import attrs
import numpy as np
import pytest
import zstandard
from format.kv import HND, MLA, NHD, OPAQUE, UNKNOWN, kv
from hypothesis import given, settings
from hypothesis import strategies as st

from kvhub import ConfigError, chunkfile
from kvhub.codec import About, Codecs
from kvhub.config import load
from kvhub.errors import Damaged, Foreign
from kvhub.plugins import Registry
from kvhub.tail import write_trailer
from kvhub.testing.region import LAYOUT, make_key
from kvhub.types import MOST_GROWTH, Op, Outcome
from kvhub_zstd import ZstdCodec, ZstdConfig

CODEC = ZstdCodec(ZstdConfig(), "zstd")
LAYOUTS = {
    "bf16 NHD": NHD,
    "bf16 HND": HND,
    "bf16 MLA": MLA,
    "fp16": attrs.evolve(NHD, dtype="float16"),
    "fp32": attrs.evolve(NHD, dtype="float32"),
    "fp8 e4m3": attrs.evolve(NHD, dtype="float8_e4m3fn"),
    "fp8 e5m2": attrs.evolve(NHD, dtype="float8_e5m2"),
    "opaque bf16": OPAQUE,
}
LEAST = {"fp16": 1.15, "fp32": 1.15, "fp8 e4m3": 1.1, "fp8 e5m2": 1.3}


def about(size: int, text: str = NHD.text) -> About:
    return About(make_key("one"), bytes(32), text, size)


def back(stored: bytes | memoryview, size: int, text: str = NHD.text, codec: ZstdCodec = CODEC) -> bytes:
    room = bytearray(size)
    Codecs(codec).decode((1,), memoryview(stored), memoryview(room), about(size, text))
    return bytes(room)


class Always(ZstdCodec):
    least_ratio = 0.0


ALWAYS = Always(ZstdConfig(), "zstd")


@pytest.mark.parametrize("name", LAYOUTS)
def test_kv_gets_smaller_and_comes_back(name: str) -> None:
    payload = kv(LAYOUTS[name], 64)
    stored = CODEC.encode(memoryview(payload), about(len(payload), LAYOUTS[name].text))
    assert stored is not None and len(payload) / len(stored) >= LEAST.get(name, 1.35)
    assert back(stored, len(payload), LAYOUTS[name].text) == payload


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "float32"])
def test_every_bit_pattern_comes_back(dtype: str) -> None:
    """NaNs with what they carry, infinities, both zeros, subnormals: bytes are not numbers here."""
    layout = attrs.evolve(NHD, dtype=dtype)
    words = np.arange(1 << 16, dtype="<u2").tobytes()
    payload = words + bytes(1 << 16)
    stored = ALWAYS.encode(memoryview(payload), about(len(payload), layout.text))
    assert stored is not None and back(stored, len(payload), layout.text) == payload


@given(st.binary(max_size=300), st.integers(0, 40), st.sampled_from([NHD.text, UNKNOWN, OPAQUE.text, LAYOUT.text]))
@settings(max_examples=200)
def test_any_bytes_of_any_length_come_back(start: bytes, times: int, text: str) -> None:
    payload = start + b"\x3f" * times + start[::-1] * times
    stored = ALWAYS.encode(memoryview(payload), about(len(payload), text))
    assert stored is not None and len(stored) <= len(payload) + MOST_GROWTH
    assert back(stored, len(payload), text) == payload


def test_a_tail_comes_back_trailer_and_all() -> None:
    slot = bytearray(NHD.payload_bytes(40) + 5000)
    slot[: NHD.payload_bytes(40)] = kv(NHD, 40)
    size = write_trailer(memoryview(slot), NHD, [bytes([n]) * 16 for n in range(40)])
    payload = bytes(slot[:size])
    stored = CODEC.encode(memoryview(payload), about(size))
    assert stored is not None and len(payload) / len(stored) > 1.3
    assert back(stored, size) == payload


@pytest.mark.parametrize("size", [0, 1, 100, 1 << 20])
def test_noise_stays_as_it_is(size: int) -> None:
    noise = np.random.default_rng(size).bytes(size)
    assert CODEC.encode(memoryview(noise), about(size)) is None


def test_a_higher_level_reads_what_a_lower_one_wrote_and_is_not_larger() -> None:
    payload = kv(NHD, 64)
    best = ZstdCodec(ZstdConfig(level=9), "best")
    small, fast = (codec.encode(memoryview(payload), about(len(payload))) for codec in (best, CODEC))
    assert small is not None and fast is not None and len(small) <= len(fast)
    assert back(small, len(payload)) == back(fast, len(payload), codec=best) == payload


def test_threads_share_one_codec() -> None:
    payloads = [kv(NHD, 64, seed) for seed in range(4)]
    wrong: list[int] = []

    def work(at: int) -> None:
        for _ in range(15):
            stored = CODEC.encode(memoryview(payloads[at]), about(len(payloads[at])))
            if stored is None or back(stored, len(payloads[at])) != payloads[at]:
                wrong.append(at)

    threads = [threading.Thread(target=work, args=(at,)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@given(st.binary(max_size=2000), st.integers(0, 3000))
@settings(max_examples=300)
def test_random_bytes_are_refused(stored: bytes, size: int) -> None:
    with pytest.raises((Damaged, Foreign)):
        back(stored, size)


def test_a_frame_that_unpacks_to_more_than_it_should_is_not_unpacked() -> None:
    """A few bytes may stand for gigabytes."""
    bomb = zstandard.ZstdCompressor().compress(bytes(1 << 26))
    stored = struct.pack("<BBB5xQ", 1, 1, 1, len(bomb)) + bomb
    with pytest.raises(Damaged):
        back(stored, 4096)


PAYLOAD = kv(NHD, 64)
STORED = bytes(CODEC.encode(memoryview(PAYLOAD), about(len(PAYLOAD))) or b"")


@given(st.integers(0, 8 * 24 - 1))
def test_a_flipped_bit_of_the_head_is_refused(bit: int) -> None:
    damaged = bytearray(STORED)
    damaged[bit // 8] ^= 1 << bit % 8
    if 3 <= bit // 8 < 8:
        return  # zeros that no reader looks at; the payload's checksum covers them
    with pytest.raises((Damaged, Foreign)):
        back(bytes(damaged), len(PAYLOAD))


@given(st.integers(0, len(STORED) - 1), st.booleans())
@settings(max_examples=60)
def test_what_is_cut_or_longer_is_refused(at: int, longer: bool) -> None:
    with pytest.raises(Damaged):
        back(STORED + bytes(at + 1) if longer else STORED[:at], len(PAYLOAD))


@given(bit=st.integers(0, 8 * len(STORED) - 1))
@settings(max_examples=60)
def test_any_flipped_bit_ends(bit: int) -> None:
    """By itself a codec may decode it to other numbers: the payload's checksum comes first."""
    damaged = bytearray(STORED)
    damaged[bit // 8] ^= 1 << bit % 8
    with contextlib.suppress(Damaged):
        assert len(back(bytes(damaged), len(PAYLOAD))) == len(PAYLOAD)


def test_on_a_store_damage_of_what_is_compressed_is_corrupt(files) -> None:
    driver, key = files.open(Codecs(CODEC)), make_key("kv")
    layouts = [NHD.text]
    driver.fill(0, PAYLOAD)

    def save() -> None:
        done = driver.run(Op.SAVE, [key], [0], [len(PAYLOAD)], layouts=layouts)
        assert done.outcomes == (Outcome.DONE,)

    save()
    context = driver.member.context
    good = files.read(context, key)
    assert good is not None and chunkfile.parse(good).codec == 1 and len(good) < len(PAYLOAD) * 0.75
    assert driver.read([key]) == [PAYLOAD]
    for at in (4096, 4104, len(good) // 2, len(good) - 1):
        damaged = bytearray(good)
        damaged[at] ^= 4
        files.write(context, key, bytes(damaged))
        assert driver.load([key]).outcomes == (Outcome.CORRUPT,)
        save()
    assert driver.read([key]) == [PAYLOAD]


def test_options() -> None:
    registry = Registry()
    if "zstd" not in {plugin.name for plugin in registry.available()}:
        pytest.skip("the plugin is not installed here")

    def read(level: object):
        source = {
            "kvhub": 1,
            "codecs": {"small": {"use": "zstd", "level": level}},
            "stores": {"host": {"use": "host", "capacity": 1 << 20}},
            "roles": {"both": {"store": ["host"], "retrieve": ["host"]}},
        }
        return load(source, registry, environ={}).encodings.codecs["small"]

    assert read(3).options.level == 3
    for wrong in (0, 20, True, "fast"):
        with pytest.raises(ConfigError, match=r"codecs.small.level: expected a level from 1 \(fast\) to 19"):
            read(wrong)
