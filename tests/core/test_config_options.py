"""Options to attrs objects: types from annotations, every problem, secrets kept."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import attrs
import pytest

from kvhub import options
from kvhub.units import seconds, size


class Colour(enum.Enum):
    RED = "red"


@attrs.frozen
class Inner:
    env: str
    count: int = 1


@attrs.frozen
class Options:
    root: Path = Path("/x")
    flag: bool = False
    count: int = 1
    ratio: float = 0.5
    text: str = ""
    maybe: str | None = None
    names: tuple[str, ...] = ()
    pair: tuple[int, str] = (1, "a")
    unique: frozenset[str] = frozenset()
    table: Mapping[str, int] = attrs.field(factory=dict)
    mode: Literal["fast", "safe"] = "fast"
    colour: Colour = Colour.RED
    inner: Inner | None = None
    inners: tuple[Inner, ...] = ()
    room: int = attrs.field(default=0, converter=size)
    wait: float = attrs.field(default=1.0, converter=seconds)
    hosts: tuple[str, ...] = attrs.field(default=(), converter=tuple)
    odd: int = attrs.field(default=1, validator=attrs.validators.in_([1, 3]))
    small: int = attrs.field(default=1, validator=attrs.validators.lt(10))
    password: str = attrs.field(default="", repr=False)


def build(**values: Any) -> tuple[Any, dict[str, str]]:
    problems: dict[str, str] = {}
    made = options.build(Options, values, "stores.pool", lambda path, said: problems.update({path: said}))
    assert (made is None) == bool(problems)
    return made, problems


@pytest.mark.parametrize(
    ("name", "value", "result"),
    [
        ("root", "/mnt", Path("/mnt")), ("flag", True, True), ("count", 3, 3), ("ratio", 2, 2.0), ("text", "x", "x"),
        ("maybe", None, None), ("names", ["a", "b"], ("a", "b")), ("pair", [2, "b"], (2, "b")),
        ("unique", ["a"], frozenset("a")), ("table", {"a": 1}, {"a": 1}), ("mode", "safe", "safe"),
        ("colour", "red", Colour.RED), ("inner", {"env": "X"}, Inner("X")), ("inners", [{"env": "X"}], (Inner("X"),)),
        ("room", "1GiB", 1 << 30), ("wait", "150ms", 0.15), ("hosts", ["a"], ("a",)), ("odd", 3, 3),
    ],
)  # fmt: skip
def test_values_take_the_type_that_the_annotation_says(name: str, value: Any, result: Any) -> None:
    made, problems = build(**{name: value})
    assert problems == {}
    assert getattr(made, name) == result
    assert type(getattr(made, name)) is type(result)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("flag", "no", "expected true or false, found text 'no'"),
        ("flag", 1, "expected true or false, found the number 1"),
        ("flag", "false", "expected true or false"),
        ("count", True, "expected a whole number, found true"),
        ("count", 1.0, "expected a whole number"),
        ("count", "3", "found text '3'"),
        ("ratio", float("nan"), "finite"),
        ("text", 123, "put it in quotes"),
        ("text", None, "expected text, found nothing"),
        ("root", "", "expected a path, found empty text"),
        ("names", "abc", "expected a list"),
        ("names", ["a", 1], "item 2: expected text"),
        ("hosts", "abc", "expected a list"),
        ("pair", [1], "expected a list of 2, found 1"),
        ("table", ["a"], "expected a mapping"),
        ("mode", "sage", "did you mean 'safe'?"),
        ("colour", "blue", "expected one of red"),
        ("inner", "X", "expected a mapping"),
        ("room", "1 gallon", "expected a size"),
        ("wait", -1, "not negative"),
        ("odd", 2, "must be in"),
        ("small", 12, "must be < 10"),
        ("nmaes", [], "unknown option; did you mean 'names'?"),
    ],
)  # fmt: skip
def test_E01_what_does_not_fit_is_told_by_path_with_what_was_found(name: str, value: Any, said: str) -> None:
    _, problems = build(**{name: value})
    assert list(problems) == [f"stores.pool.{name}"]
    assert said in problems[f"stores.pool.{name}"]


def test_nested_problems_have_nested_paths() -> None:
    _, problems = build(inner={"evn": "X"}, inners=[{"env": "A"}, {"env": "B", "count": "many"}])
    assert set(problems) == {"stores.pool.inner.evn", "stores.pool.inner.env", "stores.pool.inners[1].count"}


def test_every_problem_is_told_at_once() -> None:
    _, problems = build(flag="x", count="x", odd=7, small=99)
    assert set(problems) == {f"stores.pool.{name}" for name in ("flag", "count", "odd", "small")}
    _, problems = build(odd=7, small=99)
    assert set(problems) == {"stores.pool.odd", "stores.pool.small"}


def test_a_check_that_needs_the_other_options_waits_for_them() -> None:
    def above_low(whole: Any, field: Any, value: int) -> None:
        if value <= whole.low:
            raise ValueError(f"expected more than low, {whole.low}")

    @attrs.frozen
    class Range:
        low: int = 0
        high: int = attrs.field(default=1, validator=above_low)

    def said(**values: Any) -> list[str]:
        problems: list[str] = []
        options.build(Range, values, "stores.s", lambda path, text: problems.append(path))
        return problems

    assert said(low="x", high=-5) == ["stores.s.low"]
    assert said(low=1, high=-5) == ["stores.s.high"]


@pytest.mark.parametrize("value", [5, 1.5, True, ["a"], {"a": 1}, None])
def test_a_path_with_a_converter_of_its_own_takes_text_only(value: Any) -> None:
    @attrs.frozen
    class Folder:
        root: Path = attrs.field(converter=Path)

    problems: list[str] = []
    assert options.build(Folder, {"root": value}, "s", lambda path, text: problems.append(text)) is None
    assert problems == [f"expected a path, found {options.found(value)}"]


def test_a_required_option_is_asked_for_with_its_help() -> None:
    @attrs.frozen
    class Needs:
        bucket: str = attrs.field(metadata={"help": "the bucket that all hubs share"})

    problems: list[str] = []
    assert options.build(Needs, {}, "stores.s", lambda path, said: problems.append(f"{path}: {said}")) is None
    assert problems == ["stores.s.bucket: required: the bucket that all hubs share"]


def test_E06_a_check_that_crashes_is_a_problem_and_not_a_crash() -> None:
    def crash(value: Any) -> int:
        return int(value["missing"])

    @attrs.frozen
    class Crashes:
        a: int = attrs.field(converter=crash)

        def __attrs_post_init__(self) -> None:
            raise ZeroDivisionError("post")

    problems: list[str] = []
    assert options.build(Crashes, {"a": {}}, "p", lambda path, said: problems.append(f"{path}: {said}")) is None
    assert problems == ["p.a: the option's check failed: KeyError: missing"]


def test_secrets_appear_in_no_message_and_no_listing() -> None:
    _, problems = build(password=123456789)
    assert "123456789" not in str(problems)
    field = attrs.fields_dict(Options)["password"]
    assert options.show(field, "hunter2") == "(secret, not shown)"


def test_what_cannot_describe_options_is_told() -> None:
    @attrs.frozen
    class Unresolved:
        a: "Nowhere"  # type: ignore[name-defined]  # noqa: F821, UP037

    @attrs.frozen
    class Reserved:
        use: str = ""

    assert "not an attrs class" in options.class_problem(int)
    assert "Nowhere" in options.class_problem(Unresolved)
    assert "'use'" in options.class_problem(Reserved)
    assert options.class_problem(Options) == ""
