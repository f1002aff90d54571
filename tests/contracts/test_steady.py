"""A correct member passes the contract every time: a law that fails now and then is believed by nobody."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import mutants
import pytest

RUNS = 20


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["store", "transport"])
def test_a_correct_member_passes_twenty_times(kind: str, tmp_path: Path) -> None:
    (right,) = [mutant for mutant in mutants.mutants() if mutant.module == f"right_{kind}"]
    for number in range(RUNS):
        folder = tmp_path / str(number)
        folder.mkdir()
        failed = mutants.run(folder, [right], select=False, stop=False)
        assert failed == {right.module: []}, f"run {number + 1} of {RUNS}"


@pytest.mark.slow
def test_a_correct_engine_passes_twenty_times(tmp_path: Path) -> None:
    test = Path(__file__).parents[1] / "engine" / "test_engine_contract.py"
    which = ["-k", "TestFakeEngine and not Over and not Sizes"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(test), *which]
    for number in range(RUNS):
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, f"run {number + 1} of {RUNS}: {done.stdout[-3000:]}"
