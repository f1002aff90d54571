"""Plain sockets: `python -m wire_rows.sockets ROLE CORE`, one TCP connection, sendmsg from slots, recvmsg_into slots.

What any program could do without a library: nothing is leased, nothing is checked, both sides know the slots before.
"""

from __future__ import annotations

import socket
import struct
import sys
import time
from collections.abc import Iterator
from typing import Any

from wire_rows import worker
from wire_rows.cases import NAMES, Case, clear, plain_arena, wrong

IOV_MAX = 1024
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


class Sockets:
    """Both ends; the puller asks with eight bytes: which case, which pull."""

    def __init__(self, role: str) -> None:
        self.memory = plain_arena(role == "server")
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
            for group in _groups(_views(self.memory, case, case.slots_of(number)[0])):
                while group:
                    _cut(group, self.link.sendmsg(group))
        return {}

    def pull(self, case: str, count: int, check: bool) -> dict[str, Any]:
        what, bad, seconds = Case(case), 0, []
        for turn in range(count + check):
            number = self.pulls.get(case, 0)
            self.pulls[case] = number + 1
            source, target = what.slots_of(number)
            checked = check and not turn
            if checked:
                clear(self.memory, what, target)
            groups = list(_groups(_views(self.memory, what, target)))
            start = time.perf_counter()
            self.link.sendall(_ORDER.pack(NAMES.index(case), number))
            for group in groups:
                while group:
                    got = self.link.recvmsg_into(group)[0]
                    if not got:
                        raise ConnectionError("the server's end closed")
                    _cut(group, got)
            took = time.perf_counter() - start
            if checked:
                bad = wrong(self.memory, what, source, target)
            else:
                seconds.append(took)
        return {"seconds": seconds, "bytes": what.total, "wrong": bad}


if __name__ == "__main__":
    ends = Sockets(sys.argv[1])
    worker.run({"listen": ends.listen, "connect": ends.connect, "serve": ends.serve, "pull": ends.pull})
