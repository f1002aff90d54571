"""docs/pool.md: every command line that it shows is one that exists."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from kvhub.cli import _parser

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "pool.md").read_text()
LINES = [line.partition(" #")[0] for line in re.findall(r"^kvhub (pool .+)$", TEXT, re.MULTILINE)]


def test_there_are_command_lines() -> None:
    assert {line.split()[1] for line in LINES} == {
        "stats", "scan", "inspect", "verify", "purge", "gc", "copy", "warm",
    }  # fmt: skip


@pytest.mark.parametrize("line", LINES)
def test_the_command_line_is_understood(line: str) -> None:
    assert callable(_parser().parse_args(shlex.split(line)).run)


def test_every_option_that_is_named_exists() -> None:
    known = set()
    for line in LINES:
        with pytest.raises(SystemExit):
            _parser().parse_args([*shlex.split(line)[:2], "--help"])
    pool = next(action for action in _parser()._actions if action.dest == "command" or action.choices)
    for command in pool.choices["pool"]._actions[-1].choices.values():
        known |= {option for action in command._actions for option in action.option_strings}
    assert set(re.findall(r"`(--[a-z-]+)", TEXT)) <= known
