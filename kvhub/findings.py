"""`Finding`: one thing that `kvhub doctor` looked at, and how it is."""

from __future__ import annotations

import enum

import attrs


class Grade(enum.StrEnum):
    """How a thing is."""

    PASS = "pass"
    WARN = "warn"
    """It works, and is probably not what is meant or will not last."""
    FAIL = "fail"
    """An engine would not start with it, or would gain nothing."""


def _next_is_said(instance: Finding, _: object, value: str) -> None:
    if instance.grade is not Grade.PASS and not value:
        raise ValueError(f"{instance.what}: what is no pass needs a next step")


@attrs.frozen
class Finding:
    """Said to an operator: thing, grade, what was found and why that matters, next step."""

    grade: Grade
    what: str
    """A few words, the same whatever the grade: `free space`."""
    found: str
    """Without secrets and keys."""
    step: str = attrs.field(default="", validator=_next_is_said)
    """What to do; empty only for a pass."""
    where: str = attrs.field(default="", kw_only=True)
    """A dotted path of the file, or `machine`; the doctor fills it in for members."""


def passed(what: str, found: str) -> Finding:
    """A finding that is as it should be."""
    return Finding(Grade.PASS, what, found)


def warned(what: str, found: str, step: str) -> Finding:
    """A finding that works and is probably not what is meant, and what to do."""
    return Finding(Grade.WARN, what, found, step)


def failed(what: str, found: str, step: str) -> Finding:
    """A finding that an engine would not start with, or would gain nothing by, and what to do."""
    return Finding(Grade.FAIL, what, found, step)
