"""Real wheels, written as the zip files that they are, and an environment that they are installed into by pip."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import sysconfig
import textwrap
import venv
import zipfile
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs

import kvhub


@attrs.frozen
class Wheel:
    """One distribution with one module and its entry points of group `kvhub`."""

    project: str
    entries: Mapping[str, str]
    """Entry point -> what it names."""
    modules: Mapping[str, str] = attrs.field(factory=dict)
    """Module -> its source."""
    version: str = "1.0"
    requires: Sequence[str] = ("kvhub>=0.1,<0.2",)

    def write(self, folder: Path) -> Path:
        """Build it.  Format: https://packaging.python.org/en/latest/specifications/binary-distribution-format/"""
        stem = f"{self.project.replace('-', '_')}-{self.version}"
        info = f"{stem}.dist-info"
        points = "".join(f"{name} = {value}\n" for name, value in self.entries.items())
        needs = "".join(f"Requires-Dist: {text}\n" for text in self.requires)
        files = {f"{name}.py": textwrap.dedent(source) for name, source in self.modules.items()}
        files |= {
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {self.project}\nVersion: {self.version}\n{needs}",
            f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{info}/entry_points.txt": f"[kvhub]\n{points}",
        }
        record = "".join(f"{name},sha256={_digest(text)},{len(text.encode())}\n" for name, text in files.items())
        files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n"
        path = folder / f"{stem}-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as archive:
            for name, text in files.items():
                archive.writestr(name, text)
        return path


def _digest(text: str) -> str:
    return urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


class Environment:
    """A virtual environment that has the core of this checkout and what these tests run with, and the wheels."""

    def __init__(self, root: Path) -> None:
        self._root = root
        venv.create(root / "venv", with_pip=False, symlinks=True)
        self.python = root / "venv" / "bin" / "python"
        paths = {"base": str(root / "venv"), "platbase": str(root / "venv")}
        self.site = Path(sysconfig.get_path("purelib", "venv", paths))
        mine = sysconfig.get_path("purelib")
        (self.site / "core.pth").write_text(f"import site; site.addsitedir({mine!r})\n")

    def install(self, *wheels: Wheel) -> None:
        """By pip, without a look at any index."""
        folder = self._root / "wheels"
        folder.mkdir(exist_ok=True)
        files = [str(wheel.write(folder)) for wheel in wheels]
        pip = [sys.executable, "-m", "pip", "--python", str(self.python), "--disable-pip-version-check", "-q"]
        # Two of them have one entry point, which pip does not mind; none has what it says it requires.
        done = subprocess.run(
            [*pip, "install", "--no-index", "--no-deps", "--no-compile", *files],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr

    def kvhub(self, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run `kvhub` there."""
        return self.run("-m", "kvhub.cli", *words, **environ)

    def run(self, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run its Python."""
        clean = {name: value for name, value in os.environ.items() if not name.upper().startswith("KV")}
        # The checkout that is under test, wherever an editable install may point.
        clean["PYTHONPATH"] = str(Path(kvhub.__file__).parents[1])
        command = [str(self.python), *words]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=60, env=clean | environ, cwd=self._root, check=False
        )
