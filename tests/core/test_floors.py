"""The floors of the core and the arrows between packages, read from the sources with `ast`."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]

FLOORS: dict[int, str] = {
    0: "conditions errors evict exported findings layout mounts names pace pages rates types units yamlfile",
    1: "arena chunkfile codec environ keys member observe options roles workers",
    2: "allowed breaker demotion encodings engine hookspecs installed plan pump routes settings "
    "store tail transport weights",
    3: "accept builtin claims config jobs offers search sinks stream wire",
    4: "fetch opening orders plugins rehearsal router",
    5: "hub pool requests scaffold schema",
    6: "bench doctor session",
    7: "testing",
    8: "cli",
}
"""A module imports only from floors below its own; a folder may import inside itself."""
GROUND = {"errors", "names"}
"""What stands on the ground that floor 0 stands on, too."""
FLOOR = {name: floor for floor, names in FLOORS.items() for name in names.split()}
MOST_LINES = 400
ENGINES = {"torch", "vllm", "sglang", "triton", "numpy", "boto3", "botocore", "ucp", "ucxx", "libucx"}

IMPORTS = {"attrs": "attrs", "pyyaml": "yaml", "kvhub-kernels": "kvhub_kernels"}
"""Distribution -> what it is imported as, where that is not its own name with '_' for '-'."""
ARROWS = {"plugins": set[str](), "adapters": {"kvhub_kernels"}, "kernels": set[str]()}
"""What of ours, besides the core, the packages of a folder may import."""
HOSTS = {"kvhub_vllm": {"vllm"}, "kvhub_sglang": {"sglang", "transformers", "prometheus_client"}}
"""The engine that an adapter is loaded by, and what that brings: there already, under one of several names."""


@attrs.frozen
class Import:
    """One import of a source file; `checking` when it is only for annotations."""

    file: Path
    line: int
    module: str
    checking: bool

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line} imports {self.module}"


def sources(folder: Path) -> list[Path]:
    skipped = {"tests", "build", "dist"}
    files = (file for file in folder.rglob("*.py") if not skipped & set(file.relative_to(folder).parts[:-1]))
    return sorted(file for file in files if not any(part.startswith(".") for part in file.relative_to(folder).parts))


def imports(file: Path) -> list[Import]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return list(_imports(tree, file, False))


def _imports(node: ast.AST, file: Path, checking: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(file, child.lineno, alias.name, checking)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"{file}:{child.lineno}: write the package's name, not dots"
            for alias in child.names:
                # `from kvhub import names` may name a module or something inside the package: both forms are looked at.
                inner = f"{child.module}.{alias.name}" if child.module == "kvhub" else str(child.module)
                yield Import(file, child.lineno, inner, checking)
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for inside in child.body:
                yield from _imports(ast.Module([inside], []), file, True)
            for inside in child.orelse:
                yield from _imports(ast.Module([inside], []), file, checking)
        else:
            yield from _imports(child, file, checking)


def part(file: Path) -> str:
    """The core's part that a file belongs to: `config`, `builtin`; "" for the package itself."""
    first = file.relative_to(ROOT / "kvhub").parts[0]
    return "" if first == "__init__.py" else first.removesuffix(".py")


CORE = sources(ROOT / "kvhub")


def test_every_part_of_the_core_has_a_floor() -> None:
    parts = {part(file) for file in CORE} - {""}
    assert sorted(parts - set(FLOOR)) == [], "give these a floor, in FLOORS and in the design"
    assert sorted(set(FLOOR) - parts) == [], "these are gone; take them out of FLOORS"


@pytest.mark.parametrize("file", CORE, ids=lambda file: str(file.relative_to(ROOT)))
def test_modules_import_only_from_lower_floors(file: Path) -> None:
    mine = part(file)
    wrong = []
    for found in imports(file):
        words = found.module.split(".")
        if words[0] != "kvhub" or len(words) < 2 or found.checking:
            continue
        other = words[1]
        if other in FLOOR and other not in GROUND and other != mine and mine and FLOOR[other] >= FLOOR[mine]:
            wrong.append(f"{found} (floor {FLOOR[other]}) from floor {FLOOR[mine]}")
    assert wrong == []


def test_the_core_imports_only_what_it_declares() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    allowed = _declared(project["dependencies"]) | {"kvhub", "attr"} | set(sys.stdlib_module_names)
    testing = allowed | _declared(project["optional-dependencies"]["testing"])
    wrong = [
        str(found)
        for file in CORE
        for found in imports(file)
        if found.module.split(".")[0] not in (testing if part(file) == "testing" else allowed)
    ]
    assert wrong == []


def _declared(requirements: list[str]) -> set[str]:
    names = [canonicalize_name(Requirement(text).name) for text in requirements]
    return {IMPORTS.get(name, name.replace("-", "_")) for name in names}


def packages() -> list[Path]:
    folders = [*(ROOT / "plugins").glob("*/pyproject.toml"), *(ROOT / "adapters").glob("*/pyproject.toml")]
    return sorted([*folders, *ROOT.glob("kernels/pyproject.toml")])


@pytest.mark.parametrize("file", packages(), ids=lambda file: file.parent.name)
def test_packages_import_only_along_the_arrows_and_what_they_declare(file: Path) -> None:
    project = tomllib.loads(file.read_text())["project"]
    own = project["name"].replace("-", "_")
    kind = file.parent.relative_to(ROOT).parts[0]
    optional = [text for texts in project.get("optional-dependencies", {}).values() for text in texts]
    declared = _declared([*project.get("dependencies", []), *optional])
    wrong = []
    for source in sources(file.parent / own):
        for found in imports(source):
            top = found.module.split(".")[0]
            if top == own or top in sys.stdlib_module_names:
                continue
            if top.startswith("kvhub_") and top not in ARROWS[kind]:
                wrong.append(f"{found}: no arrow from {kind} goes there")
            elif top not in declared | HOSTS.get(own, set()):
                wrong.append(f"{found}: not declared in {file.relative_to(ROOT)}")
    assert wrong == []


def test_files_stay_small() -> None:
    everything = [
        *CORE,
        *(file for folder in ("tests", "plugins", "adapters", "kernels") for file in _all(ROOT / folder)),
    ]
    long = {str(file.relative_to(ROOT)): len(file.read_text(encoding="utf-8").splitlines()) for file in everything}
    assert {name: lines for name, lines in long.items() if lines >= MOST_LINES} == {}


def _all(folder: Path) -> list[Path]:
    files = (file for file in folder.rglob("*.py") if "build" not in file.relative_to(folder).parts)
    return [file for file in files if not any(word.startswith(".") for word in file.relative_to(folder).parts)]


@pytest.mark.parametrize("module", ["kvhub", "kvhub.hub", "kvhub.cli", "kvhub.config", "kvhub.session"])
def test_E13_E14_importing_the_core_imports_no_engine_and_no_plugin(module: str) -> None:
    script = f"import sys, {module}\nprint(*(name.partition('.')[0] for name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert loaded & ENGINES == set()
    assert {name for name in loaded if name.startswith("kvhub_")} == set()


def test_the_light_core_does_without_the_registry() -> None:
    script = "import sys, kvhub\nprint(*sorted(name for name in sys.modules if name.startswith('kvhub.')))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert {"kvhub.plugins", "kvhub.hub", "kvhub.config"} & set(done.stdout.split()) == set()


def test_the_checks_themselves_can_fail(tmp_path: Path) -> None:
    file = tmp_path / "bad.py"
    file.write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import a\nelse:\n    import b\n"
        "def f():\n    from kvhub import hub\n    import c.d\n"
        "try:\n    from e.f import g\nexcept ImportError:\n    pass\n"
    )
    found = {(each.module, each.checking) for each in imports(file)}
    assert found == {
        ("typing", False), ("a", True), ("b", False), ("kvhub.hub", False), ("c.d", False), ("e.f", False),
    }  # fmt: skip
