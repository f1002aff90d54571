"""`make bench-wire` still runs: one round of one size on one medium prints its table and judges it."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROWS = ("kvhub-ucx", "kvhub-ucx default", "perftest put", "memcpy cold")


@pytest.mark.skipif(not importlib.util.find_spec("libucx"), reason="no libucx wheel, so no ucx_perftest")
@pytest.mark.skipif(not {0, 1} <= os.sched_getaffinity(0), reason="needs cores 0 and 1")
def test_a_table_and_goals_come_out() -> None:
    command = [sys.executable, str(ROOT / "tests/benchmarks/wire.py"), "--quick", "--rounds", "1"]
    run = subprocess.run(
        [*command, "--media", "tcp", "--sizes", "1MiB", "--only", *ROWS],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert run.returncode == 0, f"{run.stdout}\n{run.stderr}"
    for row in ROWS:
        found = re.search(rf"^  {row} +(\d+\.\d+)$", run.stdout, re.MULTILINE)
        assert found, f"no figure of {row} in:\n{run.stdout}"
        assert float(found[1]) > 0
    verdicts = re.findall(r"^  tcp, .* goal [<>]= [\d.]+ +(met|SHORT)", run.stdout, re.MULTILINE)
    assert len(verdicts) == 3, run.stdout


def test_the_goals_can_be_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worst size speaks for all, within each round against the better competitor; below the floor is told."""
    monkeypatch.syspath_prepend(str(ROOT / "tests/benchmarks"))
    from wire_rows.goals import NIXL, OURS, PUT, goals

    figures = {
        ("tcp", OURS, "1MiB"): [2.0, 2.0, 2.0],
        ("tcp", PUT, "1MiB"): [2.0, 2.0, 2.0],
        ("tcp", OURS, "4MiB"): [1.0, 1.0, 1.0],
        ("tcp", PUT, "4MiB"): [2.0, 2.0, 4.0],
        ("tcp", NIXL[0], "4MiB"): [0.5, 2.0, 0.5],
        ("tcp", NIXL[1], "4MiB"): [2.0, 0.5, 0.5],
    }
    found = goals(figures, {"tcp": 0.02})
    assert all(goal.name.startswith("tcp") for goal in found), "no other medium was measured"
    put, nixl, idle = (goal for goal in found if goal.judged)
    assert nixl.rounds == (0.5, 0.5, 2.0) and "NIXL" in nixl.name
    assert "idle" in idle.name
    assert [goal.above_floor for goal in found if not goal.judged] == [True] * 5
    assert all("not judged" in goal.line() for goal in found if not goal.judged)
    assert "4MiB" in put.name and put.rounds == (0.5, 0.5, 0.25)
    assert not put.met and not put.above_floor and put.doubtful
    assert not idle.met and idle.above_floor
    assert "SHORT" in put.line() and "BELOW THE FLOOR" in put.line() and "DOUBT 0.25-0.50" in put.line()
