"""Follows docs/write-a-plugin.md to the letter, in a folder of its own: every block is used or run."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "write-a-plugin.md"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ROOT_IN_PAGE = "/tmp/shelf"


def blocks():
    return [(match[1], match[2]) for match in BLOCK.finditer(PAGE.read_text())]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The author's folder, with the page's files in it."""
    folder = tmp_path_factory.mktemp("kvhub-shelf")
    python = [text for language, text in blocks() if language == "python"]
    (toml,) = [text for language, text in blocks() if language == "toml"]
    (yaml,) = [text for language, text in blocks() if language == "yaml"]
    store, contract, excused, wrapped = python
    for name, text in {
        "kvhub_shelf/__init__.py": store,
        "pyproject.toml": toml,
        "tests/test_shelf.py": f"{contract}\n\n{excused}",
        "tests/test_shelf_full.py": wrapped,
        "shelf.yaml": yaml.replace(ROOT_IN_PAGE, str(folder / "shelf")),
    }.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return folder


@pytest.fixture(scope="module")
def shell(folder):
    """Runs a block's commands as they stand; pip puts what it installs into the folder instead of this environment."""
    tools = folder / "bin"
    tools.mkdir()
    for name, module in {"pip": "pip", "pytest": "pytest", "kvhub": "kvhub.cli"}.items():
        path = tools / name
        code = "import sys; from kvhub.cli import main; sys.exit(main())" if name == "kvhub" else ""
        run = f"-c '{code}'" if code else f"-m {module}"
        path.write_text(f'#!/bin/sh\nexec "{sys.executable}" {run} "$@"\n')
        path.chmod(0o755)
    # What the page's `pip install` would fetch is in this environment already; for this option pip reads 0 as "off".
    pip = {"PIP_TARGET": f"{folder}/site", "PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_NO_INDEX": "1"}
    environment = os.environ | pip | {"PATH": f"{tools}:{os.environ['PATH']}", "PYTHONPATH": f"{folder}/site"}
    environment |= {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONDONTWRITEBYTECODE": "1"}

    def shell(commands):
        done = subprocess.run(
            ["sh", "-e", "-c", commands], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, f"{commands}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        return done.stdout

    return shell


@pytest.fixture(scope="module")
def answers(shell):
    """Every shell block of the page, run in order."""
    return {text.strip(): shell(text) for language, text in blocks() if language == "sh"}


def test_every_block_is_used():
    assert sorted(language for language, _ in blocks()) == ["python"] * 4 + ["sh"] * 3 + ["toml", "yaml"]


def test_the_store_is_as_short_as_promised():
    _, store = next(block for block in blocks() if block[0] == "python")
    body = store[store.index("class ShelfStore") : store.index("@hookimpl")]
    assert sum(1 for line in body.splitlines() if line.strip()) <= 50


def test_the_plugin_is_found(answers):
    assert "shelf" in answers["pip install .\nkvhub plugins"]


def test_the_contract_passes(answers):
    last = answers["pytest -q tests"].splitlines()[-1]
    assert re.search(r"\d+ passed", last) and "failed" not in last, last
    assert "TestShelfOnTape leaves out" in answers["pytest -q tests"]


def test_the_configuration_is_accepted(answers):
    assert "shelf" in answers["kvhub check shelf.yaml --role both"]


def test_a_shelf_that_cannot_be_written_stops_the_start(folder, answers, monkeypatch):
    monkeypatch.syspath_prepend(str(folder / "site"))
    import kvhub_shelf

    from kvhub import KvhubError
    from kvhub.testing import make_context, make_region

    (folder / "file").write_text("in the way")
    store = kvhub_shelf.ShelfStore(kvhub_shelf.ShelfConfig(root=folder / "file"), make_context("shelf"))
    before = time.monotonic()
    with pytest.raises(KvhubError, match=r"shelf: cannot write to .*file.* \(.*\); create the directory"):
        store.attach(make_region(2), lambda: None)
    store.close()
    assert time.monotonic() - before < 5.0
