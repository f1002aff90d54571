"""Builds the packages of this repository as wheels and sdists, each from a copy: a checkout is not written to."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs

ROOT = Path(__file__).parents[2]
_FILES = ("pyproject.toml", "setup.py", "README.md", "CHANGELOG.md", "LICENSE", "kvhub_pytest.py")
_SKIPPED = shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info")
_BUILD = """
import sys
from setuptools import build_meta

_, into, *what = sys.argv  # setuptools has a `sys.argv` of its own while it works
for each in what:
    name = getattr(build_meta, f"build_{each}")(into)
    print(f"built {name}")
"""


@attrs.frozen
class Package:
    """One folder with a pyproject.toml."""

    folder: Path
    project: dict[str, Any] = attrs.field(repr=False, eq=False)

    @property
    def name(self) -> str:
        return str(self.project["name"])

    @property
    def module(self) -> str:
        return self.name.replace("-", "_")

    @property
    def code(self) -> list[str]:
        """Files of the module that a wheel must have, from the folder on; what a compiler makes is not among them."""
        found = (path for path in (self.folder / self.module).rglob("*") if path.is_file())
        kept = (path for path in found if "__pycache__" not in path.parts and path.suffix not in (".so", ".c"))
        return sorted(str(path.relative_to(self.folder)) for path in kept)


def packages() -> list[Package]:
    """Every package of the repository, the core first."""
    files = [*ROOT.glob("pyproject.toml"), *sorted(ROOT.glob("plugins/*/pyproject.toml"))]
    files += [*sorted(ROOT.glob("adapters/*/pyproject.toml")), *ROOT.glob("kernels/pyproject.toml")]
    return [Package(file.parent, tomllib.loads(file.read_text())["project"]) for file in files]


def build(package: Package, into: Path, *what: str) -> list[Path]:
    """Build "wheel" or "sdist" or both with setuptools as it is installed here; the files that were made."""
    copy = into / f"{package.name}-source"
    copy.mkdir(parents=True)
    for name in _FILES:
        if (package.folder / name).exists():
            shutil.copy(package.folder / name, copy)
    shutil.copytree(package.folder / package.module, copy / package.module, ignore=_SKIPPED)
    return [into / name for name in _setuptools(copy, into, *what)]


def _setuptools(source: Path, into: Path, *what: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", _BUILD, str(into), *what],
        cwd=source, env=os.environ | {"PYTHONPATH": ""}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    if done.returncode:
        raise AssertionError(f"{source.name} cannot be built:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return [line.removeprefix("built ") for line in done.stdout.splitlines() if line.startswith("built ")]


def rebuild(sdist: Path, into: Path) -> Path:
    """The wheel that is built from nothing but an sdist, as a distributor builds it."""
    with tarfile.open(sdist) as archive:
        archive.extractall(into, filter="data")
    (source,) = [path for path in into.iterdir() if path.is_dir()]
    (name,) = _setuptools(source, into, "wheel")
    return into / name


def build_all(which: Iterable[Package], into: Path, *what: str) -> dict[str, list[Path]]:
    """By the package's name; two at a time."""
    which = list(which)
    with ThreadPoolExecutor(2) as pool:
        made = pool.map(lambda package: build(package, into / package.name, *what), which)
        return {package.name: files for package, files in zip(which, made, strict=True)}
