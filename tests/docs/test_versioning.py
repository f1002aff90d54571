"""docs/versioning.md: its numbers are those of the code, and each rule that code enforces is enforced."""

from __future__ import annotations

import ast
import inspect
import re
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import kvhub
from kvhub import chunkfile, config, keys
from kvhub.errors import ConfigError, PluginError
from kvhub.installed import check_range, installed
from kvhub.plugins import Registry
from kvhub.pool import tally
from kvhub.scaffold.files import render
from kvhub.scaffold.names import check
from kvhub.types import Batch, Capabilities, Completion, MemberContext
from kvhub.wire import frames

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "versioning.md").read_text()
ROWS = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|[^|]+\|[^|]*\|$", PAGE, re.MULTILINE))
FILES = [ROOT / "pyproject.toml", ROOT / "kernels/pyproject.toml", *ROOT.glob("plugins/*/pyproject.toml")]
FILES += ROOT.glob("adapters/*/pyproject.toml")
PROJECTS = {file.parent: tomllib.loads(file.read_text())["project"] for file in sorted(FILES)}
EACH = pytest.mark.parametrize("folder", PROJECTS, ids=lambda folder: PROJECTS[folder]["name"])
CORE = PROJECTS[ROOT]


def assigned(file: Path, name: str) -> Any:
    """A constant of a module that is not imported, or None."""
    for each in ast.parse(file.read_text()).body:
        if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == name:
            return ast.literal_eval(each.value)
    return None


def test_the_numbers_of_the_page_are_those_of_the_code() -> None:
    assert ROWS["the core, `kvhub`"] == kvhub.__version__ == CORE["version"]
    assert ROWS["the file, `kvhub: 1`"] == f"{config.VERSION}"
    assert ROWS["the wire protocol"] == f"{frames.VERSION}"
    assert ROWS["the chunk format"] == f"{chunkfile.VERSION}"
    assert ROWS["what keys are made of"] == f"{keys.KEY_VERSION}"
    assert ROWS["the notes of `kvhub pool gc` on a pool"] == f"{tally.VERSION}"
    for row, package in {"vLLM": "kvhub_vllm", "SGLang": "kvhub_sglang"}.items():
        file = ROOT / "adapters" / package.replace("_", "-") / package / "__init__.py"
        assert ROWS[f"engines: {row}"] == assigned(file, "VERSIONS")


@EACH
def test_a_package_has_one_version_everywhere(folder: Path) -> None:
    project = PROJECTS[folder]
    module = folder / project["name"].replace("-", "_") / "__init__.py"
    assert assigned(module, "__version__") in (None, project["version"])
    newest = re.search(r"^## (\S+)", (folder / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None and newest[1] == project["version"]
    if folder != ROOT:
        assert project["version"] == ROWS["each plugin, adapter, and the kernels"]
    assert project["requires-python"] == ROWS["Python"]


@EACH
def test_a_package_declares_a_range_of_the_core_that_ends_at_the_next_break(folder: Path) -> None:
    ours = [
        each for each in map(Requirement, PROJECTS[folder]["dependencies"]) if each.name in ("kvhub", "kvhub-kernels")
    ]
    assert bool(ours) == (folder != ROOT)
    (shown,) = re.findall(r'^dependencies = \["kvhub(.+)"\]$', PAGE, re.MULTILINE)
    assert [str(each.specifier) for each in ours] == [str(SpecifierSet(shown))] * len(ours)
    major, minor = CORE["version"].split(".")[:2]
    assert major == "0" and SpecifierSet(shown) == SpecifierSet(f">=0.{minor},<0.{int(minor) + 1}")


def test_a_new_plugin_declares_that_range() -> None:
    (shown,) = re.findall(r'^dependencies = \[("kvhub.+")\]$', PAGE, re.MULTILINE)
    assert shown in render("store", check("shelf"))["pyproject.toml"]


@pytest.mark.parametrize(("version", "fits"), [("0.1.0", True), ("0.1.9", True), ("0.2.0", False), ("0.1.1rc1", True)])
def test_a_range_is_checked_before_the_import(version: str, fits: bool) -> None:
    host = next(plugin for plugin in installed() if plugin.name == "host")
    plugin = attrs.evolve(host, name="shelf", distribution="kvhub-shelf", requires=">=0.1,<0.2")
    if fits:
        check_range(plugin, version)
    else:
        with pytest.raises(PluginError, match=re.escape(version)):
            check_range(plugin, version)
    with pytest.raises(PluginError, match="states no range"):
        check_range(attrs.evolve(plugin, requires=None), version)


def test_a_hook_of_another_release_is_refused_unless_it_is_optional() -> None:
    def kvhub_of_tomorrow() -> None:
        """No release has it."""

    marked = SimpleNamespace(kvhub_register_stores=kvhub.hookimpl(lambda: ()), kvhub_of_tomorrow=None)
    marked.kvhub_of_tomorrow = kvhub.hookimpl(kvhub_of_tomorrow)
    with pytest.raises(PluginError, match="kvhub_of_tomorrow"):
        Registry().add("shelf", marked)
    marked.kvhub_of_tomorrow = kvhub.hookimpl(optionalhook=True)(kvhub_of_tomorrow)
    assert Registry().add("shelf", marked).name == "shelf"


def test_a_file_of_another_version_or_with_an_unknown_key_is_refused() -> None:
    roles = {"both": {"store": ["host"], "retrieve": ["host"]}}
    good = {"kvhub": config.VERSION, "stores": {"host": {"use": "host", "capacity": "16MiB"}}, "roles": roles}
    config.load(good, Registry())
    for wrong in (good | {"kvhub": config.VERSION + 1}, good | {"of_tomorrow": 1}):
        with pytest.raises(ConfigError):
            config.load(wrong, Registry())


def test_an_older_hub_skips_fields_that_a_message_got_at_its_end() -> None:
    frame = frames.encode(frames.Hello(frames.VERSION, bytes(32)), None)
    longer = (
        bytes([frame[frames.HEAD.size] + 1]) + frame[frames.HEAD.size + 1 :] + b"\x01"
    )  # one more item, the number 1
    assert frames.decode(b"\0" + longer, None) == frames.Hello(frames.VERSION, bytes(32))


REQUIRED = {
    Batch: {"id", "op", "keys"},
    Capabilities: set(),
    Completion: {"id", "outcomes"},
    MemberContext: {"name", "namespace", "namespace_json", "chunk_bytes", "layout", "incarnation"},
}
"""The fields without a default.  One more would be a break (docs/versioning.md); adding it here says so."""


@pytest.mark.parametrize("cls", REQUIRED)
def test_what_crosses_has_no_new_field_without_a_default(cls: Any) -> None:
    assert {field.name for field in attrs.fields(cls) if field.default is attrs.NOTHING} == REQUIRED[cls]
    assert inspect.getdoc(cls)
