"""Follows docs/write-a-plugin.md to the letter, in a folder of its own: every block is compared or run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

from kvhub.transport import Transport

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "write-a-plugin.md"
EXAMPLE = ROOT / "plugins" / "kvhub-example"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ROOT_IN_PAGE = "/tmp/shelf"


def blocks(language):
    return [match[2] for match in BLOCK.finditer(PAGE.read_text()) if match[1] == language]


def of_the_author(text):
    """The page shows the living example; the author's package has other names in it."""
    return text.replace("Example", "Shelf").replace("example", "shelf")


def test_every_block_is_used():
    found = [match[1] for match in BLOCK.finditer(PAGE.read_text())]
    assert sorted(found) == ["python"] * 6 + ["sh"] * 7 + ["toml"] + ["yaml"] * 2


def test_the_page_shows_the_living_example():
    store, contract, _, _, _, wrapped = blocks("python")
    assert store == (EXAMPLE / "kvhub_example" / "store.py").read_text()
    tests = (EXAMPLE / "tests" / "test_example_store.py").read_text()
    assert contract in tests and wrapped in tests
    assert blocks("toml") == [(EXAMPLE / "pyproject.toml").read_text()]


def test_the_store_is_as_short_as_promised():
    store = blocks("python")[0]
    body = store[store.index("class ExampleStore") :]
    assert sum(1 for line in body.splitlines() if line.strip()) <= 56


pytestmark = pytest.mark.timeout(600)  # packages are built and installed


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Every shell block of the page, run in order; pip installs into a folder instead of this environment."""
    folder = tmp_path_factory.mktemp("author")
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
    paths = os.pathsep.join([f"{folder}/site", *(path for path in os.environ.get("PYTHONPATH", "").split(":") if path)])
    environment = os.environ | pip | {"PATH": f"{tools}:{os.environ['PATH']}", "PYTHONPATH": paths}
    environment |= {
        "PIP_UPGRADE": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTEST_PLUGINS": "kvhub_pytest",
    }

    def shell(commands, where):
        done = subprocess.run(
            ["sh", "-e", "-c", commands], cwd=where, env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, f"{commands}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        return done.stdout

    begin, *rest = blocks("sh")
    found = {begin.strip(): shell(begin, folder)}
    package = folder / "kvhub-shelf"
    options, pool = blocks("yaml")
    assert (package / "example.yaml").read_text() == pool
    for name, text in {"options.yaml": options, "example.yaml": pool}.items():
        (package / name).write_text(text.replace(ROOT_IN_PAGE, str(folder / "kv")))
    test = package / "tests" / "test_shelf_store.py"
    test.write_text(test.read_text() + "\n\n" + of_the_author(blocks("python")[2]))
    for commands in rest:
        if "kvhub doctor" in commands:
            add_methods(package / "kvhub_shelf" / "store.py")
        found[commands.strip()] = shell(commands, package)
    return found


def add_methods(store):
    """What the page says to add to the class, and to the top of its file."""
    told = re.search(r"and `(import stat)` and `(from kvhub.findings import [^`]+)` at the\ntop", PAGE.read_text())
    text = store.read_text().replace("import os\n", f"import os\n{told[1]}\n", 1)
    text = text.replace("from kvhub import KvhubError\n", f"from kvhub import KvhubError\n{told[2]}\n", 1)
    store.write_text(text + of_the_author(blocks("python")[3].partition("# what is above\n")[2]))


def test_the_plugin_is_found(answers):
    assert "shelf" in answers["pip install .\nkvhub plugins"]


def test_the_contract_passes(answers):
    last = answers["pytest -q tests"].splitlines()[-1]
    assert re.search(r"\d+ passed", last) and "failed" not in last, last
    assert "TestShelfOnTape leaves out" in answers["pytest -q tests"]


def test_the_contract_passes_without_a_test_file(answers):
    shown = answers["pytest -q --kvhub-use shelf --kvhub-options options.yaml --kvhub-level works"]
    assert re.search(r"^store shelf: \d+ laws, level works$", shown, re.MULTILINE)


def test_the_configuration_is_accepted_and_the_medium_verified(answers):
    assert "shelf" in answers["kvhub check example.yaml --role both"]
    assert answers["kvhub verify example.yaml --member pool --level works"].splitlines()[-1] == "verified"


DOCTOR = """pip install .
kvhub doctor example.yaml --role both || echo "not all passes"
kvhub bench example.yaml --role both --seconds 2s"""


def test_the_doctor_tells_what_only_the_plugin_knows(answers):
    shown = answers[DOCTOR]
    pool = shown[shown.index("stores.pool:") :]
    assert re.search(r"^  (pass|warn)  file system: \S+/kv is on ", pool, re.MULTILINE), "this is by `directory`"
    assert re.search(r"^  (pass|warn|fail)  free space: ", pool, re.MULTILINE)
    found = re.search(r"^  (pass|warn)  access: (.+)$", pool, re.MULTILINE)
    assert found, pool
    assert ("every user" in found[2]) == (found[1] == "warn")
    assert "  pass  round trip: " in pool


def test_bench_holds_the_store_against_plain_files(answers):
    shown = answers[DOCTOR]
    assert re.search(r"^.*\bload\b.*plain files.*$", shown, re.MULTILINE), shown


def test_a_rehearsal_has_free_ports():
    @attrs.frozen
    class Options:
        listen: str
        secret_env: str

    space = {"attrs": attrs, "Any": object}
    exec(blocks("python")[4], space)
    wire = type("Wire", (Transport,), {"rehearsal": space["rehearsal"]})
    serving, pulling = wire.rehearsal(Options("10.0.0.1:7700", "SECRET"))
    assert serving == pulling == Options("127.0.0.1:0", "SECRET")
    assert Transport.rehearsal(serving) == (serving, serving), "the default, as the page says"
