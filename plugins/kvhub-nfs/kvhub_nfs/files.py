"""Single files: written whole or not at all, read into given memory, removed only if they still are the same.

Payloads move straight between slots and files.  With `direct` they pass the page cache by (O_DIRECT): the header goes
through an aligned page of the thread's own, whole blocks of the payload go directly, and the rest of a payload that is
no multiple of a block through the page cache, so that a file is the same whichever way it was written.
"""

# Paths are strings here: building a Path costs as much as a system call on a local disk.
# ruff: noqa: PTH104, PTH108

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import stat
import threading
from collections.abc import Callable
from typing import NamedTuple

from kvhub.chunkfile import PayloadChecksum

FILE_MODE = 0o640
"""Before the umask.  Not for the world: KV tells the prompt it was computed from."""

PIECE = 512 << 10
"""Bytes that are read from the page cache and hashed at a time: what was just read is hashed out of the processor's
cache.  Of 128 KiB to 2 MiB the fastest: 32 MiB warm at 0.9 of memcpy, hashed afterwards at 0.7."""
HASHED_FROM = 4 << 20
"""Payloads from this size on are hashed piece by piece while they are written, which saves a tenth of the time; below,
one call for header and payload costs less."""
BLOCK = 4096
"""What direct I/O is aligned to: file offsets, lengths and addresses.  A header is one block, slots are whole ones."""


Seal = Callable[[bytes], bytes]
"""Makes the header of a payload's checksum."""


class _Page(threading.local):
    """A block of memory that is aligned, one for each thread."""

    def __init__(self) -> None:
        self.view = memoryview(mmap.mmap(-1, BLOCK))


_page = _Page()


class Identity(NamedTuple):
    """What tells a file from a later one of the same name, also where inode numbers are used again."""

    device: int
    inode: int
    size: int
    mtime_ns: int


def identity(status: os.stat_result) -> Identity:
    return Identity(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def write_whole(path: str, header: bytes | Seal, payload: memoryview, *, fsync: bool, direct: bool = False) -> None:
    """Create `path` with header and payload; on any error nothing stays there.  It must not exist.

    Instead of a header a function may be given that makes it of the payload's checksum, taken while writing; not with
    `direct`.

    NFS tells of a full disk or quota as late as fsync or close, so an error of either is an error of the write:
    publishing by rename after one has been seen to put an empty file in place.
    """
    fd, direct = _open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, direct)
    try:
        try:
            if isinstance(header, bytes):
                done = _write_blocks(fd, header, payload) if direct else 0
                _write_rest(fd, memoryview(header), payload, done)
            else:
                _write_and_hash(fd, header, payload)
            if fsync:
                os.fsync(fd)
        finally:
            os.close(fd)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise


def _open(path: str, flags: int, direct: bool) -> tuple[int, bool]:
    """A descriptor, and whether it is for direct I/O; a file system that refuses that gives a plain one."""
    flags |= os.O_CLOEXEC
    if direct:
        try:
            return os.open(path, flags | os.O_DIRECT, FILE_MODE), True
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            with contextlib.suppress(FileNotFoundError):  # Linux creates the file before it refuses
                if flags & os.O_EXCL:
                    os.unlink(path)
    return os.open(path, flags, FILE_MODE), False


def _write_blocks(fd: int, header: bytes, payload: memoryview) -> int:
    """Write what can go directly, then turn the descriptor to the page cache if there is more; bytes written."""
    _page.view[:] = header
    whole = payload[: payload.nbytes // BLOCK * BLOCK]
    try:
        done = os.writev(fd, [_page.view, whole])
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        done = 0
    if done < len(header) + payload.nbytes:
        _to_page_cache(fd)
    return done


def _to_page_cache(fd: int) -> None:
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) & ~os.O_DIRECT)


def _write_rest(fd: int, header: memoryview, payload: memoryview, done: int) -> None:
    total = header.nbytes + payload.nbytes
    while done < total:
        if done < header.nbytes:
            count = os.writev(fd, [header[done:], payload])
        else:
            count = os.write(fd, payload[done - header.nbytes :])
        if count <= 0:
            raise OSError(errno.EIO, "a write took no bytes")
        done += count


def _write_and_hash(fd: int, seal: Seal, payload: memoryview) -> None:
    """The payload first, each piece hashed while the processor still has it, then the header in front of it."""
    taken = PayloadChecksum()
    for at in range(0, payload.nbytes, PIECE):
        piece = payload[at : at + PIECE]
        _write_at(fd, piece, BLOCK + at)
        taken.add(piece)
    _write_at(fd, memoryview(seal(taken.digest())), 0)


def _write_at(fd: int, data: memoryview, offset: int) -> None:
    done = 0
    while done < data.nbytes:
        count = os.pwrite(fd, data[done:], offset + done)
        if count <= 0:
            raise OSError(errno.EIO, "a write took no bytes")
        done += count


def read_into(
    path: str, header: memoryview, payload: memoryview, *, direct: bool = False
) -> tuple[int, Identity, bytes] | None:
    """Fill `header`, then `payload`; (whole size, identity, checksum), or None when there is no such file.

    The size is what was really there: a file that ends before its own status says so counts as that short.  The
    checksum is that of the payload where it was taken while reading, else empty.
    """
    try:
        # O_NONBLOCK: a FIFO in the place of a chunk must not hang a worker; regular files do not care.
        fd, direct = _open(path, os.O_RDONLY | os.O_NONBLOCK, direct)
    except FileNotFoundError:
        return None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EISDIR if stat.S_ISDIR(status.st_mode) else errno.EINVAL, "not a regular file")
        size = status.st_size
        want = min(size, header.nbytes + payload.nbytes)
        checksum = b""
        if direct and (done := _read_blocks(fd, header, payload, want)):
            got = _read_rest(fd, header, payload, want, done)
        else:
            got, checksum = _read_and_hash(fd, header, payload, want)
        return (size if got == want else got), identity(status), checksum
    finally:
        with contextlib.suppress(OSError):  # it tells of writes that this descriptor did not make
            os.close(fd)


def _read_blocks(fd: int, header: memoryview, payload: memoryview, want: int) -> int:
    """Read whole blocks, then turn the descriptor to the page cache if there is more.

    The last block of a file that ends inside it is not read directly: that would write zeros behind the payload.
    """
    whole = payload[: max(0, want - header.nbytes) // BLOCK * BLOCK]
    try:
        done = min(os.preadv(fd, [_page.view, whole], 0), want)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        done = 0
    part = min(done, header.nbytes)
    header[:part] = _page.view[:part]
    if done < want:
        _to_page_cache(fd)
    return done


def _read_and_hash(fd: int, header: memoryview, payload: memoryview, want: int) -> tuple[int, bytes]:
    taken, done, room = PayloadChecksum(), 0, max(0, want - header.nbytes)
    for at in range(0, max(room, 1), PIECE):
        piece = payload[at : min(at + PIECE, room)]
        upto = min(want, header.nbytes + at + piece.nbytes)
        done = _read_rest(fd, header, payload[: at + piece.nbytes], upto, done)
        taken.add(piece)
        if done < upto:
            break
    return done, taken.digest()


def _read_rest(fd: int, header: memoryview, payload: memoryview, want: int, done: int) -> int:
    while done < want:
        if done < header.nbytes:
            count = os.preadv(fd, [header[done:], payload], done)
        else:
            count = os.preadv(fd, [payload[done - header.nbytes :]], done)
        if count == 0:
            break
        done += count
    return done


def takes_direct(path: str) -> bool:
    """Whether a new file at `path` can be written and read back past the page cache; removed again.  Raises OSError."""
    data = memoryview(mmap.mmap(-1, BLOCK))
    data[:] = os.urandom(BLOCK)
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_DIRECT | os.O_CLOEXEC, FILE_MODE)
        try:
            _page.view[:] = data
            os.writev(fd, [_page.view, data])
            back = memoryview(mmap.mmap(-1, BLOCK))
            return os.preadv(fd, [_page.view, back], 0) == 2 * BLOCK and back == data == _page.view
        finally:
            os.close(fd)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):
            return False
        raise
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


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
