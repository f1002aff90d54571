"""How small codecs make KV and how fast: ratio, encoding and decoding, beside a memory copy; one thread each.

    python tests/benchmarks/codecs.py [--mib 16] [--tries 5]

KV is as in the tests: channels of different scale, outliers, neighbouring tokens that resemble each other.  MB/s are
payload bytes by the CPU time of one thread, medians, so that a busy machine disturbs little; `of a copy` compares with
copying the same payload, in turns.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import attrs

sys.path.insert(0, str(Path(__file__).parents[1]))

from format.kv import NHD, OPAQUE, kv

from kvhub.codec import About, Codec, copy
from kvhub.layout import Layout
from kvhub_aes import AesCodec, AesConfig, KeySource
from kvhub_quant import Fp8Codec, Int8Codec, QuantConfig
from kvhub_zstd import ZstdCodec, ZstdConfig

LARGE = attrs.evolve(NHD, layers=32, heads=8, key_dim=128, value_dim=128)
"""A block of 16 tokens has 2 MiB in 16 bits."""
KINDS: dict[str, Layout] = {
    "bf16": LARGE,
    "fp16": attrs.evolve(LARGE, dtype="float16"),
    "fp8 e4m3": attrs.evolve(LARGE, dtype="float8_e4m3fn"),
    "fp32": attrs.evolve(LARGE, dtype="float32"),
    "opaque bf16": attrs.evolve(OPAQUE, opaque_bytes=LARGE.block_bytes),
}


def codecs() -> dict[str, Codec]:
    os.environ["KVHUB_TEST_KEY"] = os.urandom(32).hex()
    return {
        "zstd 1": ZstdCodec(ZstdConfig(), "zstd"),
        "zstd 3": ZstdCodec(ZstdConfig(level=3), "zstd"),
        "zstd 9": ZstdCodec(ZstdConfig(level=9), "zstd"),
        "fp8": Fp8Codec(QuantConfig(), "fp8"),
        "int8": Int8Codec(QuantConfig(), "int8"),
        "aes": AesCodec(AesConfig(KeySource("KVHUB_TEST_KEY")), "aes"),
    }


def seconds(tries: int, *calls: Callable[[], object]) -> list[float]:
    """Medians of CPU time, the calls taking turns so that they see the same machine."""
    taken: list[list[float]] = [[] for _ in calls]
    for _ in range(tries):
        for call, times in zip(calls, taken, strict=True):
            begin = time.thread_time()
            call()
            times.append(time.thread_time() - begin)
    return [statistics.median(times) for times in taken]


def row(kind: str, layout: Layout, name: str, codec: Codec, mib: int, tries: int) -> str:
    payload = bytearray(kv(layout, layout.block_tokens * max(1, (mib << 20) // layout.block_bytes)))
    view, room = memoryview(payload), memoryview(bytearray(len(payload)))
    about = About(bytes(32), bytes(32), layout.text, len(payload))
    stored = codec.encode(view.toreadonly(), about)
    if stored is None:
        return f"| {kind} | {name} | stored as it is | | | | |"
    packed = memoryview(stored)
    codec.decode(packed, room, about)
    copied, encoded, decoded = seconds(
        tries,
        lambda: copy(view, room),
        lambda: codec.encode(view.toreadonly(), about),
        lambda: codec.decode(packed, room, about),
    )
    size = len(payload) / 1e6
    cells = [
        kind, name, f"{len(payload) / packed.nbytes:.2f}", f"{size / encoded:.0f}", f"{size / decoded:.0f}",
        f"{copied / encoded:.2f}", f"{copied / decoded:.2f}",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mib", type=int, default=16, help="payload of a chunk (default 16)")
    parser.add_argument("--tries", type=int, default=5, help="the median of so many (default 5)")
    chosen = parser.parse_args()
    print("| KV | codec | ratio | encode MB/s | decode MB/s | encode, of a copy | decode, of a copy |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for kind, layout in KINDS.items():
        for name, codec in codecs().items():
            if kind in ("bf16", "fp8 e4m3") or name not in ("zstd 3", "zstd 9", "aes"):
                print(row(kind, layout, name, codec, chosen.mib, chosen.tries), flush=True)


if __name__ == "__main__":
    main()
