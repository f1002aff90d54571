"""The leash: nothing that was started outlives who started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.leash import descendants
from harness.processes import Leashed, NotReady

FAMILY = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
print(os.getpid(), child.pid, flush=True)
{more}
time.sleep(60)
"""


def family(tmp_path: Path, more: str = "") -> tuple[Leashed, list[int]]:
    process = Leashed("family", [sys.executable, "-c", FAMILY.format(more=more)], tmp_path / "log", dict(os.environ))
    process.start()
    process.wait_ready(lambda: process.log.read_text().endswith("\n"), deadline=10)
    return process, [int(pid) for pid in process.log.read_text().split()]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(pids: list[int], within: float = 5.0) -> bool:
    deadline = time.monotonic() + within
    while any(map(alive, pids)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_stop_ends_grandchildren_too(tmp_path: Path) -> None:
    process, pids = family(tmp_path)
    assert process.pids == pids
    process.stop()
    assert gone(pids)
    assert not process.running
    process.stop()


def test_a_command_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    process, pids = family(tmp_path, "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True)")
    time.sleep(0.2)
    process.stop(deadline=0.3)
    assert gone(pids)


def test_kill_and_start_again(tmp_path: Path) -> None:
    process, pids = family(tmp_path)
    process.kill()
    assert gone(pids)
    process.start()
    assert process.running
    process.stop()


def test_an_orphan_does_not_escape(tmp_path: Path) -> None:
    process, pids = family(tmp_path, "time.sleep(0.5); os._exit(0)")
    assert gone(pids)
    process.stop()


def test_when_the_starter_is_killed_everything_dies(tmp_path: Path) -> None:
    starter = f"""
import sys, os, time
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from pathlib import Path
from harness.processes import Leashed
command = [sys.executable, "-c", {FAMILY.format(more="")!r}]
process = Leashed("family", command, Path({str(tmp_path / "log")!r}), dict(os.environ))
process.start()
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", starter]) as parent:
        deadline = time.monotonic() + 10
        while not (tmp_path / "log").exists() or not (tmp_path / "log").read_text().endswith("\n"):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        pids = [int(pid) for pid in (tmp_path / "log").read_text().split()]
        assert set(pids) <= set(descendants(parent.pid))
        parent.send_signal(signal.SIGKILL)
    assert gone(pids)


def test_not_ready_tells_the_logs_end(tmp_path: Path) -> None:
    process = Leashed("dies", [sys.executable, "-c", "print('because'); raise SystemExit(3)"], tmp_path / "log", {})
    process.start()
    with pytest.raises(NotReady, match=r"dies ended before it was ready\n(.|\n)*because"):
        process.wait_ready(lambda: False, deadline=10)
    process.stop()


def test_not_ready_in_time(tmp_path: Path) -> None:
    process, pids = family(tmp_path)
    with pytest.raises(NotReady, match=r"was not ready within 0\.2 s"):
        process.wait_ready(lambda: False, deadline=0.2)
    process.stop()
    assert gone(pids)
