"""Plain sockets: `python -m wire_rows.sockets ROLE CORE`, one TCP connection, sendmsg from slots, recvmsg_into slots.

What any program could do without a library: nothing is leased, nothing is checked, both sides know the slots before.
With `-checked` behind the role, the one thing that no transport of kvhub leaves out on a network is added: XXH3-128 of
every 2 MiB at both ends, the sender's told after the bytes.
"""

from __future__ import annotations

import socket
import struct
import sys
import time
from collections.abc import Iterator
from typing import Any

import xxhash

from wire_rows import worker
from wire_rows.cases import NAMES, Case, clear, plain_arena, wrong

IOV_MAX = 1024
PART = 2 << 20
_ORDER = struct.Struct("<II")


def _views(memory: memoryview, case: Case, slots: list[int]) -> list[memoryview]:
    """One view for each run of adjacent slots."""
    found, start = [], 0
    for at in range(1, len(slots) + 1):
        if at == len(slots) or slots[at] != slots[at - 1] + 1:
            found.append(memory[slots[start] * case.bytes : (slots[at - 1] + 1) * case.bytes])
            start = at
    return found


def _cut(views: list[memoryview], done: int) -> None:
    """Drop the first `done` bytes."""
    gone = 0
    while gone < len(views) and done >= views[gone].nbytes:
        done -= views[gone].nbytes
        gone += 1
    del views[:gone]
    if done:
        views[0] = views[0][done:]


def _groups(views: list[memoryview]) -> Iterator[list[memoryview]]:
    for at in range(0, len(views), IOV_MAX):
        yield views[at : at + IOV_MAX]


def _parts(memory: memoryview, case: Case, slots: list[int]) -> Iterator[list[memoryview]]:
    """Groups of 2 MiB, so that what was hashed is sent, and what came is hashed, while it may be in the cache.

    Nothing is joined across chunks: the slots of the two ends are different, and each hash has to be of the same bytes.
    """
    step = max(1, PART // case.bytes)
    for at in range(0, len(slots), step):
        chunks = [memory[slot * case.bytes : (slot + 1) * case.bytes] for slot in slots[at : at + step]]
        for start in range(0, case.bytes, PART):
            yield [chunk[start : start + PART] for chunk in chunks]


class Sockets:
    """Both ends; the puller asks with eight bytes: which case, which pull."""

    def __init__(self, role: str) -> None:
        self.memory = plain_arena(role.startswith("server"))
        self.checked = role.endswith("-checked")
        self.link = socket.socket()
        self.pulls: dict[str, int] = {}

    def listen(self, host: str) -> dict[str, Any]:
        self.link.bind((host, 0))
        self.link.listen(1)
        return {"port": self.link.getsockname()[1]}

    def connect(self, host: str, port: int) -> dict[str, Any]:
        self.link.connect((host, port))
        self.link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return {}

    def serve(self, count: int) -> dict[str, Any]:
        """Answer `count` pulls on the connection."""
        if self.link.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            self.link, _ = self.link.accept()
            self.link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(count):
            index, number = _ORDER.unpack(self.link.recv(_ORDER.size, socket.MSG_WAITALL))
            case = Case(NAMES[index])
            digests = []
            for group in self._groups(case, case.slots_of(number)[0]):
                digests += self._digests(group)
                while group:
                    _cut(group, self.link.sendmsg(group))
            self.link.sendall(b"".join(digests))
        return {}

    def _digests(self, group: list[memoryview]) -> list[bytes]:
        return [xxhash.xxh3_128_digest(view) for view in group] if self.checked else []

    def _groups(self, case: Case, slots: list[int]) -> Iterator[list[memoryview]]:
        return _parts(self.memory, case, slots) if self.checked else _groups(_views(self.memory, case, slots))

    def pull(self, case: str, count: int, check: bool) -> dict[str, Any]:
        what, bad, seconds = Case(case), 0, []
        for turn in range(count + check):
            number = self.pulls.get(case, 0)
            self.pulls[case] = number + 1
            source, target = what.slots_of(number)
            checked = check and not turn
            if checked:
                clear(self.memory, what, target)
            groups = list(self._groups(what, target))
            start = time.perf_counter()
            self.link.sendall(_ORDER.pack(NAMES.index(case), number))
            digests = []
            for group in groups:
                left = list(group)
                while left:
                    got = self.link.recvmsg_into(left)[0]
                    if not got:
                        raise ConnectionError("the server's end closed")
                    _cut(left, got)
                digests += self._digests(group)
            said = self.link.recv(16 * len(digests), socket.MSG_WAITALL) if digests else b""
            took = time.perf_counter() - start
            bad += said != b"".join(digests)
            if checked:
                bad += wrong(self.memory, what, source, target)
            else:
                seconds.append(took)
        return {"seconds": seconds, "bytes": what.total, "wrong": bad}


if __name__ == "__main__":
    ends = Sockets(sys.argv[1])
    worker.run({"listen": ends.listen, "connect": ends.connect, "serve": ends.serve, "pull": ends.pull})
