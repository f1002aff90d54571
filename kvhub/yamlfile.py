"""A strict reader for the one YAML file: every value has a line, and nothing is guessed.

It reads the part of YAML that configurations need: mappings, lists and scalars.  Its plain scalars are those of
YAML 1.2 with the traps of YAML 1.1 closed:

    true, false                     booleans; yes, no, on, off, y, n without quotes are refused
    64, -3, 1.5, .5, 1e3            numbers, decimal and finite; 0123, 0x1f, 1_000, .inf and .nan are refused
    null, ~, nothing                None
    22:22, 2026-01-31, 64GiB        text, as all else

Refused wherever they stand: duplicate keys, keys that are not text, anchors, aliases, merge keys, tags, a second
document, nesting beyond 16 levels, and more than 1 MiB.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import yaml

MOST_BYTES = 1 << 20
MOST_LEVELS = 16

_INT = re.compile(r"[-+]?(0|[1-9][0-9]{0,17})")
_FLOAT = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")
_ODD_NUMBER = re.compile(r"[-+]?(0[0-9]+|0[xXoObB][0-9a-fA-F_]+|[0-9][0-9_]*_[0-9_]*|\.(inf|nan)|[0-9]{19,})", re.I)
_ODD_BOOL = frozenset({"yes", "no", "on", "off", "y", "n"})
_CONSTANTS: dict[str, bool | None] = {"": None, "~": None, "null": None, "Null": None, "NULL": None}
_CONSTANTS |= dict.fromkeys(("true", "True", "TRUE"), True) | dict.fromkeys(("false", "False", "FALSE"), False)


@attrs.frozen
class Tree:
    """What was read: plain dicts, lists and scalars; where each dotted path stands; and what was wrong."""

    data: Any
    places: dict[str, str]
    """`stores.pool.root` or `roles.prefill.retrieve[2].from` -> `pd.yaml:7`."""
    problems: list[str]
    broken: bool = False
    """The text ended at a syntax error: `data` is only a part."""


def below(path: str, key: str | int) -> str:
    """The dotted path of `key` in what stands at `path`."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    return f"{path}.{key}" if path else key


def read(text: str, name: str) -> Tree:
    """Read a file's text; `name` is what messages call it.  Never raises: what is wrong is in `problems`."""
    return _Reader(lambda line: f"{name}:{line}").read(text, "")


def read_value(text: str, place: str, path: str) -> Tree:
    """Read one value that does not come from a file: `place` is where all of it stands, `path` what it is."""
    return _Reader(lambda line: place).read(text, path)


def plain(text: str) -> Any:
    """The value of a scalar without quotes.  Raises ValueError that says what to write instead."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if text.lower() in _ODD_BOOL:
        raise ValueError(f"'{text}' is a boolean to some and text to others; write true or false, or '\"{text}\"'")
    if _ODD_NUMBER.fullmatch(text):
        raise ValueError(f"'{text}' is not a plain decimal number; write it without prefix, or in quotes for text")
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        if not math.isfinite(number := float(text)):
            raise ValueError(f"'{text}' is too large a number")
        return number
    return text


class _TooDeep(Exception):
    """Carries (sentence, line)."""


class _Reader:
    def __init__(self, place: Callable[[int], str]) -> None:
        self._place = place
        self._places: dict[str, str] = {}
        self._problems: list[str] = []
        self._events: Iterator[yaml.Event]

    def read(self, text: str, path: str) -> Tree:
        data: Any = None
        broken = True
        try:
            if len(text) > MOST_BYTES:
                raise yaml.YAMLError(f"longer than {MOST_BYTES} bytes, which no configuration needs")
            self._events = iter(yaml.parse(text, Loader=yaml.SafeLoader))
            data = self._document(path)
            broken = False
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            said = " ".join(part for part in (error.context, error.problem) if part)
            if "\\t" in said:
                said += "; indent with spaces"
            self._problem(path, f"not YAML: {said}", (mark.line if mark else 0) + 1)
        except _TooDeep as error:
            self._problem(path, error.args[0], error.args[1])
        except yaml.YAMLError as error:
            self._problem(path, f"not YAML: {' '.join(str(error).split())}", 1)
        return Tree(data, self._places, self._problems, broken)

    def _problem(self, path: str, sentence: str, line: int) -> None:
        head = f"{path}: " if path else ""
        self._problems.append(f"{head}{sentence} ({self._place(line)})")

    def _document(self, path: str) -> Any:
        data: Any = None
        documents = 0
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                value = self._node(next(self._events), path, 0)
                if documents == 1:
                    data = value
                else:
                    self._problem(path, "a second document begins here; one file holds one", _line(event))
        return data

    def _node(self, event: yaml.Event, path: str, level: int) -> Any:
        self._places.setdefault(path, self._place(_line(event)))
        if level > MOST_LEVELS:
            raise _TooDeep(f"nested deeper than {MOST_LEVELS} levels", _line(event))
        if isinstance(event, yaml.AliasEvent):
            self._problem(path, f"alias '*{event.anchor}' is not supported; write the value out", _line(event))
            return None
        if anchor := getattr(event, "anchor", None):
            self._problem(path, f"anchor '&{anchor}' is not supported; write the value out", _line(event))
        if tag := getattr(event, "tag", None):
            self._problem(path, f"tag '{tag}' is not supported; write the plain value", _line(event))
        if isinstance(event, yaml.MappingStartEvent):
            return self._mapping(path, level)
        if isinstance(event, yaml.SequenceStartEvent):
            return self._sequence(path, level)
        assert isinstance(event, yaml.ScalarEvent)
        if event.style is not None:
            return event.value
        try:
            return plain(event.value)
        except ValueError as error:
            self._problem(path, str(error), _line(event))
            # Text keeps later checks from calling the same value wrong for a second reason where text is allowed.
            return event.value

    def _sequence(self, path: str, level: int) -> list[Any]:
        items: list[Any] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            items.append(self._node(event, below(path, len(items)), level + 1))
        return items

    def _mapping(self, path: str, level: int) -> dict[str, Any]:
        items: dict[str, Any] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self._key(event, path)
            inner = below(path, key if key is not None else "?")
            twice = key is not None and key in items
            if twice:
                assert key is not None
                self._problem(inner, f"given twice, first at {self._places[inner]}", _line(event))
                inner += "(second)"
            elif key is not None:
                self._places[inner] = self._place(_line(event))
            value = self._node(next(self._events), inner, level + 1)
            if key is not None and not twice:
                items[key] = value
        return items

    def _key(self, event: yaml.Event, path: str) -> str | None:
        if not isinstance(event, yaml.ScalarEvent):
            self._problem(path, "a key must be a word", _line(event))
            if not isinstance(event, yaml.AliasEvent):
                self._node(event, below(path, "?"), MOST_LEVELS - 1)
            return None
        if event.style is None and event.value == "<<":
            self._problem(path, "merge key '<<' is not supported; write the values out", _line(event))
            return None
        if (event.style is None and event.value in _CONSTANTS) or not event.value:
            self._problem(path, f"a key must be a word, found '{event.value}'", _line(event))
            return None
        return event.value


def _line(event: yaml.Event) -> int:
    mark = event.start_mark
    return int(mark.line) + 1 if mark is not None else 1
