"""`when`: under which conditions a step of a route takes part, read from the file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kvhub import names

PARTS = ("prompt", "generated")
"""Whose tokens a chunk holds: what was given, or what a decode wrote."""
MOST_USES = 255
MOST_CHUNKS = 1 << 20
MOST_FACTOR = 100

Report = Callable[[str, str], None]
_Rule = Callable[[Any, str, Report], Any]


def _count(most: int) -> _Rule:
    def read(value: Any, path: str, report: Report) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            report(path, f"expected a whole number from 1 to {most}, found {value!r}")
            return 1
        return value

    return read


def _part(value: Any, path: str, report: Report) -> str:
    if value not in PARTS:
        report(path, f"expected one of {', '.join(PARTS)}, found {value!r}")
        return ""
    return str(value)


def _factor(value: Any, path: str, report: Report) -> float:
    """true is 1: any faster will do."""
    if value is True or value is False:
        return float(value)
    if not isinstance(value, int | float) or not 0 < value <= MOST_FACTOR:
        report(path, f"expected true, false or how many times as fast, up to {MOST_FACTOR}, found {value!r}")
        return 0.0
    return float(value)


STORING: Mapping[str, _Rule] = {"uses": _count(MOST_USES), "prefix_chunks": _count(MOST_CHUNKS), "part": _part}
"""uses: chunks seen that many times; prefix_chunks: only the first chunks of a prompt; part: prompt or generated."""
RETRIEVING: Mapping[str, _Rule] = {"faster": _factor, "missing_chunks": _count(MOST_CHUNKS)}
"""faster: only where loading is faster than computing, or so many times; missing_chunks: only for so many or more."""


def read(value: Any, path: str, rules: Mapping[str, _Rule], report: Report) -> dict[str, Any]:
    """The conditions of one step; what cannot be read is reported and left out."""
    if not isinstance(value, Mapping) or not value:
        report(path, f"expected conditions, as 'when: {_example(rules)}'")
        return {}
    found = {}
    for key, each in value.items():
        if key in rules:
            found[str(key)] = rules[key](each, f"{path}.{key}", report)
        else:
            report(f"{path}.{key}", f"unknown condition; {names.hint(str(key), list(rules))}")
    return found


def _example(rules: Sequence[str] | Mapping[str, _Rule]) -> str:
    return "{uses: 2}" if "uses" in rules else "{faster: true}"
