"""`kvhub new-plugin`: the templates are the living example, and nothing is ever half written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from kvhub.cli import main
from kvhub.errors import KvhubError
from kvhub.installed import OURS
from kvhub.scaffold import command
from kvhub.scaffold.files import KINDS, render
from kvhub.scaffold.names import Names, check

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "plugins" / "kvhub-example"
LIVING = [
    ("store", "kvhub_example/store.py"),
    ("store", "tests/test_example_store.py"),
    ("codec", "kvhub_example/codec.py"),
    ("codec", "tests/test_example_codec.py"),
]


@pytest.mark.parametrize(("kind", "path"), LIVING)
def test_templates_are_the_living_example(kind: str, path: str) -> None:
    assert render(kind, Names("example"))[path] == (EXAMPLE / path).read_text()


@pytest.mark.parametrize("kind", KINDS)
def test_a_package_is_complete(kind: str, tmp_path: Path) -> None:
    folder, files = command.create(kind, "my-thing", tmp_path)
    assert folder == tmp_path / "kvhub-my-thing"
    assert files == sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    assert {"README.md", "CHANGELOG.md", "LICENSE", ".github/workflows/test.yml", "example.yaml"} <= set(files)
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert project["entry-points"] == {"kvhub": {"my-thing": "kvhub_my_thing"}}
    assert (folder / "kvhub_my_thing" / "py.typed").exists()
    assert any(path.startswith("tests/test_my_thing") for path in files)
    for path in files:
        text = (folder / path).read_text()
        assert "xample" not in text.replace("example.yaml", "").replace("kvhub_example", ""), path
        if path.endswith(".py"):
            compile(text, path, "exec")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package of each kind, side by side."""
    folder = tmp_path_factory.mktemp("made")
    for kind in KINDS:
        command.create(kind, f"my-{kind}", folder)
    return folder


def run(*tool: str, folder: Path) -> None:
    paths = os.pathsep.join([str(folder), *(path for path in sys.path if path)])
    done = subprocess.run(
        [sys.executable, "-m", *tool],
        cwd=folder, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    if f"No module named {tool[0]}" in done.stderr:
        pytest.skip(f"needs {tool[0]}")
    assert done.returncode == 0, done.stdout + done.stderr


def test_made_code_is_tidy(made: Path) -> None:
    run("ruff", "check", "--isolated", "--select", "E,F,B,UP", "--line-length", "120", ".", folder=made)
    run("ruff", "format", "--check", "--isolated", "--line-length", "120", ".", folder=made)


@pytest.mark.parametrize(
    ("kind", "most"),
    [
        pytest.param("codec", "", id="codec"),
        pytest.param("transport", "Lanes", id="transport"),
        pytest.param("engine", "described or A01 or A09 or A10 or layout", id="engine"),
        pytest.param("transport", "", id="transport, all", marks=pytest.mark.slow),
        pytest.param("engine", "", id="engine, all", marks=pytest.mark.slow),
    ],
)
def test_the_made_tests_pass_at_once(kind: str, most: str, made: Path) -> None:
    """That of a store is made, installed and run by the stranger."""
    run("pytest", "-q", "-p", "no:cacheprovider", "-k", most, "--rootdir", ".", folder=made / f"kvhub-my-{kind}")


@pytest.mark.slow
def test_made_code_is_typed(made: Path) -> None:
    packages = [str(path.parent) for path in sorted(made.glob("*/kvhub_*/__init__.py"))]
    run("mypy", "--strict", "--no-incremental", *packages, folder=made)


@pytest.mark.parametrize("name", [*sorted(OURS), "host", "kernels", "front"])
def test_names_of_known_plugins_are_refused(name: str) -> None:
    with pytest.raises(KvhubError, match=rf"'{name}' is (a package of kvhub's own|taken by plugin '{name}')"):
        check(name)


@pytest.mark.parametrize(
    "name", ["", "Shelf", "my_shelf", "9lives", "-x", "x-", "a--b", "../up", "a/b", "a b", "ü", "x" * 33, "a\n"]
)
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(KvhubError, match="cannot be a plugin's name: write at most 32 of a-z"):
        check(name)


def test_the_prefix_is_not_said_twice() -> None:
    with pytest.raises(KvhubError, match="'kvhub-shelf': leave out 'kvhub', it is added by itself; say 'shelf'"):
        check("kvhub-shelf")


@pytest.mark.parametrize("kind", ["a folder", "a file", "a dangling link"])
def test_what_exists_stays_as_it_is(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "kvhub-shelf"
    if kind == "a folder":
        target.mkdir()
        (target / "mine").write_text("mine")
    elif kind == "a file":
        target.write_text("mine")
    else:
        target.symlink_to("nowhere")
    before = sorted(tmp_path.rglob("*"))
    assert main(["new-plugin", "store", "shelf", "--directory", str(tmp_path)]) == 1
    assert f"{target} exists; choose another name" in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


def test_a_missing_directory_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new-plugin", "store", "shelf", "--directory", str(tmp_path / "no")]) == 1
    assert "there is no such directory; create it first" in capsys.readouterr().err


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_what_fails_half_way_leaves_nothing(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Path.write_text
    written: list[Path] = []

    def breaks(self: Path, text: str, encoding: str | None = None) -> int:
        if len(written) == 4:
            raise error
        written.append(self)
        return whole(self, text, encoding)

    monkeypatch.setattr(Path, "write_text", breaks)
    with pytest.raises((KvhubError, KeyboardInterrupt)):
        command.create("store", "shelf", tmp_path)
    assert len(written) == 4 and list(tmp_path.iterdir()) == []


def test_the_command_tells_what_is_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new-plugin", "codec", "small", "--directory", str(tmp_path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["folder"] == str(tmp_path / "kvhub-small") and "kvhub_small/codec.py" in told["files"]
    assert main(["new-plugin", "store", "shelf", "--directory", str(tmp_path)]) == 0
    assert "kvhub check example.yaml" in capsys.readouterr().out


def test_unknown_kinds_are_a_wrong_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["new-plugin", "shop", "shelf"])
    assert "invalid choice: 'shop'" in capsys.readouterr().err


def test_codes_of_codecs_are_those_of_other_projects() -> None:
    codes = {Names(name).code for name in ("example", "small", "brotli", "lz4", "snappy")}
    assert len(codes) > 1 and all(128 <= code <= 255 for code in codes)
