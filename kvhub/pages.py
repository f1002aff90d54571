"""The arena's pages: how many there may be, faulting them in, and hints to the kernel for large ones and a NUMA node.

A hint that the machine does not offer is said, not silently dropped; none of them changes what the memory is.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import threading
from collections.abc import Sequence
from pathlib import Path

SHMEM_ENABLED = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
NODES = Path("/sys/devices/system/node")
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, Linux 5.14: fault pages in without changing them
_POPULATE_PIECE = 64 << 20
_HUGEPAGE = 14  # MADV_HUGEPAGE
_PREFERRED = 1  # MPOL_PREFERRED: that node while it has room, then others
_MBIND = {"x86_64": 237, "aarch64": 235}
"""System call numbers; the C library has no function for it."""


def available_bytes() -> int | None:
    """Memory that this process may still take: the least of the machine's and the cgroup's; None if unknown."""
    found = []
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                found.append(int(line.split()[1]) * 1024)
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = Path("/sys/fs/cgroup/memory.current").read_text().strip()
        if limit != "max":
            found.append(int(limit) - int(used))
    except (OSError, ValueError):
        pass
    return min(found) if found else None


def populate(view: memoryview, stop: threading.Event) -> threading.Thread:
    """Fault the pages of a mapping in, on a thread beside the engine's own start.

    The first touch of a fresh page costs more than the copy into it (0.35 instead of 2.4 GB/s measured), and again in
    every process that maps it (1.2 instead of 2.7).  Called through ctypes, which lets other threads run meanwhile.
    """
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

    def run() -> None:
        start = ctypes.addressof(ctypes.c_char.from_buffer(view))
        for at in range(0, view.nbytes, _POPULATE_PIECE):
            if stop.is_set() or madvise(start + at, min(_POPULATE_PIECE, view.nbytes - at), _POPULATE_WRITE):
                return

    thread = threading.Thread(target=run, name="kvhub-arena-warm", daemon=True)
    thread.start()
    return thread


def nodes() -> list[int]:
    """The machine's NUMA nodes; empty where the kernel does not tell."""
    names = (re.fullmatch(r"node(\d+)", path.name) for path in (NODES.iterdir() if NODES.is_dir() else ()))
    return sorted(int(match[1]) for match in names if match)


def ask_huge_pages(address: int, size: int) -> str:
    """Ask for transparent huge pages; what came of it, in words.

    A memfd is shared memory, whose huge pages `shmem_enabled` governs; distributions ship it as `never`.
    """
    try:
        text = SHMEM_ENABLED.read_text()
    except OSError:
        return "huge pages: not offered by this kernel"
    chosen = re.search(r"\[(\w+)\]", text)
    if chosen is None or chosen[1] in ("never", "deny"):
        return f"huge pages: not offered, {SHMEM_ENABLED} is {chosen[1] if chosen else text.strip()}"
    libc = ctypes.CDLL(None, use_errno=True)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    if libc.madvise(address, size, _HUGEPAGE):
        return f"huge pages: refused, {os.strerror(ctypes.get_errno())}"
    return "huge pages: asked for"


def prefer_node(address: int, size: int, node: int, known: Sequence[int]) -> str:
    """Ask for pages on one NUMA node; what came of it, in words.  Of a single node nothing has to be asked."""
    if len(known) < 2:
        return f"NUMA node {node}: the only one"
    number = _MBIND.get(platform.machine())
    if number is None:
        return f"NUMA node {node}: not offered on {platform.machine()}"
    return f"NUMA node {node}: " + (bind(number, address, size, node) or "preferred")


def bind(number: int, address: int, size: int, node: int) -> str:
    """The system call mbind(2); empty, or why it failed."""
    libc = ctypes.CDLL(None, use_errno=True)
    words = node // 64 + 1
    mask = (ctypes.c_uint64 * words)()
    mask[node // 64] = 1 << (node % 64)
    libc.syscall.restype = ctypes.c_long
    # The kernel reads one bit less than it is told.
    most = ctypes.c_ulong(64 * words + 1)
    failed = libc.syscall(
        ctypes.c_long(number), ctypes.c_void_p(address), ctypes.c_ulong(size), ctypes.c_int(_PREFERRED),
        ctypes.byref(mask), most, ctypes.c_uint(0),
    )  # fmt: skip
    return f"refused, {os.strerror(ctypes.get_errno())}" if failed else ""
