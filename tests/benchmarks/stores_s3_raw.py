"""What the S3 store is held against: PUT and GET by hand on sockets, and a server that costs next to nothing."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import attrs
import stores_raw as raw

from kvhub.chunkfile import payload_checksum
from kvhub_s3.rest import Rest, signature

SOURCE = Path(__file__).with_name("s3_stub.c")
HEADER = bytes(4096)
UNSIGNED = "UNSIGNED-PAYLOAD"


class NoStub(Exception):
    """The stub cannot be had here, and why."""


@contextmanager
def stub(folder: Path) -> Iterator[str]:
    """Compile and start the stub; its endpoint.  Ends with the block.  Raises NoStub."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise NoStub("no C compiler, which makes the stub server")
    binary = folder / "s3_stub"
    subprocess.run([compiler, "-O2", "-pthread", "-o", binary, SOURCE], check=True)
    with subprocess.Popen([binary], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().split()[1]}"
        finally:
            process.kill()


@attrs.define
class Connection:
    """One connection that is asked again and again, each request signed, no payload hashed."""

    rest: Rest
    _socket: socket.socket | None = attrs.field(default=None, init=False)

    def put(self, key: str, payload: memoryview) -> None:
        to = self._request("PUT", key, len(HEADER) + payload.nbytes)
        to.sendall(HEADER)
        to.sendall(payload)
        self._answer(to, memoryview(bytearray()))

    def get(self, key: str, into: memoryview) -> None:
        to = self._request("GET", key, 0)
        header = memoryview(bytearray(len(HEADER)))
        self._answer(to, header, into)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()

    def _request(self, method: str, key: str, length: int) -> socket.socket:
        url = urlsplit(self.rest.base)
        if self._socket is None:
            self._socket = socket.create_connection((url.hostname, url.port))
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        path, stamp = f"{url.path}/{key}", time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        fields = {"host": url.netloc, "x-amz-content-sha256": UNSIGNED, "x-amz-date": stamp}
        signed = signature(self.rest.secrets, self.rest.region, method, path, "", fields, stamp)
        lines = [f"{name}: {value}" for name, value in (fields | {"authorization": signed}).items()]
        head = "\r\n".join([f"{method} {path} HTTP/1.1", *lines, f"content-length: {length}", "", ""])
        self._socket.sendall(head.encode())
        return self._socket

    def _answer(self, to: socket.socket, *into: memoryview) -> None:
        data = b""
        while b"\r\n\r\n" not in data:
            data += to.recv(16384)
        head, _, rest = data.partition(b"\r\n\r\n")
        if head.split(b" ", 2)[1] not in (b"200", b"206"):
            raise SystemExit(f"stores_s3: the server answers {head[:200]!r} to a bare socket")
        for view in into:
            first = rest[: view.nbytes]
            view[: len(first)] = first
            rest, got = rest[len(first) :], len(first)
            while got < view.nbytes:
                got += to.recv_into(view[got:])


def moved(
    rest: Rest, method: str, keys: list[str], memory: memoryview, size: int, threads: int, *, hashing: bool = False
) -> tuple[float, float]:
    """Seconds, and CPU seconds of this process, of one PUT or GET per key, each with its own part of `memory`.

    With `hashing` each part is hashed, too, before a PUT or after a GET.
    """
    connections = [Connection(rest) for _ in range(threads)]

    def one(number: int) -> None:
        part = memory[number * size : (number + 1) * size]
        connection = connections[number % threads]
        if method == "GET":
            connection.get(keys[number], part)
        if hashing:
            payload_checksum(part)
        if method == "PUT":
            connection.put(keys[number], part)

    before = time.process_time()
    took = raw.in_threads(len(keys), one, threads)
    spent = time.process_time() - before
    for connection in connections:
        connection.close()
    return took, spent
