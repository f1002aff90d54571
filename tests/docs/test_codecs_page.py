"""docs/codecs.md: the codec that it shows works, the package that it names is there, its figures have been measured."""

from __future__ import annotations

import re
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvhub.codec import About, Codecs
from kvhub.errors import Damaged, Foreign
from kvhub.installed import OURS
from kvhub.plugins import Registry

PAGE = (Path(__file__).parents[2] / "docs" / "codecs.md").read_text()


@pytest.fixture(scope="module")
def codec() -> Any:
    (source,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    space: dict[str, Any] = {}
    exec(source, space)
    registry = Registry()
    registry.add("deflate", SimpleNamespace(kvhub_register_codecs=space["kvhub_register_codecs"]))
    cls = registry.codec("deflate")
    return cls(cls.Config(), "deflate")


def test_the_codec_of_the_page_works(codec: Any) -> None:
    own, payload = Codecs(codec), memoryview(b"kv and kv again " * 500)
    about = About(bytes(32), bytes(32), "some layout", payload.nbytes)
    made = own.encode(payload, about)
    codecs, stored = made.codecs, made.stored
    room = memoryview(bytearray(payload.nbytes))
    own.decode(codecs, stored, room, about)
    assert codecs == (128,) and stored.nbytes < 500 and room == payload
    assert own.encode(memoryview(zlib.compress(payload)), about).codecs == ()
    with pytest.raises(Foreign):
        own.decode(codecs, memoryview(b"\x02" + stored[1:]), room, about)
    for wrong in (stored[:-1], b"\x01no", b"\x01" + zlib.compress(bytes(100000))):
        with pytest.raises(Damaged):
            own.decode(codecs, memoryview(wrong), room, about)


def test_the_packages_exist() -> None:
    named = set(re.findall(r"\| (kvhub-[a-z]+) \|", PAGE))
    assert named == {"kvhub-zstd", "kvhub-quant", "kvhub-aes"} <= set(OURS.values())


def test_the_figures_are_there() -> None:
    rows = re.findall(
        r"^\| \S[^|]*\| (zstd \d|fp8|int8|aes) \| ([\d.]+) \| (\d+) \| (\d+) \| [\d.]+ \| [\d.]+ \|$", PAGE, re.M
    )
    assert {row[0] for row in rows} >= {"zstd 1", "fp8", "int8", "aes"} and len(rows) >= 12
