"""One pool per test, and `kvhub pool` as operators type it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kvhub.cli import main
from kvhub.pool.medium import Medium
from kvhub_nfs import DirectoryStore
from pool.house import House, write_yaml

Run = Callable[..., tuple[int, Any, str]]
Spawn = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("KVHUB_"):
            monkeypatch.delenv(name)


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path / "pool")


@pytest.fixture
def far(tmp_path: Path) -> House:
    return House(tmp_path / "far")


@pytest.fixture
def medium(house: House) -> Iterator[Medium]:
    with DirectoryStore.medium(DirectoryStore.Config(root=house.root)) as medium:
        yield medium


@pytest.fixture
def run(tmp_path: Path, house: House, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `kvhub pool COMMAND FILE --json WORDS`: status, what it printed as JSON (or text), and stderr."""
    file = write_yaml(tmp_path / "kvhub.yaml", pool=house.root)

    def run(command: str, *words: str, json_: bool = True, yaml: Path = file) -> tuple[int, Any, str]:
        capsys.readouterr()
        status = main(["pool", command, str(yaml), *words, *(["--json"] if json_ else [])])
        said = capsys.readouterr()
        return status, (json.loads(said.out) if json_ and said.out else said.out), said.err

    return run


@pytest.fixture
def spawn(tmp_path: Path) -> Iterator[Spawn]:
    """Start a script of these tests, or kvhub itself, as a process of its own; ended with the test."""
    started: list[subprocess.Popen[str]] = []

    def spawn(*words: object) -> subprocess.Popen[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("KVHUB_")}
        environment |= {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, *map(str, words)]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        started.append(process)
        return process

    yield spawn
    for process in started:
        process.kill()
        process.communicate()
