"""docs/format.md against the code: offsets, sizes, codes and words are the same in both."""

from __future__ import annotations

import re
import struct
from itertools import pairwise
from pathlib import Path

import pytest

from kvhub import chunkfile, tail
from kvhub.layout import ITEM_BYTES, KINDS
from kvhub.plugins import Registry
from kvhub.pool.examine import OF_THIS_PROJECT

PAGE = (Path(__file__).parents[2] / "docs" / "format.md").read_text()


def section(title: str) -> str:
    found = re.search(rf"^##+ {title}.*?\n(.*?)(?=^##|\Z)", PAGE, re.M | re.S)
    assert found, f"no section {title}"
    return found[1]


def rows(title: str) -> list[list[str]]:
    """Cells of a section's first table, without its head."""
    lines = [line for line in section(title).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_header_s_table_is_the_struct() -> None:
    parts = re.findall(r"\d*[a-zA-Z]", chunkfile._FIXED.format.lstrip("<"))
    at, expected = 0, []
    for part in parts:
        for one in part if part[0].isalpha() else [part]:
            size = struct.calcsize("<" + one)
            expected.append((at, size))
            at += size
    expected += [(chunkfile._SUM_AT, 16), (chunkfile._LAYOUT_AT, chunkfile.HEADER_BYTES - chunkfile._LAYOUT_AT)]
    assert [(int(row[0]), int(row[1])) for row in rows("Header")] == expected
    by_name = {row[2]: int(row[0]) for row in rows("Header")}
    assert by_name["codec"] == chunkfile.CODEC_AT and by_name["layout"] == chunkfile._LAYOUT_AT


def test_the_module_s_table_is_the_page_s() -> None:
    inside = re.findall(r"^ {4,}(\d+) +(\d+)  ", chunkfile.__doc__ or "", re.M)
    assert [(row[0], row[1]) for row in rows("Header")] == inside


@pytest.mark.parametrize("field", ["magic", "version", "header bytes", "checksum kind"])
def test_values_of_the_header(field: str) -> None:
    (told,) = [row[3] for row in rows("Header") if row[2] == field]
    value = {
        "magic": chunkfile.MAGIC.decode(),
        "version": str(chunkfile.VERSION),
        "header bytes": str(chunkfile.HEADER_BYTES),
        "checksum kind": f"{chunkfile.XXH3_128}: xxh3-128",
    }[field]
    assert told.strip("`") == value


def test_tails() -> None:
    told = {row[0]: row[1] for row in rows("Payload")}
    assert told["mark"].strip("`").encode() == tail._MARK and told["digests"].startswith("16 for each token")
    assert tail.trailer_bytes(5) == 5 * 16 + 8


def test_layout_words() -> None:
    told = {row[0]: row[1] for row in rows("Layout text")}
    assert set(re.findall(r"`(\w+)`", told["`kind`"])) == set(KINDS)
    assert set(re.findall(r"`(\w+)`", told["`dtype`"])) == set(ITEM_BYTES)


def test_codes_are_those_of_the_installed_plugins() -> None:
    told = {int(row[0]): (row[1], row[2], row[3]) for row in rows("Codecs") if row[0].isdigit()}
    assert {code: name for code, (name, _, _) in told.items()} == OF_THIS_PROJECT
    registry, seen = Registry(), 0
    for info in registry.available():
        if not info.distribution.startswith("kvhub") or info.name not in ("zstd", "quant", "aes"):
            continue
        for codec in {*registry.load(info.name).codecs.values()}:
            assert told[codec.code] == (codec.name, info.distribution, "no" if codec.lossy else "yes")
            seen += 1
    if not seen:
        pytest.skip("no codec's plugin is installed here")


@pytest.mark.parametrize(("title", "least"), [("zstd", 6), ("fp8 and int8", 3), ("aes", 5)])
def test_the_forms_of_codecs_have_no_gaps(title: str, least: int) -> None:
    table = [row for row in rows(title) if row[0].isdigit()]
    assert len(table) >= least - 1
    for one, other in pairwise(table):
        assert int(one[0]) + int(one[1]) == int(other[0])
