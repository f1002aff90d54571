"""Which codec each store has: read from a file's `codecs` and from the steps that name them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from kvhub import names, options
from kvhub.codec import Codec, CodecConfig, Encodings
from kvhub.conditions import Report
from kvhub.roles import RoleConfig, Step
from kvhub.yamlfile import below

Resolve = Callable[[str, str], "type[Codec] | None"]
"""Takes (dotted path, `use:` word); None after reporting why there is no such codec."""


def read_encodings(
    section: Mapping[str, Any], roles: Mapping[str, RoleConfig], resolve: Resolve, report: Report
) -> Encodings:
    """The codecs of a file; what cannot be read is reported and left out."""
    codecs: dict[str, CodecConfig] = {}
    for name, value in section.items():
        if (made := _entry(str(name), value, resolve, report)) is not None:
            codecs[made.name] = made
    by_store: dict[str, str] = {}
    for path, step in _steps(roles):
        if step.codec and step.codec not in section and step.codec not in codecs:
            made = _bare(step.codec, path, list(section), resolve, report)
            if made is not None:
                codecs[made.name] = made
        if step.codec in codecs:
            by_store.setdefault(step.member, step.codec)
    _one_each(roles, report)
    return Encodings(codecs, by_store)


def _entry(name: str, value: Any, resolve: Resolve, report: Report) -> CodecConfig | None:
    path = below("codecs", name)
    if not isinstance(value, Mapping):
        report(path, f"expected a mapping with 'use: ...', found {options.found(value)}")
        return None
    use = value.get("use")
    if not isinstance(use, str) or not use:
        report(below(path, "use"), "required: the plugin that brings this codec")
        return None
    cls = resolve(below(path, "use"), use)
    if cls is None:
        return None
    given = {str(key): item for key, item in value.items() if key != "use"}
    made = options.build(cls.Config, given, path, report)
    return None if made is None else CodecConfig(name, use, cls, made)


def _bare(use: str, path: str, entries: list[str], resolve: Resolve, report: Report) -> CodecConfig | None:
    """A codec that a step names by its `use:` word: only where every option has a default."""
    where = below(path, "codec")
    if close := names.nearest(use, entries):
        report(where, f"unknown codec '{use}'; did you mean '{close}'?")
        return None
    cls = resolve(where, use)
    if cls is None:
        return None
    required = [name for name, field in options.fields_of(cls.Config).items() if field.default is attrs.NOTHING]
    if required:
        report(
            where,
            f"'{use}' needs options ({', '.join(required)}); give it an entry in 'codecs' and name that entry here",
        )
        return None
    made = options.build(cls.Config, {}, where, report)
    return None if made is None else CodecConfig(use, use, cls, made)


def _steps(roles: Mapping[str, RoleConfig]) -> list[tuple[str, Step]]:
    return [
        (below(f"roles.{role.name}.store", index), step)
        for role in roles.values()
        for index, step in enumerate(role.store)
    ]


def _one_each(roles: Mapping[str, RoleConfig], report: Report) -> None:
    """What one role encrypts, no other may put into the same store in plain: a store has one codec."""
    first: dict[str, tuple[str, Step]] = {}
    for path, step in _steps(roles):
        other_path, other = first.setdefault(step.member, (path, step))
        if other.codec != step.codec:
            said = [f"codec '{each.codec}'" if each.codec else "no codec" for each in (step, other)]
            report(path, f"'{step.member}' has {said[0]} here and {said[1]} at {other_path}; a store has one codec")
