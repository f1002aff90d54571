"""Hints about pages: asked for where they are offered, said where they are not; the memory is the same."""

from __future__ import annotations

import fcntl
import os
import platform
from pathlib import Path

import pytest

from kvhub import pages
from kvhub.arena import ALIGN, Arena


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("always within_size advise [never] deny force", "not offered, {path} is never"),
        ("always within_size advise never [deny] force", "not offered, {path} is deny"),
        ("always within_size [advise] never deny force", "asked for"),
        (None, "not offered by this kernel"),
    ],
)
def test_huge_pages_are_asked_for_where_they_are_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, said: str
) -> None:
    path = tmp_path / "shmem_enabled"
    if text is not None:
        path.write_text(text)
    monkeypatch.setattr(pages, "SHMEM_ENABLED", path)
    arena = Arena(4 << 20, ALIGN)
    told = arena.memory
    arena.region.view[:4] = b"kept"
    seals = fcntl.fcntl(int(arena.region.name.rpartition("/")[2]), fcntl.F_GET_SEALS)
    assert bytes(arena.region.view[:4]) == b"kept"
    arena.close()
    if said == "asked for" and "refused" in told:
        pytest.skip(f"this kernel has no huge pages for shared memory: {told}")
    assert told == f"huge pages: {said.format(path=path)}"
    assert seals & fcntl.F_SEAL_SHRINK, "still a sealed memfd"
    off = Arena(ALIGN, ALIGN, huge_pages=False)
    assert off.memory == ""
    off.close()


def test_a_single_node_has_nothing_to_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "nodes", lambda: [0])
    arena = Arena(ALIGN, ALIGN, huge_pages=False, numa_node=0)
    assert arena.memory == "NUMA node 0: the only one"
    arena.close()


@pytest.mark.skipif(platform.machine() not in pages._MBIND, reason="the number of mbind(2) is not known here")
def test_the_system_call_takes_a_node_that_is_there_and_tells_of_one_that_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arena = Arena(1 << 20, ALIGN, huge_pages=False)
    number = pages._MBIND[platform.machine()]
    said = pages.bind(number, arena.region.address, 1 << 20, 0)
    if said == f"refused, {os.strerror(38)}":
        pytest.skip("this kernel has no NUMA")
    assert said == ""
    assert pages.bind(number, arena.region.address, 1 << 20, 60).startswith("refused, ")
    assert pages.prefer_node(arena.region.address, 1 << 20, 0, [0, 1]) == "NUMA node 0: preferred"
    monkeypatch.setattr(platform, "machine", lambda: "sparc")
    assert pages.prefer_node(arena.region.address, 1 << 20, 0, [0, 1]) == "NUMA node 0: not offered on sparc"
    arena.close()


def test_nodes_are_numbers_or_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("node10", "node0", "has_memory", "possible"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(pages, "NODES", tmp_path)
    assert pages.nodes() == [0, 10]
    monkeypatch.setattr(pages, "NODES", tmp_path / "absent")
    assert pages.nodes() == []
