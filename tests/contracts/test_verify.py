"""`kvhub verify`: on a medium with real chunks nothing changes, whatever ends the run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from installed_members import STORE, environment, install, run

from kvhub.testing import Driver, make_context, make_key, make_payload

POOL = "kvhub: 1\nstores:\n  pool: {{use: {use}, root: {root}}}\nroles:\n  both: {{store: [pool], retrieve: [pool]}}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    install(tmp_path, "tree", STORE)
    (tmp_path / "tree.yaml").write_text(POOL.format(use="tree", root=tmp_path / "chunks"))
    (tmp_path / "pool.yaml").write_text(POOL.format(use="nfs", root=tmp_path / "pool"))
    (tmp_path / "pool").mkdir()
    return tmp_path


def files(root: Path) -> dict[str, bytes]:
    """What is kept there; the store's own scratch folders aside."""
    return {name: (root / name).read_bytes() for name in names(root)}


def names(root: Path) -> set[str]:
    """The same while files come and go."""
    found = (Path(top, name) for top, _, leaves in os.walk(root) for name in leaves)
    return {str(path.relative_to(root)) for path in found if ".kvhub" not in path.parts}


@pytest.fixture
def pool(folder: Path) -> dict[str, bytes]:
    """Real chunks of a model in the pool."""
    nfs = pytest.importorskip("kvhub_nfs")
    driver = Driver(nfs.DirectoryStore(nfs.DirectoryStore.Config(root=folder / "pool"), make_context("pool")))
    driver.attach()
    driver.keep({make_key(n): make_payload(n) for n in range(5)})
    driver.close()
    return files(folder / "pool")


def test_real_chunks_stay_and_scratch_is_removed(folder: Path, pool: dict[str, bytes]) -> None:
    done = run("kvhub.cli", "verify", "pool.yaml", "--level", "works", folder=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "verified" and "stores.pool: " in done.stdout
    assert files(folder / "pool") == pool
    assert not (folder / "pool/.kvhub").exists(), "nor do empty directories of housekeeping stay"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_cleans_up(number: int, folder: Path, pool: dict[str, bytes]) -> None:
    command = [sys.executable, "-m", "kvhub.cli", "verify", "pool.yaml", "--json"]
    # A shell starts what it puts into the background with SIGINT ignored, and the tests may be such a job.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(
            command, cwd=folder, env=environment(folder), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    finally:
        signal.signal(signal.SIGINT, before)
    with process:
        until = time.monotonic() + 60
        while not names(folder / "pool") - pool.keys():
            assert time.monotonic() < until and process.poll() is None, "no law saved anything"
            time.sleep(0.005)
        os.kill(process.pid, number)
        out, _ = process.communicate(timeout=60)
    told = json.loads(out)
    assert process.returncode == 1 and told["problem"] == "interrupted" and not told["ok"] and told["left"] == []
    assert files(folder / "pool") == pool


def test_a_wrong_store_is_told_and_its_scratch_removed(folder: Path) -> None:
    install(folder, "cut", STORE.replace("header + payload)", "header + payload[:-1])"))
    (folder / "cut.yaml").write_text(POOL.format(use="cut", root=folder / "chunks"))
    done = run("kvhub.cli", "verify", "cut.yaml", "--level", "works", folder=folder)
    assert done.returncode == 1
    assert "failed: round_trip: " in done.stdout and "NOT verified" in done.stdout
    assert "round_trip protects: A chunk comes back byte for byte, or the engine speaks nonsense." in done.stdout
    assert files(folder / "chunks") == {}


def test_what_could_not_be_removed_is_said(folder: Path) -> None:
    stuck = STORE.replace("(self.folder / name).unlink(missing_ok=True)", "raise OSError(5, 'Input/output error')")
    install(folder, "stuck", stuck)
    (folder / "stuck.yaml").write_text(POOL.format(use="stuck", root=folder / "chunks"))
    code = (
        "import sys; from kvhub.cli import main; sys.exit(main(['verify', 'stuck.yaml', '--level', 'works', '--json']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=120
    )
    told = json.loads(done.stdout)
    assert done.returncode == 1 and not told["ok"]
    assert told["left"] and all("chunks could not be removed" in line for line in told["left"])


def test_a_store_that_cannot_remove_is_refused(folder: Path) -> None:
    install(folder, "keeps", STORE.replace("def drop(", "def drip("))
    (folder / "keeps.yaml").write_text(POOL.format(use="keeps", root=folder / "chunks"))
    done = run("kvhub.cli", "verify", "keeps.yaml", folder=folder)
    assert done.returncode == 1 and files(folder / "chunks") == {}
    assert "stores.pool: the store keeps what it is given and cannot remove it" in done.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--member", "pol"], "stores: has no 'pol'; did you mean 'pool'?"),
        ([], "stores: the file has 2 beside the host tier; name one with --member: pool, other"),
    ],
)
def test_the_member_has_to_be_known(options: list[str], said: str, folder: Path) -> None:
    text = (folder / "tree.yaml").read_text()
    line = next(line for line in text.splitlines() if "use: tree" in line)
    (folder / "tree.yaml").write_text(text.replace(line, f"{line}\n{line.replace('pool', 'other', 1)}"))
    done = run("kvhub.cli", "verify", "tree.yaml", *options, folder=folder)
    assert done.returncode == 1 and said in done.stderr


def test_a_store_that_cannot_start_says_its_own_sentence(folder: Path) -> None:
    (folder / "chunks").write_text("in the way")
    done = run("kvhub.cli", "verify", "tree.yaml", folder=folder)
    assert done.returncode == 1 and "the store cannot start: NotADirectoryError" in done.stderr


def test_without_pytest_the_command_names_what_to_install(folder: Path) -> None:
    code = (
        "import sys; sys.modules['pytest'] = None\nfrom kvhub.cli import main\nsys.exit(main(['verify', 'tree.yaml']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1 and "pip install 'kvhub[testing]'" in done.stderr
