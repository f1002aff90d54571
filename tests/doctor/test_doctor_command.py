"""`kvhub doctor`: what a terminal and a program are shown, and the exit status."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest
from doctor.conftest import HEALTHY

from kvhub.cli import main
from kvhub.cli.doctor import lines
from kvhub.doctor import status
from kvhub.findings import failed, passed, warned

FILE = """\
kvhub: 1
stores:
  host: {use: host, capacity: 64MiB}
roles:
  both: {store: [host], retrieve: [host]}
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """On a healthy machine whose engine is there."""
    monkeypatch.setattr("kvhub.doctor.machine.look", lambda: HEALTHY)
    monkeypatch.setattr("kvhub.doctor.installed._engines", lambda engines: ())
    path = tmp_path / "one.yaml"
    path.write_text(FILE)
    return str(path)


def test_the_status_is_that_of_the_worst_finding(file: str, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["doctor", file]) == 0
    assert capsys.readouterr().out.rstrip().endswith(" pass, 0 warn, 0 fail")
    monkeypatch.setattr("kvhub.doctor.machine.look", lambda: attrs.evolve(HEALTHY, files=1))
    assert main(["doctor", file]) == 1
    monkeypatch.setattr("kvhub.doctor.machine.look", lambda: attrs.evolve(HEALTHY, available=1))
    assert main(["doctor", file]) == 2
    assert status([passed("a", "b"), warned("a", "b", "c"), failed("a", "b", "c"), warned("a", "b", "c")]) == 2


def test_a_program_is_told_the_same(file: str, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvhub.doctor.machine.look", lambda: attrs.evolve(HEALTHY, available=1))
    assert main(["doctor", file, "--json", "--role", "both"]) == 2
    told = json.loads(capsys.readouterr().out)
    assert told["status"] == 2
    [found] = [each for each in told["findings"] if each["grade"] == "fail"]
    assert (found["where"], found["what"]) == ("machine", "memory")
    assert found["found"] and found["next"].startswith("lower capacity")


def test_what_members_log_is_not_shown(tmp_path: Path) -> None:
    pytest.importorskip("kvhub_tcp")
    path = tmp_path / "wired.yaml"
    path.write_text(FILE.replace("roles:", "transports: {wire: {use: tcp}}\nroles:").replace("[host]", "[host, wire]"))
    command = [sys.executable, "-m", "kvhub.cli", "doctor", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "transport in use: 4 chunks came" in done.stdout, done.stdout + done.stderr
    assert "wire.opened" not in done.stdout + done.stderr and "wire.paired" not in done.stdout + done.stderr


def test_a_terminal_is_shown_it_by_place_with_the_next_step_below() -> None:
    found = [
        attrs.evolve(passed("start", "opens"), where="stores.pool"),
        attrs.evolve(failed("free space", "none", "free some"), where="stores.pool"),
        attrs.evolve(warned("address", "loopback", "set listen"), where="transports.wire"),
    ]
    assert lines(found) == [
        "stores.pool:",
        "  pass  start: opens",
        "  fail  free space: none",
        "        -> free some",
        "transports.wire:",
        "  warn  address: loopback",
        "        -> set listen",
        "",
        "1 pass, 1 warn, 1 fail",
    ]


def test_a_finding_that_is_no_pass_has_a_next_step() -> None:
    with pytest.raises(ValueError, match="free space: what is no pass needs a next step"):
        failed("free space", "none", "")


def test_a_file_that_is_not_there_is_a_failure_like_others(capsys: Any) -> None:
    assert main(["doctor", "/nope.yaml", "--json"]) == 2
    found = json.loads(capsys.readouterr().out)["findings"]
    assert [each["found"] for each in found if each["grade"] == "fail"] == ["cannot be read: No such file or directory"]
