"""From a mapping of options to a frozen attrs object: names, types and converters checked, every problem told.

What a field's annotation means for the value in the file:

    bool                true or false, never 0, 1 or "no"
    int, float          a number; float takes integers too; both finite
    str                 text; a bare number must be quoted, since nobody knows which spelling of it was meant
    Path                non-empty text
    T | None            T or null
    tuple[T, ...], frozenset[T], list[T]    a list
    Mapping[str, T]     a mapping
    Literal, Enum       one of the words
    another attrs class a mapping, checked in the same way

A field with a converter hands the value to it as it stands in the file; its ValueError becomes the problem.
"""

from __future__ import annotations

import collections.abc
import enum
import math
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import attrs

from kvhub import names
from kvhub.yamlfile import below

Report = Callable[[str, str], None]
"""Takes (dotted path, sentence)."""

_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", Path: "a path"}


class Unfit(ValueError):
    """A value that its annotation does not allow; the message says what was expected and found."""


def fields_of(cls: type) -> dict[str, Any]:
    """Option name -> attrs attribute, in order of declaration."""
    return {field.alias: field for field in attrs.fields(cls) if field.init}


def class_problem(cls: type) -> str:
    """Why `cls` cannot describe options, or ""."""
    if not (isinstance(cls, type) and attrs.has(cls)):
        return "is not an attrs class; write @attrs.frozen above it"
    try:
        typing.get_type_hints(cls)
    except Exception as error:
        return f"has annotations that cannot be resolved: {type(error).__name__}: {error}"
    if "use" in fields_of(cls):
        return "has an option named 'use', which is the hub's own"
    return ""


def build(cls: type, values: Mapping[str, Any], path: str, report: Report) -> Any | None:
    """An instance of `cls`, or None after reporting every problem of `values` by dotted path."""
    fields = fields_of(cls)
    hints = typing.get_type_hints(cls)
    problems = 0

    def told(where: str, sentence: str) -> None:
        nonlocal problems
        problems += 1
        report(where, sentence)

    ready: dict[str, Any] = {}
    for name, value in values.items():
        where = below(path, name)
        if name not in fields:
            told(where, f"unknown option; {names.hint(name, fields)}")
            continue
        try:
            ready[name] = _value(fields[name], hints.get(fields[name].name, Any), value, where, told)
        except Exception as error:
            told(where, _said(error, fields[name]))
    for name, field in fields.items():
        if field.default is attrs.NOTHING and name not in values:
            told(below(path, name), f"required{_help(field)}")
    if problems:
        _hold_each(fields, ready, path, report)
        return None
    return _construct(cls, ready, path, report)


def show(field: Any, value: Any) -> Any:
    """The value as an operator may see it: secrets are not shown.

    A field is a secret when its metadata say `{"secret": True}` or when it is declared with `repr=False`.
    """
    return "(secret, not shown)" if value is not None and _secret(field) else value


def _secret(field: Any) -> bool:
    return bool(field.metadata.get("secret")) or field.repr is False


def _value(field: Any, hint: Any, value: Any, path: str, report: Report) -> Any:
    """What to hand to the constructor, which runs the converter again: attrs gives no way around it."""
    converter = field.converter
    if converter is None:
        return fit(value, hint, path, report)
    if hint in (Path, Path | None):
        fit(value, hint, path, report)  # what a path's converter says of a number is not meant for operators
    if converter in (tuple, list, frozenset, set) and isinstance(value, str):
        raise Unfit(f"expected a list, found {found(value)}")
    if not isinstance(converter, attrs.Converter):  # one that takes the instance too runs in the constructor only
        converter(value)
    return value


def _construct(cls: type, ready: dict[str, Any], path: str, report: Report) -> Any | None:
    try:
        with attrs.validators.disabled():
            instance = cls(**ready)
    except Exception as error:
        report(path, _said(error, None))
        return None
    good = True
    # One by one, so that a problem has its option's path and the first does not hide the others.
    for name, field in fields_of(cls).items():
        if field.validator is None:
            continue
        try:
            field.validator(instance, field, getattr(instance, field.name))
        except Exception as error:
            good = False
            report(below(path, name), _said(error, field))
    return instance if good else None


def _hold_each(fields: Mapping[str, Any], ready: dict[str, Any], path: str, report: Report) -> None:
    """What can be said of each value by itself, where others are wrong or missing and there is no instance."""
    for name, value in ready.items():
        field = fields[name]
        if field.validator is None or value is None or isinstance(field.converter, attrs.Converter):
            continue
        try:
            field.validator(None, field, value if field.converter is None else field.converter(value))
        except ValueError as error:
            report(below(path, name), _said(error, field))
        except Exception:  # it looks at other options, too: told once those are right
            continue


def _said(error: Exception, field: Any) -> str:
    """A problem's sentence: what a ValueError says is meant for operators, anything else is a plugin's fault."""
    if field is not None and _secret(field):
        return "the value does not fit; it is a secret and therefore not shown"
    text = error.args[0] if error.args and isinstance(error.args[0], str) else str(error)
    return text if isinstance(error, ValueError) else f"the option's check failed: {type(error).__name__}: {text}"


def fit(value: Any, hint: Any, path: str, report: Report) -> Any:
    """`value` as its annotation wants it.  Raises Unfit; problems inside a nested attrs class are reported."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any or hint is object:
        return value
    if origin in (typing.Union, types.UnionType):
        return _union(value, arguments, path, report)
    if origin is Literal:
        return _one_of(value, arguments)
    if origin in (tuple, list, frozenset, set, collections.abc.Sequence, collections.abc.Collection):
        return _list(value, origin, arguments, path, report)
    if origin in (dict, collections.abc.Mapping):
        if not isinstance(value, Mapping):
            raise Unfit(f"expected a mapping, found {found(value)}")
        return {key: fit(item, arguments[1], below(path, key), report) for key, item in value.items()}
    if isinstance(hint, type):
        return _plain(value, hint, path, report)
    return value


def _union(value: Any, arms: tuple[Any, ...], path: str, report: Report) -> Any:
    if value is None and type(None) in arms:
        return None
    arms = tuple(arm for arm in arms if arm is not type(None))
    failures = []
    for arm in arms:
        try:
            return fit(value, arm, path, report)
        except Unfit as error:
            failures.append(error)
    if len(failures) == 1:
        raise failures[0]
    wanted = " or ".join(_WORDS.get(arm, getattr(arm, "__name__", str(arm))) for arm in arms)
    raise Unfit(f"expected {wanted}, found {found(value)}")


def _one_of(value: Any, words: tuple[Any, ...]) -> Any:
    for word in words:
        if type(word) is type(value) and word == value:
            return word
    texts = [str(word) for word in words]
    raise Unfit(f"expected one of {', '.join(texts)}, found {found(value)}{_near(value, texts)}")


def _list(value: Any, origin: Any, arguments: tuple[Any, ...], path: str, report: Report) -> Any:
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, collections.abc.Iterable):
        raise Unfit(f"expected a list, found {found(value)}")
    values = list(value)
    if origin is tuple and not (len(arguments) == 2 and arguments[1] is Ellipsis):
        if len(values) != len(arguments):
            raise Unfit(f"expected a list of {len(arguments)}, found {len(values)}")
        kinds: list[Any] = list(arguments)
    else:
        kinds = [arguments[0]] * len(values)
    items = []
    for index, (item, kind) in enumerate(zip(values, kinds, strict=True)):
        try:
            items.append(fit(item, kind, below(path, index), report))
        except Unfit as error:
            raise Unfit(f"item {index + 1}: {error}") from None
    make: Any = origin if origin in (list, frozenset, set) else tuple
    return make(items)


def _plain(value: Any, hint: type, path: str, report: Report) -> Any:
    if attrs.has(hint):
        if isinstance(value, hint):
            return value
        if not isinstance(value, Mapping):
            raise Unfit(f"expected a mapping, found {found(value)}")
        return build(hint, value, path, report)
    if issubclass(hint, enum.Enum):
        return hint(_one_of(value, tuple(member.value for member in hint)))
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        if not math.isfinite(value):
            raise Unfit(f"expected a finite number, found {value}")
        return float(value)
    if hint is Path and isinstance(value, str) and value:
        return Path(value)
    if isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
        return value
    quote = "; put it in quotes" if hint is str and isinstance(value, int | float) else ""
    raise Unfit(f"expected {_WORDS.get(hint, hint.__name__)}, found {found(value)}{quote}")


def found(value: Any) -> str:
    """A value as messages name it: its kind and a short form."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f"text '{value if len(value) <= 60 else value[:57] + '...'}'" if value else "empty text"
    if isinstance(value, int | float):
        return f"the number {value}"
    if isinstance(value, Mapping):
        return "a mapping"
    return "a list" if isinstance(value, list | tuple) else f"{type(value).__name__}"


def _near(value: Any, words: list[str]) -> str:
    close = names.nearest(value, words) if isinstance(value, str) else ""
    return f"; did you mean '{close}'?" if close else ""


def _help(field: Any) -> str:
    said = field.metadata.get("help", "")
    return f": {said}" if said else ""
