"""Holds docs/field-reports.md to the tests: what it names exists, and what a requirement rests on is held by a test."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "field-reports.md").read_text()
FOLDERS = ("kvhub/testing", "tests", "plugins", "adapters", "kernels")
REQUIREMENTS = list(range(1, 31))

ROWS = {int(row[1]): row[2].split(", ") for row in re.finditer(r"^\| (\d+) \| [^|]+ \| ([A-G0-9, ]+) \|$", PAGE, re.M)}
ENTRIES = re.findall(r"^\| ([A-G]\d\d) \| ([^|]+) \| ([^|]+) \|$", PAGE, re.M)
NAMED = {entry: re.findall(r"`([^`]+)::(test_\w+)`", tests) for entry, _, tests in ENTRIES}


@cache
def source(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def test_the_page_could_be_read() -> None:
    assert len(ENTRIES) > 70
    assert sum(map(len, NAMED.values())) > 150


@pytest.mark.parametrize("entry", NAMED)
def test_every_test_that_an_entry_names_exists_and_is_named_after_it(entry: str) -> None:
    assert NAMED[entry], f"{entry} names no test"
    for path, name in NAMED[entry]:
        assert (ROOT / path).is_file(), f"{entry}: there is no {path}"
        assert re.search(rf"def {name}\(", source(path)), f"{entry}: {path} has no {name}; was it renamed?"
        assert entry in name.split("_"), f"{entry}: {name} is named after something else"


def test_every_requirement_is_there() -> None:
    assert list(ROWS) == REQUIREMENTS


@pytest.mark.parametrize("number", REQUIREMENTS)
def test_every_entry_of_a_requirement_is_held_by_a_test(number: int) -> None:
    assert [entry for entry in ROWS[number] if not NAMED.get(entry)] == []


def test_every_entry_that_tests_are_named_after_has_a_row() -> None:
    files = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")]
    mine = [file for file in files if not any(word.startswith(".") for word in file.relative_to(ROOT).parts)]
    names = [name for file in mine for name in re.findall(r"def (test_[A-G]\d\d_\w+)\(", file.read_text("utf-8"))]
    used = {word for name in names for word in name.split("_") if re.fullmatch(r"[A-G]\d\d", word)}
    assert sorted(used - set(NAMED)) == [], "describe these in docs/field-reports.md"
    assert len(names) > 200


def test_entries_stand_in_order_and_once() -> None:
    found = [entry for entry, _, _ in ENTRIES]
    assert found == sorted(set(found))
