"""Which mount a path is on, from /proc/self/mountinfo; the format is that of proc(5)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import attrs

MOUNTINFO = Path("/proc/self/mountinfo")
NETWORK = frozenset({"nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "gpfs", "beegfs", "glusterfs", "9p", "virtiofs"})
"""Types whose files other machines may see; a FUSE file system may be either."""
MEMORY = frozenset({"tmpfs", "ramfs"})
_ESCAPE = re.compile(r"\\([0-7]{3})")


@attrs.frozen
class Mount:
    """One mounted file system, as /proc/self/mountinfo tells of it."""

    point: str
    type: str
    options: Mapping[str, str]
    """Of the mount and of its file system; "" for an option without a value."""


def mount_of(path: Path, table: Path | None = None) -> Mount | None:
    """The mount that `path` is on; None where it cannot be told.  The path need not exist."""
    try:
        lines = (table or MOUNTINFO).read_text().splitlines()
        place = path.resolve()
    except OSError:
        return None
    best: Mount | None = None
    for line in lines:
        fields = line.split()
        if "-" not in fields[6:]:
            continue
        rest = fields[fields.index("-", 6) + 1 :]
        point = _ESCAPE.sub(lambda match: chr(int(match[1], 8)), fields[4])
        # Of two mounts on one point the later one covers the earlier.
        if place.is_relative_to(point) and (best is None or len(point) >= len(best.point)):
            words = ",".join([fields[5], *rest[2:3]]).split(",")
            best = Mount(point, rest[0], dict(_split(word) for word in words if word))
    return best


def _split(word: str) -> tuple[str, str]:
    name, _, value = word.partition("=")
    return name, value
