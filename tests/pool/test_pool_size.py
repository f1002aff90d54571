"""Large pools: memory does not grow with them, and neither does what a lookup does."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from pool.conftest import Spawn
from pool.house import House, write_yaml

DEEDS = Path(__file__).parent / "deeds.py"
MOST_MIB = 300
GROWTH_MIB = 24
"""That a pool of any size may add to what a command needs for an empty one, while names of 20,000 chunks alone weigh
some three."""
SIZE = 8192
SIZES = [20_000, pytest.param(1_000_000, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])]


@pytest.mark.parametrize("count", SIZES)
def test_C05_memory_and_lookups_do_not_grow_with_the_pool(
    tmp_path: Path, house: House, spawn: Spawn, count: int
) -> None:
    yaml = write_yaml(tmp_path / "kvhub.yaml", pool=house.root)

    def kvhub(command: str, *words: str) -> dict[str, Any]:
        out, told = spawn(DEEDS, "command", "pool", command, yaml, *words).communicate()
        facts: dict[str, Any] = json.loads(told.splitlines()[-1])
        assert facts["status"] == 0, told
        lines = out.splitlines()
        print(
            f"{count} chunks: {command} {' '.join(words)}: {facts['seconds']:.2f} s, {facts['mib']:.0f} MiB",
            file=sys.stderr,
        )
        return facts | {"lines": len(lines), "said": json.loads(lines[-1])}

    empty = kvhub("stats", "--exact", "--json")["mib"]
    house.add_sparse(count, size=SIZE, spread=30 * 86400.0)
    most = str(count * SIZE)
    told = [
        kvhub("stats", "--exact", "--json"),
        kvhub("stats", "--json"),
        kvhub("scan", "--json"),
        kvhub("gc", "--max", most, "--dry-run", "--json"),
        kvhub("gc", "--max", most, "--json"),
    ]
    assert told[0]["said"]["chunks"] == told[1]["said"]["chunks"] == told[2]["lines"] == count
    collected = told[4]["said"]
    assert collected["removed_chunks"] == pytest.approx(count * 0.2, rel=0.02)
    assert collected["left_chunks"] == count - collected["removed_chunks"] == len(house.found())
    assert max(each["mib"] for each in told) < min(MOST_MIB, empty + GROWTH_MIB)
    lookups = spawn(DEEDS, "lookups", house.root, count)
    out, err = lookups.communicate()
    answers = json.loads(out)
    print(f"{count} chunks: {answers}", file=sys.stderr)
    assert answers["listed"] == 0 and answers["misses"] == 0, err
    assert answers["hits"] == pytest.approx(answers["asked"] * 0.8, rel=0.1)
