"""Every package builds as a wheel and as an sdist, and what is in them is right."""

from __future__ import annotations

import configparser
import email.message
import email.parser
import importlib.util
import re
import tarfile
import zipfile
from pathlib import Path

import pytest
from building import ROOT, Package, build_all, packages
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

PACKAGES = packages()
CORE = PACKAGES[0]
EACH = pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    """Wheel and sdist of each package."""
    if importlib.util.find_spec("setuptools") is None:
        pytest.skip("needs setuptools")
    return build_all(PACKAGES, tmp_path_factory.mktemp("built"), "wheel", "sdist")


def metadata(wheel: Path) -> email.message.Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return email.parser.Parser().parsestr(archive.read(name).decode())


def names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_all_packages_are_known() -> None:
    assert CORE.name == "kvhub" and len(PACKAGES) == len({package.name for package in PACKAGES}) >= 11


@EACH
def test_a_wheel_has_its_module_and_nothing_else(package: Package, made: dict[str, list[Path]]) -> None:
    found = [name for name in names(made[package.name][0]) if ".dist-info/" not in name]
    extra = ["kvhub_pytest.py"] if package is CORE else []
    compiled = [name for name in found if name.endswith(".so")]
    sources = [name for name in found if name.endswith(".c")]
    assert sorted(set(found) - set(compiled) - set(sources)) == sorted([*package.code, *extra])
    assert f"{package.module}/py.typed" in found
    assert not compiled or package.name == "kvhub-kernels"


@EACH
def test_a_wheel_carries_the_licence(package: Package, made: dict[str, list[Path]]) -> None:
    wheel = made[package.name][0]
    (name,) = [name for name in names(wheel) if re.search(r"\.dist-info/(licenses/)?LICENSE$", name)]
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read(name) == (ROOT / "LICENSE").read_bytes()
    told = metadata(wheel)
    assert "Apache-2.0" in (told["License"] or told["License-Expression"])
    assert told["License-File"] == "LICENSE"


@EACH
def test_metadata_say_what_is_needed(package: Package, made: dict[str, list[Path]]) -> None:
    told = metadata(made[package.name][0])
    assert (told["Name"], told["Version"]) == (package.name, package.project["version"])
    assert "3.11" in SpecifierSet(told["Requires-Python"]) and "3.10" not in SpecifierSet(told["Requires-Python"])
    assert len(told["Summary"]) > 20 and len(str(told.get_payload())) > 200, "no description"
    assert "Typing :: Typed" in (told.get_all("Classifier") or [])
    needs = [Requirement(text) for text in told.get_all("Requires-Dist") or []]
    for need in needs:
        assert need.specifier or need.marker, f"{need.name} without a range"
        floors = [each for each in need.specifier if each.operator in (">=", "==", "~=")]
        assert floors or need.name == "kvhub", f"{need} has no lowest version"
    own = [need for need in needs if need.name == "kvhub" and need.marker is None]
    version = CORE.project["version"]
    assert package is CORE or (len(own) == 1 and own[0].specifier.contains(version))


@EACH
def test_entry_points_are_those_of_the_project(package: Package, made: dict[str, list[Path]]) -> None:
    wheel = made[package.name][0]
    wanted = {f"{group} {name}" for group, points in package.project.get("entry-points", {}).items() for name in points}
    wanted |= {f"console_scripts {name}" for name in package.project.get("scripts", {})}
    parser = configparser.ConfigParser(delimiters="=")
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith(".dist-info/entry_points.txt"):
                parser.read_string(archive.read(name).decode())
    found = {f"{group} {name}" for group in parser.sections() for name in parser[group]}
    assert found == wanted
    inside = set(names(wheel))
    for group in parser.sections():
        for target in parser[group].values():
            path = target.partition(":")[0].replace(".", "/")
            assert inside & {f"{path}.py", f"{path}/__init__.py"}, f"{target} is not in the wheel"


@EACH
def test_an_sdist_has_all_that_a_wheel_is_built_from(package: Package, made: dict[str, list[Path]]) -> None:
    with tarfile.open(made[package.name][1]) as archive:
        found = {name.partition("/")[2] for name in archive.getnames()}
        assert all(member.isfile() or member.isdir() for member in archive.getmembers()), "links"
    wanted = {"pyproject.toml", "README.md", "LICENSE", *package.code}
    wanted |= {f"{package.module}/{path.name}" for path in (package.folder / package.module).glob("*.c")}
    assert wanted - found == set()


@EACH
def test_the_changelog_has_the_version(package: Package) -> None:
    text = (package.folder / "CHANGELOG.md").read_text()
    assert re.search(rf"^## {re.escape(package.project['version'])}\b", text, re.MULTILINE)
    code = (package.folder / package.module / "__init__.py").read_text()
    said = re.search(r'^__version__ = "([^"]+)"$', code, re.MULTILINE)
    assert said is None or said[1] == package.project["version"]
