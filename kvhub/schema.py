"""The JSON Schema (draft 2020-12) of a configuration with the options of the plugins that are installed.

It is for editors: it completes names, shows help and defaults, and marks what cannot be.  `kvhub check` knows
more: what options say to each other, whether a route leads anywhere.  What the schema refuses,
`kvhub check` refuses too.
"""

from __future__ import annotations

import collections.abc
import enum
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import attrs

from kvhub import options, units
from kvhub.conditions import PARTS
from kvhub.config import KINDS, MOST_CHUNK_TOKENS, NAME, NAME_MOST, ON_MISS, VERSION
from kvhub.engine import ROLES
from kvhub.errors import PluginError
from kvhub.plugins import Loaded, Registry
from kvhub.roles import LOAD_DEADLINE, LONGEST_DEADLINE, PULL_DEADLINE, SAVE_DEADLINE, WRITES
from kvhub.settings import MODEL_KEYS, Limits
from kvhub.types import MOST_CODECS

DRAFT = "https://json-schema.org/draft/2020-12/schema"
Schema = dict[str, Any]

SIZE: Schema = {
    "anyOf": [
        {"type": "integer", "minimum": 0},
        {"type": "string", "pattern": r"^\s*\d+(\.\d+)?\s*([kKmMgGtT]([iI])?[bB]|[bB])?\s*$"},
    ],
    "description": "bytes, or a size such as 64GiB (B, KiB, MiB, GiB, TiB, KB, MB, GB, TB)",
}
TIME: Schema = {
    "anyOf": [
        {"type": "number", "minimum": 0},
        {"type": "string", "pattern": r"^\s*\d+(\.\d+)?\s*(us|ms|s|m|min|h|d)\s*$"},
    ],
    "description": "seconds, or a time such as 150ms (us, ms, s, min, h, d)",
}
_TYPES: dict[Any, Schema] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    Path: {"type": "string", "minLength": 1},
}
_UNITS: dict[Any, Schema] = {units.size: {"$ref": "#/$defs/size"}, units.seconds: {"$ref": "#/$defs/time"}}


def schema(registry: Registry) -> tuple[Schema, list[str]]:
    """The schema, and a sentence for each installed plugin that had to be left out of it."""
    loaded: list[Loaded] = []
    left_out: list[str] = []
    for name in dict.fromkeys(info.name for info in registry.available()):
        try:
            loaded.append(registry.load(name))
        except PluginError as error:
            left_out.append(str(error))
    defs: Schema = {"size": SIZE, "time": TIME, "name": {"type": "string", "pattern": f"^{NAME.pattern}$"}}
    sections = {
        "stores": {use: cls.Config for plugin in loaded for use, cls in plugin.stores.items()},
        "transports": {use: cls.Config for plugin in loaded for use, cls in plugin.transports.items()},
        "codecs": {use: cls.Config for plugin in loaded for use, cls in plugin.codecs.items()},
    }
    properties: Schema = {
        "kvhub": {"const": VERSION, "description": "version of this format"},
        "model": _closed({key: {"type": "string", "minLength": 1} for key in MODEL_KEYS}),
        "plugins": _closed({"allow": {"type": "array", "items": {"type": "string"}, "description": _ALLOW}}),
        "chunk_tokens": {"type": "integer", "minimum": 1, "maximum": MOST_CHUNK_TOKENS, "default": 64},
        "limits": of_class(Limits),
        "on_miss": {"enum": list(ON_MISS), "default": ON_MISS[0]},
        "roles": {**_closed({role: _role() for role in ROLES}), "minProperties": 1},
    }
    for section, classes in sections.items():
        for use, cls in classes.items():
            defs[_def_name(section, use)] = of_class(cls, {"use": {"const": use}}, ["use"])
        properties[section] = _section(section, classes)
    whole = _closed(properties, ["kvhub", "roles"])
    return {"$schema": DRAFT, "title": "kvhub configuration", "$defs": defs, **whole}, left_out


_ALLOW = "distributions whose plugins may be imported; absent: all that are installed"


def of_class(cls: type, more: Mapping[str, Any] | None = None, required: Iterable[str] = ()) -> Schema:
    """The schema of a class of options: types, defaults, help, and the words of those that have a choice."""
    hints = typing.get_type_hints(cls)
    properties: Schema = dict(more or {})
    needed = list(required)
    for name, field in options.fields_of(cls).items():
        properties[name] = _option(field, hints.get(field.name, Any))
        if field.default is attrs.NOTHING:
            needed.append(name)
    return _closed(properties, needed)


def _option(field: Any, hint: Any) -> Schema:
    found = dict(_UNITS.get(field.converter) or _converted(field.converter, hint))
    words = getattr(field.validator, "options", None)
    if words is not None:
        found = {"enum": list(words)}
    if text := field.metadata.get("help"):
        found["description"] = text
    default = field.default
    if options.show(field, "") == "" and (default is None or isinstance(default, bool | int | float | str)):
        found["default"] = default
    return found


def _converted(converter: Any, hint: Any) -> Schema:
    """A converter sees the value as it stands in the file, which may be another than what it makes of it."""
    if converter is None:
        return of_hint(hint)
    arms = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    null = [{"type": "null"}] if type(None) in arms else []
    plain = [arm for arm in arms if arm is not type(None)]
    if plain in ([bool], [str], [Path]):
        found = [_TYPES[plain[0]]]
    elif plain in ([int], [float]):
        # Perhaps a size or a time in words.
        found = [{"type": ["number", "string"]}]
    else:
        return {}
    return {"anyOf": [*found, *null]} if null else found[0]


def of_hint(hint: Any) -> Schema:
    """The schema of what `kvhub.options` takes for an annotation."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint in _TYPES:
        return dict(_TYPES[hint])
    if hint is type(None):
        return {"type": "null"}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [of_hint(arm) for arm in arguments]}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (dict, collections.abc.Mapping):
        return {"type": "object", "additionalProperties": of_hint(arguments[1])}
    if origin in (tuple, list, frozenset, set, collections.abc.Sequence, collections.abc.Collection):
        whole = origin is tuple and not (len(arguments) == 2 and arguments[1] is Ellipsis)
        if whole:
            inner: Schema = {"prefixItems": [of_hint(arm) for arm in arguments], "items": False}
            return {"type": "array", **inner, "minItems": len(arguments)}
        return {"type": "array", "items": of_hint(arguments[0])}
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return {"enum": [member.value for member in hint]}
    if isinstance(hint, type) and attrs.has(hint):
        return of_class(hint)
    return {}


def _closed(properties: Mapping[str, Any], required: Iterable[str] = ()) -> Schema:
    found: Schema = {"type": "object", "properties": dict(properties), "additionalProperties": False}
    if needed := list(required):
        found["required"] = needed
    return found


def _def_name(section: str, use: str) -> str:
    return f"{section}.{use.replace('/', '.')}"


def _section(section: str, classes: Mapping[str, type]) -> Schema:
    """Names of the operator's choice; what each takes depends on its `use`; none at all where nothing is installed."""
    if not classes:
        return {"type": "object", "maxProperties": 0}
    entry: Schema = {
        "type": "object",
        "required": ["use"],
        "properties": {"use": {"enum": sorted(classes), "description": f"the plugin that makes this {KINDS[section]}"}},
        "allOf": [
            {
                "if": {"properties": {"use": {"const": use}}, "required": ["use"]},
                "then": {"$ref": f"#/$defs/{_def_name(section, use)}"},
            }
            for use in sorted(classes)
        ],
    }
    names = {"$ref": "#/$defs/name", "maxLength": NAME_MOST}
    return {"type": "object", "propertyNames": names, "additionalProperties": entry}


def _role() -> Schema:
    member = {"$ref": "#/$defs/name"}
    deadline = {"$ref": "#/$defs/time"}
    said = f"at most {LONGEST_DEADLINE:.0f}s; default "
    to = _closed(
        {
            "to": member,
            "deadline": {**deadline, "description": f"{said}{SAVE_DEADLINE:.0f}s"},
            "write": {"enum": list(WRITES), "default": WRITES[0]},
            "codec": {
                "anyOf": [
                    {"type": "string", "minLength": 1},
                    {
                        "type": "array",
                        "items": {"type": "string", "minLength": 1},
                        "minItems": 1,
                        "maxItems": MOST_CODECS,
                    },
                ]
            },
            "when": _closed(
                {
                    "uses": {"type": "integer", "minimum": 1},
                    "prefix_chunks": {"type": "integer", "minimum": 1},
                    "part": {"enum": list(PARTS)},
                }
            ),
        },
        ["to"],
    )
    source = _closed(
        {
            "from": member,
            "deadline": {
                **deadline,
                "description": f"{said}{LOAD_DEADLINE:.0f}s from a store, {PULL_DEADLINE:.0f}s from a transport",
            },
            "promote": {"type": "array", "items": member, "uniqueItems": True},
            "when": _closed(
                {
                    "faster": {"anyOf": [{"type": "boolean"}, {"type": "number", "exclusiveMinimum": 0}]},
                    "missing_chunks": {"type": "integer", "minimum": 1},
                }
            ),
        },
        ["from"],
    )
    lists = {
        "store": {"type": "array", "items": {"anyOf": [member, to]}},
        "retrieve": {"type": "array", "items": {"anyOf": [member, source]}},
    }
    parts = {"type": "array", "items": {"enum": list(PARTS)}, "uniqueItems": True}
    return _closed({**lists, "write_back": parts})
