"""The machine's own bounds: what a copy, a file and a socket reach without kvhub."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kvhub.codec import copy
from kvhub.member import Bare

FILES = 4
"""Threads that write and read plain files: what directory stores have by default."""
PIECE = 1 << 20


def memory(source: memoryview, target: memoryview, seconds: float) -> float:
    """Bytes per second of copies between two views of one length."""
    return _rate(lambda: _copied(source, target), seconds)


def _copied(source: memoryview, target: memoryview) -> int:
    copy(source, target)
    return source.nbytes


def files(directory: Path, payload: memoryview, seconds: float) -> tuple[float, float]:
    """(written, read) bytes per second of plain files of the payload's size, through the page cache.

    In a directory of its own below `directory`, which is removed.  Raises OSError.
    """
    folder = directory / f".kvhub-bench-{secrets.token_hex(8)}"
    folder.mkdir(mode=0o700)
    try:
        with ThreadPoolExecutor(FILES) as pool:

            def all_of(work: Callable[[Path, memoryview], None]) -> int:
                list(pool.map(work, paths, [payload] * FILES))
                return FILES * payload.nbytes

            paths = [folder / str(number) for number in range(FILES)]
            written = _rate(lambda: all_of(_write), seconds / 2)
            return written, _rate(lambda: all_of(_read), seconds / 2)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def bucket(connect: Callable[[], Bare | None], payload: memoryview, seconds: float) -> tuple[float, float] | None:
    """(written, read) bytes per second of plain requests on as many connections as `files` has threads.

    None where the medium has no such connections.  What was written is removed.  Raises OSError and KvhubError.
    """
    name = f"kvhub-bench-{secrets.token_hex(8)}"
    lanes: list[tuple[Bare, str, memoryview]] = []
    try:
        for number in range(FILES):
            lane = connect()
            if lane is None:
                return None
            lanes.append((lane, f"{name}-{number}", memoryview(bytearray(payload.nbytes))))
        with ThreadPoolExecutor(FILES) as pool:

            def all_of(work: Callable[[tuple[Bare, str, memoryview]], None]) -> int:
                list(pool.map(work, lanes))
                return FILES * payload.nbytes

            try:
                written = _rate(lambda: all_of(lambda lane: lane[0].put(lane[1], payload)), seconds / 2)
                return written, _rate(lambda: all_of(lambda lane: lane[0].get(lane[1], lane[2])), seconds / 2)
            finally:
                for lane, object_name, _ in lanes:
                    with contextlib.suppress(OSError):
                        lane.drop(object_name)
    finally:
        for lane, _, _ in lanes:
            lane.close()


def _write(path: Path, payload: memoryview) -> None:
    # A new file each time, as every chunk is one.
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    with path.open("wb", buffering=0) as file:
        at = 0
        while at < payload.nbytes:
            at += file.write(payload[at:])


def _read(path: Path, payload: memoryview) -> None:
    room = memoryview(bytearray(payload.nbytes))
    with path.open("rb", buffering=0) as file:
        at = 0
        while at < room.nbytes and (got := file.readinto(room[at:])):
            at += got


def loopback(seconds: float) -> float:
    """Bytes per second through one bare TCP connection of this machine, both ends in this process."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = socket.create_connection(server.getsockname())
        receiver, _ = server.accept()
    stop, payload = threading.Event(), bytes(PIECE)

    def send() -> None:
        with contextlib.suppress(OSError):
            while not stop.is_set():
                sender.sendall(payload)

    thread = threading.Thread(target=send, name="kvhub-bench-send", daemon=True)
    room = memoryview(bytearray(PIECE))
    with sender, receiver:
        thread.start()
        rate = _rate(lambda: receiver.recv_into(room), seconds)
        stop.set()
        receiver.shutdown(socket.SHUT_RDWR)
    thread.join(5.0)
    return rate


def _rate(work: Callable[[], int], seconds: float) -> float:
    """Bytes per second of `work`, which returns bytes: once untimed, since first touches cost more, then repeated."""
    work()
    began, moved = time.perf_counter(), 0
    while (took := time.perf_counter() - began) < seconds or not moved:
        moved += work()
    return moved / took if took > 0 else 0.0


def payload(size: int) -> bytes:
    """Bytes that compress as KV does, a little: random ones, of which every second is one of four."""
    data = bytearray(size)
    few = bytes(0x3C + (number & 3) for number in range(256))
    data[0::2] = os.urandom(-(-size // 2))
    data[1::2] = os.urandom(size // 2).translate(few)
    return bytes(data)
