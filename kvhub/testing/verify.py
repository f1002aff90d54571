"""`kvhub verify`: the store contract on an operator's real mount or bucket, in namespaces that nobody else has.

pytest runs the laws inside this process, without its terminal, its cache, strangers' plugins and a project's settings.
Whatever ends the run, also Ctrl-C and SIGTERM, what it saved is removed before the process ends.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest

from kvhub import names
from kvhub.builtin.host import HostStore
from kvhub.codec import Codec, Codecs
from kvhub.config import load
from kvhub.errors import ConfigError
from kvhub.plugins import Registry
from kvhub.settings import Config
from kvhub.store import Store
from kvhub.testing.installed import Chosen, Run
from kvhub.testing.pytest_plugin import COLLECTED, Laws, Verdict
from kvhub.testing.scratch import MODEL, medium_of

_INTERRUPTED = "interrupted"


@attrs.frozen
class Verified:
    """What came out of it."""

    member: str
    use: str
    where: str
    """The medium in words, where it says so."""
    level: str
    notes: tuple[str, ...]
    verdicts: tuple[Verdict, ...]
    left: tuple[str, ...]
    """What could not be removed, as sentences."""
    problem: str
    """Why the run as a whole is void, or ""."""

    @property
    def good(self) -> bool:
        failed = any(verdict.outcome == "failed" for verdict in self.verdicts)
        return not (failed or self.left or self.problem)


def verify(
    file: str,
    member: str,
    level: str,
    *,
    registry: Registry | None = None,
    told: Callable[[str], None] = lambda text: None,
) -> Verified:
    """Hold one store of a file to the laws up to `level`; `told` gets a line before it begins and one for each failure.

    Raises ConfigError and KvhubError where it cannot begin; nothing was written then but the store's own probe.
    """
    config = load(file, registry or Registry())
    name = _choose(config, member)
    entry = config.members[name]
    cls: type[Any] = entry.cls
    notes: list[str] = []
    codecs = _codecs(config, name, notes)
    run, laws, where, problem = Run(must_remove=True), None, "", ""
    with _ended_by_signals():
        try:
            where = _place(cls, entry.options, notes)
            run.add(Chosen(entry.use, "store", cls, entry.options), codecs, f"stores.{name}")
            laws = _Told(run, level, told)
            place = f" at {where}" if where else ""
            told(f"stores.{name} ({entry.use}){place}: laws up to '{level}'; scratch model {MODEL}")
            status = _run(laws)
            if status == pytest.ExitCode.INTERRUPTED:
                problem = _INTERRUPTED
            elif status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
                problem = f"the laws could not be run: pytest ended with {pytest.ExitCode(status).name}"
        except KeyboardInterrupt:
            problem = _INTERRUPTED
        finally:
            with _deaf():
                run.clean()
    verdicts = tuple(laws.verdicts.values()) if laws is not None else ()
    return Verified(name, entry.use, where, level, tuple(notes), verdicts, tuple(run.left), problem)


class _Told(Laws):
    """Says each failure when it happens: the whole takes a while on a slow medium."""

    def __init__(self, run: Run, level: str, told: Callable[[str], None]) -> None:
        super().__init__(run, level)
        self._told = told

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        super().pytest_runtest_logreport(report)
        if report.failed:
            self._told(f"failed: {report.nodeid.rpartition('::')[2]}")


def _run(laws: Laws) -> int:
    settings = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": None, "PYTEST_PLUGINS": None}
    with tempfile.TemporaryDirectory(prefix="kvhub-verify-") as folder, _environment(settings):
        empty = Path(folder) / "pytest.ini"
        empty.write_text("[pytest]\n")
        arguments = ["-c", str(empty), "--rootdir", folder, "--import-mode", "importlib"]
        arguments += ["-p", "no:cacheprovider", "-p", "no:terminal", "-p", "no:junitxml", str(COLLECTED)]
        return int(pytest.main(arguments, plugins=[laws]))


def _choose(config: Config, member: str) -> str:
    stores = [name for name, entry in config.members.items() if issubclass(entry.cls, Store)]
    kept = [name for name in stores if not issubclass(config.members[name].cls, HostStore)]
    if not member and len(kept) == 1:
        return kept[0]
    if not member:
        known = f"name one with --member: {', '.join(kept)}" if kept else "its stores are the host tier alone"
        raise ConfigError([f"stores: the file has {len(kept)} beside the host tier; {known}"], where=config.path)
    if member not in stores:
        raise ConfigError([f"stores: has no '{member}'; {names.hint(member, stores)}"], where=config.path)
    return member


def _codecs(config: Config, store: str, notes: list[str]) -> Codecs | None:
    """The codecs that the file gives to the store; lossy ones are left out."""
    own: list[Codec] = []
    for name in config.encodings.by_store.get(store, ()):
        entry = config.encodings.codecs[name]
        if entry.cls.lossy:
            notes.append(f"codec '{name}' is lossy and left out: laws compare bytes")
        else:
            own.append(entry.cls(entry.options, name))
            notes.append(f"chunks pass through codec '{name}' ({entry.cls.name})")
    return Codecs(own) if own else None


def _place(cls: type[Store], options: Any, notes: list[str]) -> str:
    """Where the medium is, as it says itself; "" with a note where the store offers no housekeeping."""
    medium = medium_of(cls, options)
    if medium is None:
        notes.append("the store offers no housekeeping: laws of damage are left out, and empty namespaces may stay")
        return ""
    with medium:
        return medium.describe()


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM ends the run as Ctrl-C does: through everything that cleans up."""

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _deaf() -> Iterator[None]:
    """A second Ctrl-C does not stop the cleaning; it ends within seconds by itself."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _environment(settings: dict[str, str | None]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in settings}

    def put(values: dict[str, str | None]) -> None:
        for name, value in values.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    put(settings)
    try:
        yield
    finally:
        put(before)
