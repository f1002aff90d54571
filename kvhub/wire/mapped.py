"""Another hub's arena, on the same machine, as read-only memory of this process.

A copy by the reader is the safest transfer there is: nobody but the owner ever writes into an arena, so a peer that was
stopped and wakes up later can overwrite nothing.  The kernel decides who may open `/proc/PID/fd/N`: processes of the
same user.  Where it refuses, or where the two are in different containers, the link uses its data lane.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import re
import stat
import threading
from pathlib import Path

from kvhub.types import Region

_NAME = re.compile(r"^/proc/([1-9]\d{0,9})/fd/(\d{1,9})$")
_POPULATE_READ = 22  # MADV_POPULATE_READ, Linux 5.14
_POPULATE_PIECE = 64 << 20
SLICE_BYTES = 16 << 20
"""Copied at a stretch, some 3 ms: a copy empties the caches, and every turn of the loop after it costs 70 µs."""
_MANY_BYTES = 256 * 1024
"""From this size on a copy lets other threads of this process run; below, taking the GIL back costs more than it."""

_copy_long = ctypes.CDLL(None).memmove
_copy_short = ctypes.PyDLL(None).memmove
for _function in (_copy_long, _copy_short):
    _function.argtypes, _function.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t), ctypes.c_void_p


def _boot() -> bytes:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "").encode()
    except OSError:
        return b""


def identity(region: Region) -> bytes:
    """What no other memory has: this boot of this machine, device and inode; empty when it cannot be mapped."""
    if not region.name or region.memory != "host":
        return b""
    try:
        found = Path(region.name).stat()
    except OSError:
        return b""
    return _boot() + found.st_dev.to_bytes(8, "little") + found.st_ino.to_bytes(8, "little")


class Mapping:
    """Owns the mapping.  Raises OSError or ValueError where there is none to be had."""

    def __init__(self, name: str, wanted: bytes, slots: int, slot_bytes: int) -> None:
        match = _NAME.match(name)
        if match is None or wanted[:32] != _boot() or not wanted:
            raise ValueError("its memory is not on this machine")
        path = Path("/proc") / match[1] / "fd" / match[2]
        found = path.stat()
        if not stat.S_ISREG(found.st_mode) or found.st_size != slots * slot_bytes:
            raise ValueError(f"{found.st_size} bytes there, told were {slots} slots of {slot_bytes}")
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            opened = os.fstat(fd)
            here = _boot() + opened.st_dev.to_bytes(8, "little") + opened.st_ino.to_bytes(8, "little")
            if here != wanted:
                raise ValueError("another memory has taken that name")
            if not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
                raise ValueError("its memory may shrink, and reading what was cut off would end this process")
            self._map: mmap.mmap | None = mmap.mmap(fd, slots * slot_bytes, prot=mmap.PROT_READ)
        finally:
            os.close(fd)
        self.slots, self.slot_bytes = slots, slot_bytes
        self._view = memoryview(self._map)
        self.address = _address_of(self._view)
        self._stop = threading.Event()
        self._warmer = threading.Thread(target=self._warm, name="kvhub-wire-warm", daemon=True)
        self._warmer.start()

    def _warm(self) -> None:
        """Touch it once: the first pass over a fresh mapping costs several times the copy (1.2 against 5 GB/s)."""
        madvise = ctypes.CDLL(None).madvise
        madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        size = self.slots * self.slot_bytes
        for at in range(0, size, _POPULATE_PIECE):
            if self._stop.is_set() or madvise(self.address + at, min(_POPULATE_PIECE, size - at), _POPULATE_READ):
                return

    def close(self) -> None:
        """Let go of it; no copy may be under way.  Idempotent."""
        if self._map is not None:
            self._stop.set()
            self._warmer.join()
            self._view.release()
            self._map.close()
            self._map = None


def _address_of(view: memoryview) -> int:
    """Address of a read-only buffer, which ctypes refuses to take from Python."""
    found = ctypes.py_object(view)
    buffer = (ctypes.c_ssize_t * 16)()
    get = ctypes.pythonapi.PyObject_GetBuffer
    get.argtypes, get.restype = (ctypes.py_object, ctypes.c_void_p, ctypes.c_int), ctypes.c_int
    get(found, ctypes.addressof(buffer), 0)
    release = ctypes.pythonapi.PyBuffer_Release
    release.argtypes, release.restype = (ctypes.c_void_p,), None
    try:
        return int(buffer[0])
    finally:
        release(ctypes.addressof(buffer))


def copy(to: int, source: int, length: int) -> None:
    """Copy bytes between addresses of this process."""
    (_copy_long if length >= _MANY_BYTES else _copy_short)(to, source, length)
