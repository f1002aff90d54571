"""Which codec each store has: read from a file's `codecs` and from the steps that name them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from kvhub import names, options
from kvhub.codec import Codec, CodecConfig, Encodings
from kvhub.conditions import Report
from kvhub.roles import RoleConfig, Step
from kvhub.types import MOST_CODECS
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
    by_store: dict[str, tuple[str, ...]] = {}
    for path, step in _steps(roles):
        for at, name in enumerate(step.codec):
            if name not in section and name not in codecs:
                where = below(path, "codec")
                made = _bare(name, where if len(step.codec) == 1 else below(where, at), list(section), resolve, report)
                if made is not None:
                    codecs[made.name] = made
        if step.codec and all(name in codecs for name in step.codec):
            _order([codecs[name] for name in step.codec], below(path, "codec"), report)
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


def _order(chain: list[CodecConfig], path: str, report: Report) -> None:
    """Whether these codecs can follow one another."""
    if len(chain) > MOST_CODECS:
        report(path, f"names {len(chain)} codecs; a chunk passes through {MOST_CODECS} at most")
    for at, codec in enumerate(chain):
        where = below(path, at) if len(chain) > 1 else path
        if any(codec.cls is other.cls for other in chain[:at]):
            report(where, f"'{codec.name}' comes after a codec of its own kind; name one of them")
        if at + 1 < len(chain) and codec.cls.seals:
            report(
                where,
                f"'{codec.name}' encrypts, and nothing can be made of encrypted bytes: they do not get smaller; "
                f"name '{chain[at + 1].name}' before it",
            )
        elif at and codec.cls.lossy:
            report(where, f"'{codec.name}' rounds numbers, which it no longer finds behind a codec; name it first")


def _bare(use: str, where: str, entries: list[str], resolve: Resolve, report: Report) -> CodecConfig | None:
    """A codec that a step names by its `use:` word: only where every option has a default."""
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
            said = [f"codec '{', '.join(each.codec)}'" if each.codec else "no codec" for each in (step, other)]
            report(
                path, f"'{step.member}' has {said[0]} here and {said[1]} at {other_path}; a store has the same for all"
            )
