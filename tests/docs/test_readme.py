"""The README: its file loads, its commands exist, its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from kvhub.config import load
from kvhub.plugins import Registry

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "README.md").read_text()


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", TEXT, re.DOTALL)


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_the_file_loads_without_warnings(role: str) -> None:
    (text,) = blocks("yaml")
    registry = Registry()
    missing = {"nfs", "ucx"} - {plugin.name for plugin in registry.available()}
    if missing:
        pytest.skip(f"needs the plugins {', '.join(sorted(missing))}")
    config = load(yaml.safe_load(text), registry, role=role)
    assert list(config.warnings) == []
    assert {step.member for step in config.roles["decode"].store} == {"host", "pool"}


def test_the_commands_exist() -> None:
    named = set(re.findall(r"^make (\S+)", TEXT, re.MULTILINE))
    assert {"demo", "test"} <= named
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert named <= targets


def test_the_packages_that_are_to_be_installed_are_there() -> None:
    (line,) = re.findall(r"^pip install (.*?) +#", TEXT, re.MULTILINE)
    folders = [ROOT / word.strip("'").partition("[")[0] for word in line.split()]
    assert ROOT in folders and len(folders) > 3
    assert [folder for folder in folders if not (folder / "pyproject.toml").exists()] == []
