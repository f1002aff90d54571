"""Makes golden files that do not exist yet: `python tests/format/make_golden.py`.

What has been released is read for ever, so a file that is there is never written again.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

sys.path.insert(0, str(Path(__file__).parents[1]))

from format.kv import NHD, kv
from kvhub import chunkfile
from kvhub.codec import About, Codec, Codecs
from kvhub.keys import Chain, Context, Namespace
from kvhub.layout import Layout
from kvhub.plugins import Registry
from kvhub.tail import write_trailer

FOLDER = Path(__file__).parent / "golden"
KEY_VARIABLE, KEY_TEXT = "KVHUB_TEST_GOLDEN_KEY", "00112233445566778899aabbccddeeff" * 2
SMALL = attrs.evolve(NHD, layers=2, heads=1, key_dim=8, value_dim=8, block_tokens=4)
SPACE = Namespace("golden", "r1", SMALL.dtype, "one group", chunk_tokens=16)
TENANT = Context(salt="tenant").tenant
TOKENS = list(range(1000, 1022))
CREATED = 1_700_000_000_000_000_000
CHAINS = {"zstd-aes": ("zstd", "aes"), "int8-zstd": ("int8", "zstd")}
"""Files of several codecs in a row, small enough for zstd to be worth it behind int8, too."""
USES = {"zstd": "zstd", "fp8": "quant/fp8", "int8": "quant/int8", "aes": "aes"}
"""File's name -> what a YAML says after `use:`."""


def chain() -> Chain:
    made = Chain(Context(salt="tenant").root(SPACE), SPACE.chunk_tokens)
    made.extend(TOKENS)
    return made


def chunk(layout: Layout = SMALL) -> bytes:
    """A full chunk of 16 tokens."""
    return kv(layout, 16, seed=7)


def tail() -> bytes:
    """The 6 tokens behind it, with their trailer."""
    room = bytearray(SMALL.payload_bytes(6) + 6 * 16 + 8)
    room[: SMALL.payload_bytes(6)] = kv(SMALL, 6, seed=8)
    return bytes(room[: write_trailer(memoryview(room), SMALL, chain().digests(1, 6))])


def about(payload: bytes, layout: Layout = SMALL, generated: int = 2) -> About:
    return About(chain().keys[0], SPACE.digest, layout.text, len(payload), generated)


def codec(name: str) -> Codec:
    cls = Registry().codec(USES[name])
    options: Mapping[str, Any] = {}
    if name == "aes":
        from kvhub_aes import KeySource

        options = {"key": KeySource(KEY_VARIABLE)}
    return cls(cls.Config(**options), name)


def of_chain() -> tuple[bytes, Layout]:
    """The payload that was encoded for the files of chains, and its layout."""
    layout = attrs.evolve(SMALL, layers=4, heads=4, key_dim=16, value_dim=16)
    return chunk(layout), layout


def of_codec(name: str) -> tuple[bytes, Layout]:
    """The payload that was encoded for a codec's file, and its layout: large enough for zstd to be worth it."""
    layout = attrs.evolve(SMALL, heads=4, key_dim=16, value_dim=16) if name == "zstd" else SMALL
    return chunk(layout), layout


def objects() -> dict[str, bytes]:
    """File name -> object."""
    os.environ[KEY_VARIABLE] = KEY_TEXT
    made = {}
    facts = {"writer": b"golden-writer-01", "created_ns": CREATED, "layout": SMALL.text}
    plain = chunk()
    made["raw.kv"] = chunkfile.pack(chain().keys[0], SPACE.digest, plain, generated=2, **facts) + plain
    rest = tail()
    made["tail.kv"] = chunkfile.pack(chain().tail_key(1), SPACE.digest, rest, generated=6, **facts) + rest
    for name in USES:
        payload, layout = of_codec(name)
        own = codec(name)
        stored = own.encode(memoryview(payload), about(payload, layout))
        assert stored is not None, name
        more = facts | {"layout": layout.text, "codecs": (own.code,), "payload_bytes": len(payload), "generated": 2}
        made[f"{name}.kv"] = chunkfile.pack(chain().keys[0], SPACE.digest, stored, **more) + bytes(stored)
    payload, layout = of_chain()
    for name, names in CHAINS.items():
        whose = attrs.evolve(about(payload, layout), tenant=TENANT)
        encoded = Codecs([codec(each) for each in names]).encode(memoryview(payload), whose)
        assert len(encoded.codecs) == 2, name
        more = facts | {"layout": layout.text, "codecs": encoded.codecs, "between": encoded.between, "tenant": TENANT}
        more |= {"payload_bytes": len(payload), "generated": 2}
        made[f"{name}.kv"] = chunkfile.pack(chain().keys[0], SPACE.digest, encoded.stored, **more) + encoded.stored
    return made


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, data in objects().items():
        if not (FOLDER / name).exists():
            (FOLDER / name).write_bytes(data)
            print(name, len(data))
