"""Fixtures of the core's tests: fake distributions on a temporary path, and plugins that live in this process."""

from __future__ import annotations

import importlib
import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
from format.shelf import Bench
from hypothesis import settings

from kvhub import Capabilities, hookimpl
from kvhub.codec import Codecs
from kvhub.plugins import Registry
from kvhub.store import Store
from kvhub.transport import Transport
from kvhub.units import seconds, size

# A machine that has other work to do is no fault.
settings.register_profile("kvhub", deadline=None)
settings.load_profile("kvhub")

STORE_MODULE = """
import attrs
from kvhub import Capabilities, hookimpl
from kvhub.store import Store

@attrs.frozen
class Options:
    root: str

class FakeStore(Store):
    Config = Options
    capabilities = property(lambda self: Capabilities(persistent=True, shared=True))
    def attach(self, region, wake): pass
    def submit(self, batch): pass
    def poll(self): return []
    def close(self): pass
    def used_bytes(self): return None

@hookimpl
def kvhub_register_stores():
    return (FakeStore,)
"""

_numbers = itertools.count()


class Distributions:
    """Writes distributions, metadata and modules, into one folder that is on the path."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.modules: list[str] = []

    def add(
        self,
        project: str,
        entry: str | None,
        source: str = STORE_MODULE,
        *,
        version: str = "1.0",
        requires: Sequence[str] = ("kvhub>=0.1,<0.2",),
        module: str | None = None,
        write: bool = True,
    ) -> str:
        """One distribution with one module and (unless `entry` is None) one entry point; returns the module's name."""
        module = module or f"fake_plugin_{next(_numbers)}"
        self.modules.append(module)
        if write:
            (self.root / f"{module}.py").write_text(source)
        info = self.root / f"{project.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: {project}", f"Version: {version}"]
        lines += [f"Requires-Dist: {requirement}" for requirement in requires]
        (info / "METADATA").write_text("\n".join(lines) + "\n")
        if entry is not None:
            (info / "entry_points.txt").write_text(f"[kvhub]\n{entry} = {module}\n")
        return module

    def run(self, *command: str, environ: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """A real process of this Python that sees the distributions."""
        environment = {name: value for name, value in os.environ.items() if not name.upper().startswith("KV")}
        environment |= {"PYTHONPATH": str(self.root), **(environ or {})}
        return subprocess.run(
            [sys.executable, *command], capture_output=True, text=True, timeout=30, env=environment, check=False
        )


@pytest.fixture
def dists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Distributions]:
    root = tmp_path / "site"
    root.mkdir()
    monkeypatch.syspath_prepend(str(root))
    importlib.invalidate_caches()
    made = Distributions(root)
    yield made
    for module in made.modules:
        sys.modules.pop(module, None)


@attrs.frozen
class DirOptions:
    root: Path
    capacity: int | None = attrs.field(default=None, converter=attrs.converters.optional(size))
    sync: bool = False
    wait: float = attrs.field(default=1.0, converter=seconds)
    token: str = attrs.field(default="", metadata={"secret": True})
    secret_env: str = ""


class DirStore(Store):
    """Takes options and nothing else: enough for what is decided before anything moves."""

    Config = DirOptions
    claims = Capabilities(persistent=True, shared=True)

    @property
    def capabilities(self) -> Capabilities:
        return self.claims

    def attach(self, region: Any, wake: Any) -> None: ...
    def submit(self, batch: Any) -> None: ...
    def poll(self) -> list[Any]:
        return []

    def close(self) -> None: ...
    def used_bytes(self) -> int | None:
        return None


class OwnDirStore(DirStore):
    kind = "own"
    claims = Capabilities(persistent=True, shared=False)


@attrs.frozen
class LinkOptions:
    listen: str = "127.0.0.1:0"


class LinkTransport(Transport):
    Config = LinkOptions

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities()

    def attach(self, region: Any, wake: Any) -> None: ...
    def submit(self, batch: Any) -> None: ...
    def poll(self) -> list[Any]:
        return []

    def close(self) -> None: ...
    def address(self) -> str:
        return ""

    def serve(self, source: Any) -> None: ...
    def connect(self, peer: Any) -> None: ...
    def forget(self, peer: Any) -> None: ...
    def fulfil(self, peer: Any) -> None: ...


@hookimpl
def kvhub_register_stores() -> tuple[type[Store], ...]:
    return (DirStore, OwnDirStore)


@hookimpl
def kvhub_register_transports() -> tuple[type[Transport], ...]:
    return (LinkTransport,)


@pytest.fixture
def registry() -> Registry:
    """The real registry with two plugins of this process: store `dir` (and `dir/own`), transport `link`."""
    made = Registry()
    made.add("dir", SimpleNamespace(kvhub_register_stores=kvhub_register_stores))
    made.add("link", SimpleNamespace(kvhub_register_transports=kvhub_register_transports))
    return made


PD = """\
kvhub: 1
stores:
  host: {use: host, capacity: 1GiB}
  pool: {use: dir, root: /mnt/kv}
transports:
  wire: {use: link}
roles:
  prefill:
    store:    [host, wire]
    retrieve: [host, pool]
  decode:
    store:    [host, pool]
    retrieve: [host, wire]
    write_back: [prompt, generated]
"""


@pytest.fixture
def pd_text() -> str:
    """A configuration in which nothing is wrong."""
    return PD


@pytest.fixture
def bench() -> Iterator[Callable[..., Bench]]:
    opened: list[Bench] = []
    objects: dict[str, bytes] = {}

    def bench(codecs: Codecs | None = None) -> Bench:
        opened.append(Bench(objects, codecs))
        return opened[-1]

    yield bench
    for each in opened:
        each.hub.close()
