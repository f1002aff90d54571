"""Single files: written whole or not at all, read into given memory, removed only if they still are the same."""

# Paths are strings here: building a Path costs as much as a system call on a local disk.
# ruff: noqa: PTH104, PTH108

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import NamedTuple

FILE_MODE = 0o640
"""Before the umask.  Not for the world: KV tells the prompt it was computed from."""


class Identity(NamedTuple):
    """What tells a file from a later one of the same name, also where inode numbers are used again."""

    device: int
    inode: int
    size: int
    mtime_ns: int


def identity(status: os.stat_result) -> Identity:
    return Identity(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def write_whole(path: str, header: bytes, payload: memoryview, *, fsync: bool) -> None:
    """Create `path` with header and payload; on any error nothing stays there.  It must not exist.

    NFS tells of a full disk or quota as late as fsync or close, so an error of either is an error of the write:
    publishing by rename after one has been seen to put an empty file in place.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
    try:
        try:
            _write_all(fd, memoryview(header), payload)
            if fsync:
                os.fsync(fd)
        finally:
            os.close(fd)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise


def _write_all(fd: int, header: memoryview, payload: memoryview) -> None:
    done, total = 0, header.nbytes + payload.nbytes
    while done < total:
        if done < header.nbytes:
            count = os.writev(fd, [header[done:], payload])
        else:
            count = os.write(fd, payload[done - header.nbytes :])
        if count <= 0:
            raise OSError(errno.EIO, "a write took no bytes")
        done += count


def read_into(path: str, header: memoryview, payload: memoryview) -> tuple[int, Identity] | None:
    """Fill `header`, then `payload`; (whole size, identity), or None when there is no such file.

    The size is what was really there: a file that ends before its own status says so counts as that short.
    """
    try:
        # O_NONBLOCK: a FIFO in the place of a chunk must not hang a worker; regular files do not care.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EISDIR if stat.S_ISDIR(status.st_mode) else errno.EINVAL, "not a regular file")
        size = status.st_size
        want = min(size, header.nbytes + payload.nbytes)
        got = _read_all(fd, header, payload, want)
        return (size if got == want else got), identity(status)
    finally:
        os.close(fd)


def _read_all(fd: int, header: memoryview, payload: memoryview, want: int) -> int:
    done = 0
    while done < want:
        if done < header.nbytes:
            count = os.preadv(fd, [header[done:], payload], done)
        else:
            count = os.preadv(fd, [payload[done - header.nbytes :]], done)
        if count == 0:
            break
        done += count
    return done


def remove_exactly(path: str, seen: Identity, aside: str) -> bool:
    """Remove the file at `path` only if it is the one that was `seen`; whether it was.

    It is moved to `aside` (same file system, not existing) and looked at there, where nobody can replace it.  A
    newer file is moved back; for that moment readers miss it.
    """
    try:
        if identity(os.lstat(path)) != seen:
            return False
        os.rename(path, aside)
    except FileNotFoundError:
        return False
    if identity(os.lstat(aside)) != seen:
        os.rename(aside, path)
        return False
    os.unlink(aside)
    return True
