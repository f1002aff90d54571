"""`kvhub new-plugin KIND NAME`: writes a package whole, or nothing at all."""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from kvhub.errors import KvhubError
from kvhub.scaffold.files import KINDS, render
from kvhub.scaffold.names import check


def add_parser(commands: Any) -> None:
    """Add `new-plugin` to the parser of `kvhub`."""
    parser = commands.add_parser("new-plugin", help="write a complete package for a plugin of your own")
    parser.add_argument("kind", choices=KINDS, help="what the plugin brings")
    parser.add_argument("name", help="what the YAML will say after 'use:'; the package is called kvhub-NAME")
    parser.add_argument("--directory", default=".", metavar="D", help="where the package's folder goes (default: here)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_run)


def create(kind: str, name: str, directory: Path) -> tuple[Path, list[str]]:
    """Write the package `kvhub-NAME` into `directory`; its folder and its files.

    Raises KvhubError, and then nothing was written.
    """
    names = check(name)
    target = directory / names.distribution
    if target.exists() or target.is_symlink():
        raise KvhubError(f"{target} exists; choose another name or another --directory")
    if not directory.is_dir():
        raise KvhubError(f"--directory {directory}: there is no such directory; create it first")
    files = render(kind, names)
    try:
        # On the same file system as its place, where it appears by a rename: whole, or not at all.
        made = Path(tempfile.mkdtemp(prefix=f".{names.distribution}-", dir=directory))
        try:
            for path, text in files.items():
                (made / path).parent.mkdir(parents=True, exist_ok=True)
                (made / path).write_text(text, encoding="utf-8")
            made.chmod(0o755)
            made.rename(target)
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise
    except OSError as error:
        raise KvhubError(
            f"{target} cannot be written ({error.strerror}); say another --directory, one that you may write to"
        ) from error
    return target, sorted(files)


def _run(chosen: argparse.Namespace) -> int:
    target, files = create(chosen.kind, chosen.name, Path(chosen.directory))
    if chosen.json:
        print(json.dumps({"ok": True, "folder": str(target), "files": files}, indent=1))
        return 0
    article = "an" if chosen.kind == "engine" else "a"
    print(f"{target}: {article} {chosen.kind} to begin from, {len(files)} files.  Next:\n")
    for line in ("pip install -e '.[testing]'", "pytest", "kvhub check example.yaml"):
        print(f"    {line}")
    print(f"\ninside of {target}.  {target / 'README.md'} says what to change.")
    return 0
