"""Distributions for tests of `--kvhub-use` and `kvhub verify`: metadata and a module on a path, as pip leaves them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

STORE = '''
import attrs
from pathlib import Path
from kvhub import hookimpl
from kvhub.store import BlockingStore

@attrs.frozen
class Options:
    root: Path = attrs.field(converter=Path)

class Tree(BlockingStore):
    """One file for each chunk."""

    Config = Options
    persistent = shared = True

    def open(self):
        self.folder = self.config.root / self.context.namespace.hex()
        self.folder.mkdir(parents=True, exist_ok=True)

    def has(self, name):
        return (self.folder / name).exists()

    def read(self, name, header, payload):
        try:
            data = (self.folder / name).read_bytes()
        except FileNotFoundError:
            return None
        head, body = data[:4096], data[4096:][: payload.nbytes]
        header[: len(head)] = head
        payload[: len(body)] = body
        return len(data)

    def write(self, name, header, payload):
        part = self.folder / f"part-{id(header)}"
        part.write_bytes(header + payload)
        part.replace(self.folder / name)
        return True

    def drop(self, name):
        (self.folder / name).unlink(missing_ok=True)

@hookimpl
def kvhub_register_stores():
    return (Tree,)
'''


def install(folder: Path, name: str, source: str) -> None:
    """A plugin `name` in a folder that is to be on the path."""
    module = f"installed_{name}"
    (folder / f"{module}.py").write_text(source)
    info = folder / f"kvhub_{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: kvhub-{name}\nVersion: 1.0\nRequires-Dist: kvhub>=0.1,<0.2\n"
    )
    (info / "entry_points.txt").write_text(f"[kvhub]\n{name} = {module}\n")


def environment(*folders: Path) -> dict[str, str]:
    paths = [*map(str, folders), *(path for path in sys.path if path)]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}


def run(*command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """`python -m COMMAND` in a folder that is also on the path."""
    return subprocess.run(
        [sys.executable, "-m", *command],
        cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=120,
    )  # fmt: skip
