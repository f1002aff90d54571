"""The file system that a store keeps chunks on: type, free space, free names."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from kvhub.findings import Finding, failed, passed, warned
from kvhub.mounts import MEMORY, mount_of

LITTLE, NOTHING = 0.10, 0.01
"""Free parts below which a file system is told of, and below which stores will be dropping chunks."""
FEW_NAMES = 10_000


def findings(directory: Path) -> Iterator[Finding]:
    """What is found at `directory`; nothing when it cannot be looked at, which opening the store tells."""
    try:
        found = os.statvfs(directory)
    except OSError:
        return
    mount = mount_of(directory)
    if mount is None:
        yield warned("file system", f"{directory}: its type cannot be told", "look it up with `findmnt -T`")
    elif mount.type in MEMORY:
        yield warned(
            "file system",
            f"{directory} is on {mount.type}: chunks take memory and are gone after a restart of the machine",
            "name a directory on a disk or a share; memory is what the host tier is for",
        )
    else:
        yield passed("file system", f"{directory} is on {mount.type}, mounted at {mount.point}")
    yield _room(found)


def _room(found: os.statvfs_result) -> Finding:
    free, total = found.f_frsize * found.f_bavail, found.f_frsize * found.f_blocks
    part = free / total if total else 1.0
    told = f"{free / (1 << 30):.1f} of {total / (1 << 30):.1f} GiB free"
    step = "free some, or have `kvhub pool gc` hold the pool to a size"
    if part < NOTHING:
        return failed("free space", f"{told}: saves will be dropped", step)
    if found.f_files and found.f_favail < FEW_NAMES:
        return failed("free space", f"{told}, and {found.f_favail} inodes: a chunk takes one", step)
    if part < LITTLE:
        return warned("free space", told, step)
    return passed("free space", told)
