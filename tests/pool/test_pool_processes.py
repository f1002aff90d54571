"""Several processes on one pool, some of which are killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from kvhub.pool.gc import Limits, collect
from kvhub.pool.medium import Medium
from kvhub.pool.pace import Pace
from kvhub.testing.region import make_context, make_key
from pool.conftest import Run, Spawn
from pool.deeds import KEYS, LENGTH, payload_of
from pool.house import House, write_yaml

DEEDS = Path(__file__).parent / "deeds.py"
HOME = make_context("hub").namespace.hex()[:32]


def answer(process: subprocess.Popen[str]) -> object:
    line = process.stdout.readline()  # type: ignore[union-attr]
    assert line, process.stderr.read()  # type: ignore[union-attr]
    return json.loads(line)


def hold_whole(house: House) -> int:
    """Every visible chunk is whole and what its name says; how many."""
    names = {make_key(number).hex(): number for number in range(KEYS)}
    files = list((house.root / HOME).glob("??/??/*.kv"))
    for file in files:
        data = file.read_bytes()
        assert len(data) == 4096 + LENGTH and data[4096:] == payload_of(names[file.stem]), file.name
    return len(files)


@pytest.mark.parametrize("turns", [200, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(1500)])])
def test_A27_F03_four_processes_mix_everything_and_no_byte_is_wrong(
    house: House, run: Run, spawn: Spawn, turns: int
) -> None:
    hubs = [spawn(DEEDS, "mix", house.root, seed, turns) for seed in range(4)]
    for hub in hubs:
        assert answer(hub) == "ready"
    for hub in hubs:
        hub.stdin.write("go\n")  # type: ignore[union-attr]
        hub.stdin.flush()  # type: ignore[union-attr]
    found = [answer(hub) for hub in hubs]
    assert [(each["wrong"], each["bad"]) for each in found] == [(0, 0)] * 4, found  # type: ignore[index]
    assert all(hub.wait(20) == 0 and hub.stderr.read() == "" for hub in hubs)  # type: ignore[union-attr]
    assert sum(each["hits"] for each in found) > 100 and sum(each["collected"] for each in found) > 10  # type: ignore[index]
    assert house.stray() == []
    status, stats, _ = run("stats", "--exact")
    assert (status, stats["chunks"], stats["bytes"]) == (0, hold_whole(house), house.used_bytes())
    assert run("verify", "--deep")[1]["whole"] == stats["chunks"]


@pytest.mark.parametrize("kills", [20, pytest.param(250, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_C02_C11_a_writer_killed_at_random_instants_leaves_whole_chunks_and_after_a_sweep_nothing_else(
    house: House, medium: Medium, spawn: Spawn, kills: int
) -> None:
    chance, writer = random.Random(kills), spawn(DEEDS, "lives", house.root)
    for number in range(kills):
        writer.stdin.write(f"{number}\n")  # type: ignore[union-attr]
        writer.stdin.flush()  # type: ignore[union-attr]
        pid = int(str(answer(writer)))
        time.sleep(chance.uniform(0.0, 0.03))
        os.kill(pid, signal.SIGKILL)
        assert answer(writer) == "killed"
    assert hold_whole(house) > 0
    collect(medium, Limits(unused_for=3600.0), Pace())
    medium.close()
    assert house.stray() == [] and list(house.root.glob("*/.tmp/*")) == []


def test_C11_a_sweeper_that_is_killed_is_replaced_when_its_lease_is_over(
    house: House, medium: Medium, spawn: Spawn
) -> None:
    house.add(range(300))
    first = spawn(DEEDS, "sweep", house.root, "2.0", "50")
    until = time.monotonic() + 30
    while len(house.found()) > 250:
        assert time.monotonic() < until and first.poll() is None, first.stderr
        time.sleep(0.02)
    first.kill()
    first.wait(20)
    left = len(house.found())
    assert left > 100 and list((house.root / ".kvhub" / "leases").iterdir()) != []
    second = spawn(DEEDS, "sweep", house.root, "2.0", "100000")
    assert answer(second) == {"removed": left, "left": 0}
    collect(medium, Limits(unused_for=60.0), Pace())
    medium.close()
    assert house.stray() == [] and house.found() == set()


def test_a_watcher_keeps_the_size_and_ends_cleanly_when_told_to(tmp_path: Path, house: House, spawn: Spawn) -> None:
    house.add(range(20))
    yaml = write_yaml(tmp_path / "kvhub.yaml", pool=house.root)
    words = ("--unused-for", "1h", "--watch", "200ms", "--json")
    watcher = spawn("-m", "kvhub.cli", "pool", "gc", yaml, *words)
    assert answer(watcher)["removed_chunks"] == 20  # type: ignore[index]
    house.add(range(20, 30))
    removed = 0
    while removed < 10:
        removed += answer(watcher)["removed_chunks"]  # type: ignore[index]
    watcher.send_signal(signal.SIGTERM)
    assert watcher.wait(20) == 0 and watcher.stderr.read() == ""  # type: ignore[union-attr]
    assert house.stray() == [] and house.found() == set()


def test_a_single_round_that_is_told_to_stop_says_so(tmp_path: Path, house: House, spawn: Spawn) -> None:
    house.add(range(200))
    yaml = write_yaml(tmp_path / "kvhub.yaml", pool=house.root)
    once = spawn("-m", "kvhub.cli", "pool", "gc", yaml, "--unused-for", "1h", "--rate", "20/s")
    while len(house.found()) > 190:
        assert once.poll() is None
        time.sleep(0.02)
    once.send_signal(signal.SIGTERM)
    assert once.wait(20) == 1
    assert "stopped as asked" in once.stderr.read() and house.stray() == []  # type: ignore[union-attr]
    assert len(house.found()) > 0
