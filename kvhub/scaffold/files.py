"""What a new package consists of: the files of each kind, filled in from templates."""

from __future__ import annotations

from importlib import resources
from string import Template

from packaging.version import Version

from kvhub import __version__
from kvhub.scaffold.names import Names

_COMMON = {
    "pyproject.toml": "common/pyproject.toml.in",
    "CHANGELOG.md": "common/CHANGELOG.md.in",
    "LICENSE": "common/LICENSE.in",
    ".gitignore": "common/gitignore.in",
    ".github/workflows/test.yml": "common/test.yml.in",
    "$module/py.typed": "common/py.typed.in",
}
_OWN = {
    "store": ("store.py", "test_store.py"),
    "transport": ("transport.py", "fabric.py", "lane.py", "test_transport.py"),
    "engine": ("engine.py", "worker.py", "places.py", "test_engine.py"),
    "codec": ("codec.py", "test_codec.py"),
}
_SUMMARIES = {
    "store": "A kvhub store in a directory",
    "transport": "A kvhub transport over sockets",
    "engine": "kvhub in an engine of its own",
    "codec": "A kvhub codec that deflates chunks on a store",
}
KINDS = tuple(_OWN)


def render(kind: str, names: Names) -> dict[str, str]:
    """Path in the package -> text, for every file of a package of this kind."""
    places = dict(_COMMON)
    for file in ("README.md", "example.yaml"):
        places[file] = f"{kind}/{file}.in"
    places["$module/__init__.py"] = f"{kind}/init.py.in"
    for file in _OWN[kind]:
        path = f"tests/test_${{word}}{file.removeprefix('test')}" if file.startswith("test_") else f"$module/{file}"
        places[path] = f"{kind}/{file}.in"
    words = {
        "name": names.name,
        "word": names.word,
        "WORD": names.word.upper(),
        "module": names.module,
        "distribution": names.distribution,
        "Class": names.cls,
        "code": str(names.code),
        "core": _range(),
        "summary": _SUMMARIES[kind],
    }
    folder = resources.files("kvhub.scaffold") / "templates"
    return {
        Template(path).substitute(words): Template((folder / template).read_text(encoding="utf-8")).substitute(words)
        for path, template in places.items()
    }


def _range() -> str:
    """From this minor release of kvhub to below the next: what the new package's tests are about to run on."""
    major, minor = Version(__version__).release[:2]
    return f"{major}.{minor},<{major}.{minor + 1}"
