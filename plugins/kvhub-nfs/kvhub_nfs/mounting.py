"""Whether a root is mounted as the README asks, for `kvhub doctor`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from kvhub.findings import Finding, passed, warned
from kvhub.mounts import MEMORY, NETWORK, Mount, mount_of

WHAT = "mount"
_NFS = ("nfs", "nfs4")
LONGEST_STALE = 1.0
"""Seconds for which an absent file may be remembered; NFS's own default is 30."""


def findings(root: Path, shared: bool) -> Iterator[Finding]:
    """`shared` is what `use: nfs` says and `use: nfs/local` denies."""
    mount = mount_of(root)
    if mount is None:
        return
    if shared and mount.type not in NETWORK and not mount.type.startswith("fuse"):
        yield warned(
            WHAT,
            f"{root} is on {mount.type} of this machine, where no other machine sees its chunks",
            "mount the share there and check it in /etc/fstab, or say use: nfs/local",
        )
    elif not shared and mount.type in NETWORK:
        yield warned(
            WHAT,
            f"{root} is on {mount.type}, which other machines may share",
            "say use: nfs, or name a local directory",
        )
    elif mount.type in _NFS:
        yield from _nfs(mount)
    elif mount.type not in MEMORY:
        yield passed(WHAT, f"{mount.point} is {mount.type}")


def _nfs(mount: Mount) -> Iterator[Finding]:
    options, good = mount.options, True
    if options.get("lookupcache") not in ("positive", "pos", "none") and _remembered(options) > LONGEST_STALE:
        good = False
        yield warned(
            WHAT,
            f"{mount.point} is mounted without lookupcache=positive: chunks of other hubs are missed for up to "
            f"{_remembered(options):.0f} s",
            "mount it with lookupcache=positive",
        )
    if not {"soft", "softerr"} & options.keys():
        good = False
        yield warned(
            WHAT,
            f"{mount.point} is mounted hard: calls to a server that died never return, and a process that has one "
            "cannot end",
            "mount it with softerr,timeo=50,retrans=2",
        )
    if good:
        yield passed(WHAT, f"{mount.point} is {mount.type} with the options that kvhub asks for")


def _remembered(options: Mapping[str, str]) -> float:
    """How long a client may believe that a file is absent: acdirmax, or actimeo over it; 0 without caching."""
    if "noac" in options:
        return 0.0
    for name in ("acdirmax", "actimeo"):
        if options.get(name, "").isdigit():
            return float(options[name])
    return 60.0
