"""How a pull is cut into messages, and another hub's arena as memory of this process."""

from __future__ import annotations

import ctypes
import os
import random
from array import array
from pathlib import Path

import attrs
import pytest

from kvhub.testing import make_key, make_payload, make_region
from kvhub.wire import groups, mapped

LENGTHS = ([-1, 0, 1, 4096, 1 << 19, 1 << 21, 5 << 20], [4096, 4000], [1 << 20], [0], [-1, 1 << 21])


@pytest.mark.parametrize("some", LENGTHS, ids=["any", "alike", "equal", "empty", "whole-or-absent"])
def test_groups_cover_everything_once_in_order(some: list[int]) -> None:
    dice = random.Random(3)
    for _ in range(20):
        lengths = array("q", [dice.choice(some) for _ in range(dice.randrange(700))])
        plan = groups.plan(lengths)
        parts = [part for group in plan for part in zip(*group, strict=True)]
        assert [chunk for chunk, start, _ in parts if start == 0] == [i for i, n in enumerate(lengths) if n >= 0]
        reached = dict.fromkeys(range(len(lengths)), 0)
        for chunk, start, size in parts:
            assert start == reached[chunk]
            reached[chunk] += size
        assert all(reached[i] == max(n, 0) for i, n in enumerate(lengths))
        for group in plan:
            assert 0 < len(group.chunks) <= groups.MOST_PIECES
            assert sum(group.sizes) <= groups.GROUP_BYTES


def test_nothing_comes_in_no_message() -> None:
    assert groups.plan(array("q")) == groups.plan(array("q", [-1, -2])) == []


def test_neighbouring_slots_are_one_piece() -> None:
    region = make_region(8, 4096)
    (group,) = groups.plan(array("q", [4096, 4096, 100, 0, 50]))
    pieces = groups.Pieces(region, group, [2, 3, 4, 7, 0])
    assert pieces.stretches()[:-1] == [(region.address + 2 * 4096, 8292), (region.address, 50)]
    assert pieces.stretches()[-1][1] == 5 * groups.CHECK_BYTES
    assert pieces.payload_bytes == 8342 and pieces.message_bytes == 8342 + 5 * groups.CHECK_BYTES


def test_a_check_depends_on_key_bytes_and_place() -> None:
    data = memoryview(b"payload")
    checks = {groups.check(make_key(1), data), groups.check(make_key(2), data), groups.check(make_key(1), data[:-1])}
    assert len(checks | {groups.check(make_key(1), data, 1 << 21)}) == 4


def test_a_commit_speaks_for_keys_lengths_and_checks() -> None:
    keys, lengths = [make_key(1), make_key(2)], [10, 20]
    seals = {
        groups.seal_of(keys, lengths, bytes(32)),
        groups.seal_of(keys[::-1], lengths, bytes(32)),
        groups.seal_of(keys, lengths[::-1], bytes(32)),
        groups.seal_of(keys, lengths, bytes(31) + b"x"),
    }
    assert len(seals) == 4


# Another hub's arena.


def test_an_arena_is_read_and_not_written() -> None:
    region, data = make_region(4, 4096), make_payload(1, 4096)
    region.slot(2)[:] = data
    mapping = mapped.Mapping(region.name, mapped.identity(region), 4, 4096)
    target = (ctypes.c_char * 4096)()
    mapped.copy(ctypes.addressof(target), mapping.address + 2 * 4096, 4096)
    assert target.raw == data
    # The kernel itself keeps the reader from writing.
    maps = Path("/proc/self/maps").read_text().splitlines()
    (line,) = [one for one in maps if int(one.partition("-")[0], 16) == mapping.address]
    assert line.split()[1].startswith("r--")
    mapping.close()
    mapping.close()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("/etc/passwd", "not on this machine"),
        ("/proc/self/mem", "not on this machine"),
        ("/proc/1/fd/../../../etc/passwd", "not on this machine"),
        ("/proc/01/fd/3", "not on this machine"),
        ("", "not on this machine"),
    ],
)
def test_no_other_name_is_opened(name: str, says: str) -> None:
    region = make_region(4, 4096)
    with pytest.raises(ValueError, match=says):
        mapped.Mapping(name, mapped.identity(region), 4, 4096)


def test_a_name_that_another_memory_took() -> None:
    one, other = make_region(4, 4096), make_region(4, 4096)
    with pytest.raises(ValueError, match="another memory has taken that name"):
        mapped.Mapping(one.name, mapped.identity(other), 4, 4096)
    with pytest.raises(ValueError, match="not on this machine"):
        mapped.Mapping(one.name, b"\0" + mapped.identity(one)[1:], 4, 4096)
    with pytest.raises(ValueError, match="not on this machine"):
        mapped.Mapping(one.name, b"", 4, 4096)


def test_an_arena_of_another_size() -> None:
    region = make_region(4, 4096)
    for slots, size in ((5, 4096), (4, 4095), (1, 4096), (0, 0)):
        with pytest.raises(ValueError, match="bytes there, told were"):
            mapped.Mapping(region.name, mapped.identity(region), slots, size)


def test_what_is_no_memory_is_not_opened() -> None:
    region = make_region(1, 4096)
    reader, writer = os.pipe()
    try:
        with pytest.raises(ValueError, match="bytes there, told were"):
            mapped.Mapping(f"/proc/{os.getpid()}/fd/{reader}", mapped.identity(region), 1, 0)
    finally:
        os.close(reader)
        os.close(writer)


def test_device_memory_and_memory_without_a_name_are_not_offered() -> None:
    region = make_region(1, 4096)
    assert mapped.identity(region)
    assert mapped.identity(attrs.evolve(region, name="")) == b""
    assert mapped.identity(attrs.evolve(region, memory="cuda:0")) == b""
    assert mapped.identity(attrs.evolve(region, name="/proc/1/fd/999999")) == b""
