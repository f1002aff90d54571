"""A healthy machine, the doctor's findings as lines, and the core's fake distributions."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from core.conftest import dists

from kvhub.doctor import examine
from kvhub.doctor.machine import Machine
from kvhub.findings import Finding
from kvhub.plugins import Registry

__all__ = ["dists"]

HEALTHY = Machine(
    available=64 << 30, locked=-1, files=1 << 20, anonymous="", ports=(("mlx5_0:1", "ACTIVE"),), reachable=True
)


def line(finding: Finding) -> str:
    """A finding as one line: grade, place, thing, what was found, next step."""
    step = f" -> {finding.step}" if finding.step else ""
    return f"{finding.grade} {finding.where} {finding.what}: {finding.found}{step}"


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("KVHUB_"):
            monkeypatch.delenv(name)


@pytest.fixture
def doctor(tmp_path: Path) -> Iterator[Callable[..., list[str]]]:
    """What the doctor says of a file, as lines; `ROOT` in the file is a directory of this test."""
    root = tmp_path / "pool"
    root.mkdir()
    path = tmp_path / "kv.yaml"

    def doctor(text: str, machine: Machine = HEALTHY, role: str | None = None) -> list[str]:
        path.write_text(text.replace("ROOT", str(root)))
        found = [line(each) for each in examine(str(path), Registry(), role=role, found=machine)]
        return [each.replace(str(root), "ROOT").replace(str(path), "kv.yaml") for each in found]

    yield doctor
    assert sorted(path.name for path in root.iterdir() if path.name != ".kvhub") == [], "a scratch namespace was left"
