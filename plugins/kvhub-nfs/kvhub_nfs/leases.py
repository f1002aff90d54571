"""Leases as files: created exclusively, told apart by identity, taken over when they expired on the server's clock.

A lease's file says `<seconds> <holder>`; it runs from the file's modification time.  Best effort: between two takers of
one expired lease there is a moment in which both may get it, which what a lease guards must bear.
"""

# ruff: noqa: PTH104

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from kvhub_nfs import files

UNREADABLE_SECONDS = 60.0
"""How long a file that says nothing counts: its owner was killed between creating and writing it."""


class _Lease(NamedTuple):
    holder: str
    until: float
    identity: files.Identity


def claim(path: str, holder: str, seconds: float, now: float, fresh: Callable[[], str]) -> bool:
    """Whether `holder` has the lease now; `fresh` gives unused paths on the same file system."""
    said = f"{seconds} {holder}".encode()
    there = _read(path)
    if there is not None and there.holder == holder:
        unfinished = fresh()
        files.write_whole(unfinished, said, memoryview(b""), fsync=False)
        os.rename(unfinished, path)
        return True
    if there is not None and (now < there.until or not files.remove_exactly(path, there.identity, fresh())):
        return False
    try:
        files.write_whole(path, said, memoryview(b""), fsync=False)
    except FileExistsError:
        return False
    return True


def release(path: str, holder: str, aside: str) -> None:
    there = _read(path)
    if there is not None and there.holder == holder:
        files.remove_exactly(path, there.identity, aside)


def _read(path: str) -> _Lease | None:
    try:
        with Path(path).open("rb") as file:
            status = os.fstat(file.fileno())
            text = file.read(512).decode("utf-8", "replace")
    except FileNotFoundError:
        return None
    number, _, holder = text.partition(" ")
    try:
        seconds = float(number)
    except ValueError:
        seconds = UNREADABLE_SECONDS
    return _Lease(holder, status.st_mtime + seconds, files.identity(status))
