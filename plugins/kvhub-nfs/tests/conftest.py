"""A hub's view of directory stores in a temporary root."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest

from kvhub.testing.driver import Driver
from kvhub.testing.region import make_context
from kvhub.types import Key
from kvhub_nfs import DirectoryStore

WORKER = Path(__file__).parent / "other_hub.py"


class Pool(Driver):
    """One hub's directory store, its counters, and a hand on its files."""

    def __init__(
        self, root: Path, *, slots: int = 64, namespace: str = "tests", writes: bool = True, **options: object
    ) -> None:
        self.root = root
        self.counts: dict[str, int] = {}
        context = attrs.evolve(make_context("pool", namespace=namespace, report=self._report), writes=writes)
        super().__init__(DirectoryStore(DirectoryStore.Config(root=root, **options), context), slots=slots)

    def _report(self, name: str, count: int) -> None:
        if count:
            self.counts[name] = self.counts.get(name, 0) + count

    @property
    def home(self) -> Path:
        return self.root / self.member.context.namespace.hex()[:32]

    def path(self, key: Key) -> Path:
        name = key.hex()
        return self.home / name[:2] / name[2:4] / f"{name}.kv"

    def unfinished(self) -> list[Path]:
        return [path for path in (self.home / ".tmp").rglob("*") if path.is_file()]


@pytest.fixture
def open_pool(tmp_path: Path) -> Iterator[Callable[..., Pool]]:
    opened: list[Pool] = []

    def open_pool(*, attach: bool = True, root: Path = tmp_path, **options: object) -> Pool:
        opened.append(Pool(root, **options))  # type: ignore[arg-type]
        if attach:
            opened[-1].attach()
        return opened[-1]

    yield open_pool
    for pool in opened:
        pool.close()


@pytest.fixture
def pool(open_pool: Callable[..., Pool]) -> Pool:
    return open_pool()


@pytest.fixture
def other_hub(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start `other_hub.py` as a process of its own, optionally behind a wrapper command; ended with the test."""
    started: list[subprocess.Popen[str]] = []

    def start(*words: object, wrapper: tuple[str, ...] = (), root: Path = tmp_path) -> subprocess.Popen[str]:
        command = [*wrapper, sys.executable, str(WORKER), str(root), *map(str, words)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        started.append(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def private_mount() -> Callable[[str], tuple[str, ...]]:
    """A wrapper that runs a command in its own mount namespace after `mounts`; skips where that is not allowed."""
    allowed = ("unshare", "--mount", "--user", "--map-root-user") if os.geteuid() else ("unshare", "--mount")
    try:
        works = subprocess.run([*allowed, "mount", "-t", "tmpfs", "kv", "/mnt"], capture_output=True).returncode == 0
    except FileNotFoundError:
        works = False
    if not works:
        pytest.skip("no private mount namespaces here")
    return lambda mounts: (*allowed, "sh", "-c", f'set -e; {mounts}; exec "$0" "$@"')


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make a system call fail with an error number, for paths or always; `times` counts down, None is for ever."""

    def failing(call: str, code: int, *, times: int | None = None, after: bool = False) -> None:
        real, left = getattr(os, call), [times]

        def broken(*arguments: object, **more: object) -> object:
            if left[0] == 0:
                return real(*arguments, **more)
            if left[0] is not None:
                left[0] -= 1
            if after:
                real(*arguments, **more)
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(os, call, broken)

    return failing
