"""Somebody who has never seen the code: `kvhub new-plugin`, pip, tests, a file; with nothing but the core's wheel."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from building import build, packages

pytestmark = pytest.mark.timeout(600)  # packages are built and installed
MOST_SECONDS = 60.0
"""Of machine time after the environment exists."""


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clean environment with the core, its testing extra and setuptools; nothing of this checkout is on its path."""
    folder = tmp_path_factory.mktemp("stranger")
    (wheel,) = build(packages()[0], folder / "wheels", "wheel")
    venv.create(folder / "venv", with_pip=False)
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "venv" / "bin" / "python"), "--no-input", "install"]
    wanted = ["pip", "setuptools>=69", f"{wheel}[testing]"]
    done = subprocess.run([*pip, "-q", *wanted], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return folder


def run(stranger: Path, command: str, folder: Path) -> str:
    """A line as the stranger types it; what it printed."""
    environment = {
        name: text for name, text in os.environ.items() if not name.startswith(("PYTHON", "KVHUB", "PYTEST"))
    }
    environment |= {"PATH": f"{stranger}/venv/bin:{os.environ['PATH']}", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(
        ["sh", "-ec", command], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def spent() -> float:
    """Processor time of children that have ended, in seconds: a busy machine does not make it longer."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_a_stranger_writes_installs_proves_and_uses_a_store(stranger: Path, tmp_path: Path) -> None:
    before = spent()
    assert "kvhub-shelf" in run(stranger, "kvhub new-plugin store shelf", tmp_path)
    package = tmp_path / "kvhub-shelf"
    run(stranger, "pip install -q --no-build-isolation --no-deps --no-index .", package)
    assert "shelf" in run(stranger, "kvhub plugins", tmp_path)
    last = run(stranger, "pytest -q", package).splitlines()[-1]
    assert " passed" in last and "failed" not in last and "error" not in last, last
    shown = run(stranger, "kvhub check example.yaml --role both", package)
    assert "both: retrieves from host -> pool; stores to host -> pool" in shown
    (package / "example.yaml").write_text(
        (package / "example.yaml").read_text().replace("/tmp/shelf", f"{tmp_path}/kv")
    )
    verified = run(stranger, "kvhub verify example.yaml --member pool --level works", package)
    assert verified.splitlines()[-1] == "verified"
    assert spent() - before < MOST_SECONDS


def test_a_run_of_others_is_not_disturbed_by_the_installed_plugin(stranger: Path, tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text("import sys\ndef test():\n    assert 'kvhub' not in sys.modules\n")
    shown = run(stranger, "pytest -q -W error -p no:cacheprovider test_other.py && pytest --help", tmp_path)
    assert "1 passed" in shown and "--kvhub-use=NAME" in shown
