"""What stores are held against: the same bytes moved with nothing but the system's own calls."""

from __future__ import annotations

import json
import mmap
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import xxhash

MIB = 1 << 20


def memory(size: int) -> memoryview:
    """Aligned memory that has been touched."""
    view = memoryview(mmap.mmap(-1, size))
    for at in range(0, size, MIB):
        view[at : at + MIB] = os.urandom(4096) * (min(MIB, size - at) // 4096)
    return view


def in_threads(count: int, call: Callable[[int], None], threads: int) -> float:
    """Seconds of `call(0)` to `call(count - 1)`, dealt out to threads."""

    def some(first: int) -> None:
        for number in range(first, count, threads):
            call(number)

    workers = [threading.Thread(target=some, args=(first,)) for first in range(threads)]
    start = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return time.perf_counter() - start


def copies(source: memoryview, target: memoryview, size: int) -> float:
    """Seconds of one memcpy per chunk, over memory larger than any cache."""
    start = time.perf_counter()
    for at in range(0, target.nbytes, size):
        target[at : at + size] = source[at : at + size]
    return time.perf_counter() - start


def writes(folder: Path, source: memoryview, size: int, threads: int, *, hashing: bool = False) -> float:
    """Seconds of one new file per chunk: open, writev of header and payload, close.

    With `hashing` each payload is hashed before, once and at a stretch.
    """
    header = memory(4096)

    def one(number: int) -> None:
        piece = source[number * size : (number + 1) * size]
        if hashing:
            xxhash.xxh3_128_digest(piece)
        fd = os.open(folder / str(number), os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        os.writev(fd, [header, piece])
        os.close(fd)

    return in_threads(source.nbytes // size, one, threads)


def fio(folder: Path, rw: str, total: int, size: int, jobs: int) -> float:
    """Seconds that fio's psync engine takes with O_DIRECT, `jobs` calls at once, for one file per chunk.

    Reads are of the files that the last write has left.
    """
    command = [
        "fio", "--name=kv", f"--directory={folder}", "--ioengine=psync", "--direct=1", f"--rw={rw}", f"--bs={size}",
        f"--size={total // jobs}", f"--numjobs={jobs}", f"--nrfiles={total // size // jobs}", f"--filesize={size}",
        "--file_service_type=sequential", "--openfiles=1", "--create_on_open=1", "--fallocate=none",
        "--group_reporting", "--output-format=json",
    ]  # fmt: skip
    told = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    moved = int(told["jobs"][0][rw]["io_bytes"])
    if moved != total:
        raise SystemExit(f"stores: fio moved {moved} of {total} bytes; the figures would mean nothing")
    return total / float(told["jobs"][0][rw]["bw_bytes"])


def has_fio() -> bool:
    return shutil.which("fio") is not None


def direct(folder: Path, rw: str, target: memoryview, size: int, threads: int, *, hashing: bool = False) -> float:
    """The same with a loop of our own, where there is no fio, or which hashes, too: before a write, after a read."""

    def one(number: int) -> None:
        piece = target[number * size : (number + 1) * size]
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC if rw == "write" else os.O_RDONLY
        if hashing and rw == "write":
            xxhash.xxh3_128_digest(piece)
        fd = os.open(folder / str(number), flags | os.O_DIRECT)
        moved = os.writev(fd, [piece]) if rw == "write" else os.preadv(fd, [piece], 0)
        os.close(fd)
        if hashing and rw == "read":
            xxhash.xxh3_128_digest(piece)
        if moved != size:
            raise SystemExit(f"stores: a raw {rw} moved {moved} of {size} bytes; the figures would mean nothing")

    return in_threads(target.nbytes // size, one, threads)
