"""The reference of the public API: what it shows, that all of it says what it is, and that others use nothing else."""

from __future__ import annotations

import ast
import re
import subprocess
import zlib
from functools import cache
from pathlib import Path

import pytest
import reference

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("plugins/*/kvhub_*", "adapters/*/kvhub_*", "kernels/kvhub_*")
PUBLIC = [path for _, _, paths in reference.pages() for path in paths]
"""Modules and names of modules."""


@cache
def body(path: str) -> list[ast.stmt]:
    file = reference.file_of(path)
    assert file is not None, f"there is no module {path}"
    return ast.parse(file.read_text("utf-8")).body


def split(path: str) -> tuple[str, str]:
    """(module, name in it or "")."""
    module, _, name = path.rpartition(".")
    return (path, "") if reference.file_of(path) is not None else (module, name)


@cache
def definitions(module: str) -> dict[str, tuple[ast.stmt, bool]]:
    """Name -> (what defines it, whether it says what it is)."""
    found: dict[str, tuple[ast.stmt, bool]] = {}
    statements = body(module)
    for each, after in zip(statements, [*statements[1:], None], strict=True):
        if isinstance(each, ast.ClassDef | ast.FunctionDef):
            found[each.name] = each, ast.get_docstring(each) is not None
        elif isinstance(each, ast.Assign | ast.AnnAssign):
            target = each.targets[0] if isinstance(each, ast.Assign) else each.target
            told = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            if isinstance(target, ast.Name):
                found[target.id] = each, told
    return found


def test_every_package_is_in_the_reference() -> None:
    typed = [file.parent for where in PACKAGES for file in ROOT.glob(f"{where}/py.typed")]
    assert {each.name: str(each.parent.relative_to(ROOT)) for each in typed} == reference.PACKAGES


HOOKS = {name for name in definitions("kvhub.hookspecs") if name.startswith("kvhub_")}


def exported() -> list[str]:
    return [each for path in PUBLIC for each in reference.exports(path) or ()]


def shown(path: str) -> list[str]:
    """The names that the reference shows for an entry."""
    if split(path)[1]:
        return [path]
    listed = reference.exports(path)
    return listed if listed is not None else [f"{path}.{name}" for name in definitions(path) if name[0] != "_"]


@pytest.mark.parametrize("path", sorted({*exported(), *(path for path in PUBLIC if split(path)[1])}))
def test_every_exported_name_says_what_it_is(path: str) -> None:
    module, name = split(path)
    if not name:
        assert isinstance(body(module)[0], ast.Expr), f"{path} has no docstring"
    elif name not in HOOKS:  # those have their specification's
        assert name in definitions(module), f"{path} is exported and not defined"
        assert definitions(module)[name][1], f"{path} has no docstring"


@cache
def bases() -> dict[str, ast.ClassDef]:
    """Classes by name, of everything that is public or lies under it."""
    files = [*ROOT.glob("kvhub/**/*.py"), *(file for where in PACKAGES for file in ROOT.glob(f"{where}/**/*.py"))]
    trees = (ast.parse(file.read_text("utf-8")) for file in files)
    return {each.name: each for tree in trees for each in tree.body if isinstance(each, ast.ClassDef)}


IN_PLACE_OF = {"FakeEngine": ["EngineDriver"], "FakeSource": ["Source"]}
"""Classes that are a protocol's without saying so as a base; its methods are described there."""


def inherited(cls: ast.ClassDef, method: str) -> bool:
    """Whether a base class says what the method does, or is not ours."""
    names = [ast.unparse(each).partition("[")[0].rpartition(".")[2] for each in cls.bases]
    for base in [*names, *IN_PLACE_OF.get(cls.name, ())]:
        if base in ("ABC", "Protocol", "Exception"):
            continue
        above = bases().get(base)
        if above is None or inherited(above, method):
            return True
        mine = [each for each in above.body if isinstance(each, ast.FunctionDef) and each.name == method]
        if any(map(ast.get_docstring, mine)):
            return True
    return False


@pytest.mark.parametrize("path", PUBLIC)
def test_every_public_class_function_and_method_says_what_it_does(path: str) -> None:
    silent = []
    for each in shown(path):
        module, name = split(each)
        node, told = definitions(module).get(name, (None, True))
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not told and name not in HOOKS:
            silent.append(each)
        for inner in node.body if isinstance(node, ast.ClassDef) else ():
            public = isinstance(inner, ast.FunctionDef) and not inner.name.startswith("_")
            if public and inner.name not in HOOKS and not ast.get_docstring(inner) and not inherited(node, inner.name):
                silent.append(f"{each}.{inner.name}")
    assert silent == []


def imported() -> set[str]:
    """What plugins, adapters, kernels and new packages take from the core, as `module.name`."""
    found = set()
    for where in (*PACKAGES, "kvhub/scaffold/templates"):
        for file in [*ROOT.glob(f"{where}/**/*.py"), *ROOT.glob(f"{where}/**/*.py.in")]:
            text = re.sub(r"\$\{?\w+\}?", "x", file.read_text("utf-8"))
            for each in ast.walk(ast.parse(text)):
                if isinstance(each, ast.ImportFrom) and (each.module or "").partition(".")[0] == "kvhub":
                    found |= {f"{each.module}.{alias.name}" for alias in each.names}
    return found


def test_what_other_packages_use_of_the_core_is_in_the_reference() -> None:
    """They are released apart from it: what they use may not change under them."""
    told = {name for path in PUBLIC for name in shown(path)} | {*PUBLIC}
    told |= {f"{path}.{name.rpartition('.')[2]}" for path in PUBLIC for name in reference.exports(path) or ()}
    modules = {split(path)[0] for path in PUBLIC}
    assert sorted(name for name in imported() if name not in told | modules) == []


@pytest.mark.slow
def test_the_site_is_built_without_a_warning_and_has_every_exported_name() -> None:
    done = subprocess.run(["make", "docs"], cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    packed = (ROOT / "build" / "docs" / "objects.inv").read_bytes().split(b"\n", 4)[4]
    names = {line.split(" ")[0] for line in zlib.decompress(packed).decode().splitlines()}
    assert sorted(name for path in PUBLIC for name in shown(path) if name not in names) == []
