"""The S3 rows of `make bench-stores` still run: one round of one size on the stub prints its rows and judges them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "benchmarks" / "stores_s3.py"


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler, which makes the stub server")
def test_rows_and_verdicts_come_out() -> None:
    run = subprocess.run(
        [sys.executable, str(SCRIPT), "--no-server", "--rounds", "1", "--total", "16", "--sizes", "1", "4"],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert run.returncode in (0, 1), f"{run.stdout}\n{run.stderr}"
    rows = re.findall(
        r"^s3 stub, (PUT|GET) (CPU|rate), 4 MiB +([\d.]+) +goal ([\d.]+) (met|apart|short)", run.stdout, re.MULTILINE
    )
    assert [row[:2] for row in rows] == [("PUT", "CPU"), ("GET", "CPU"), ("PUT", "rate"), ("GET", "rate")], run.stdout
    assert run.stdout.count(" told ") == 4, "below 4 MiB there is no goal"
    for *_, ratio, goal, verdict in rows:
        assert (float(ratio) >= float(goal) - 0.005) == (verdict == "met") or abs(float(ratio) - float(goal)) < 0.01
