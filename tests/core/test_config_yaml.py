"""The strict reader: right values, or a sentence with the line."""

from __future__ import annotations

from typing import Any

import pytest

from kvhub.yamlfile import read, read_value


def value_of(text: str) -> Any:
    tree = read(f"key: {text}\n", "a.yaml")
    assert tree.problems == []
    return tree.data["key"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True), ("False", False), ("null", None), ("~", None), ("", None),
        ("0", 0), ("64", 64), ("-3", -3), ("+7", 7), ("1.5", 1.5), (".5", 0.5), ("1e3", 1000.0), ("1.5E-3", 0.0015),
        ("22:22", "22:22"), ("2026-01-31", "2026-01-31"), ("64GiB", "64GiB"), ("0.0.0.0:7700", "0.0.0.0:7700"),
        ("1.2.3", "1.2.3"), ("'no'", "no"), ('"0123"', "0123"), ("nothing", "nothing"), ("/mnt/kv", "/mnt/kv"),
        ("[a, 1, true]", ["a", 1, True]), ("{a: {b: 2}}", {"a": {"b": 2}}), ("[]", []),
    ],
)  # fmt: skip
def test_E01_scalars_have_the_value_that_they_show(text: str, value: Any) -> None:
    found = value_of(text)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    "text",
    ["no", "yes", "On", "off", "y", "N", "0123", "08", "-012", "0x1f", "0o17", "1_000", ".inf",
     "-.Inf", ".nan", "1e999", "9" * 30],
)  # fmt: skip
def test_E01_scalars_that_people_misread_are_refused_with_line_and_what_to_write(text: str) -> None:
    tree = read(f"\nkey: {text}\n", "a.yaml")
    assert len(tree.problems) == 1
    assert "key: " in tree.problems[0]
    assert text in tree.problems[0]
    assert tree.problems[0].endswith("(a.yaml:2)")


@pytest.mark.parametrize(
    ("text", "said", "line"),
    [
        ("a: 1\nb: 2\na: 3\n", "a: given twice, first at a.yaml:1", 3),
        ("a:\n  b: 1\n  b: 2\n", "a.b: given twice, first at a.yaml:2", 3),
        ("a: &x 1\n", "anchor '&x' is not supported", 1),
        ("a: 1\nb: *x\n", "alias", 2),
        ("a:\n  <<: {b: 1}\n", "merge key", 2),
        ("a: !!python/object:os.system 1\n", "tag", 1),
        ("a: !thing 1\n", "tag", 1),
        ("a: 1\n---\nb: 2\n", "second document", 2),
        ("1: a\n? [x]\n: b\n", "a key must be a word", 2),
        ("a:\n\tb: 1\n", "indent with spaces", 2),
        ("a: [1, 2\n", "not YAML", 2),
        ("a: \x07\n", "not YAML", 1),
        ("a: " + "[" * 40 + "]" * 40 + "\n", "nested deeper", 1),
        ("~: 1\n", "a key must be a word", 1),
    ],
)
def test_E01_what_the_file_may_not_contain(text: str, said: str, line: int) -> None:
    tree = read(text, "a.yaml")
    assert any(said in problem and problem.endswith(f"(a.yaml:{line})") for problem in tree.problems), tree.problems


def test_every_problem_is_told_and_the_first_of_two_values_stays() -> None:
    tree = read("a: no\nb: 0123\na: 1\nc: 7\n", "a.yaml")
    assert len(tree.problems) == 3
    assert tree.data == {"a": "no", "b": "0123", "c": 7}
    assert not tree.broken


def test_a_syntax_error_marks_the_tree_as_broken() -> None:
    assert read("a: 'x\n", "a.yaml").broken


def test_huge_and_hostile_texts_end_quickly() -> None:
    assert read("a" * (1 << 21), "a.yaml").broken
    assert read("[" * 100_000, "a.yaml").broken
    assert read("{a: " * 5_000, "a.yaml").broken


def test_places_are_by_dotted_path() -> None:
    tree = read("a:\n  b:\n    - x\n    - from: y\n      deadline: 1s\n", "a.yaml")
    assert tree.places["a.b[1].deadline"] == "a.yaml:5"
    assert tree.places["a.b[0]"] == "a.yaml:3"


def test_a_value_from_elsewhere_follows_the_same_rules() -> None:
    assert read_value("[host, pool]", "environment X", "roles.decode.store").data == ["host", "pool"]
    tree = read_value("no", "environment X", "stores.pool.sync")
    assert tree.problems[0].startswith("stores.pool.sync: 'no' is a boolean to some")
    assert tree.problems[0].endswith("(environment X)")
