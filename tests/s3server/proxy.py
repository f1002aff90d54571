"""`FaultProxy`: HTTP to a real server, failing on demand.

It reads whole requests and whole answers, so that a fault is of a request and not of a connection.  A fault says
which requests it hits and what becomes of them; without one everything passes.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

import attrs


class Request(NamedTuple):
    method: str
    target: str
    """Path and query."""
    head: str
    """Request line and headers, in lower case."""


@attrs.define
class Fault:
    """What happens to requests of `methods`, the next `times` of them, or all."""

    kind: str
    """One of:

    answer          `status`, `code`, `text` and `headers` in place of the server's answer
    hang            no answer
    reset, close    the connection ends in place of an answer, with a reset or without
    cut, stall      half of the body, then the end of the connection, or silence
    drip            the body a byte at a time, `seconds` apart
    slow            the answer `seconds` late
    etag            another ETag
    garble          one byte of the body changed
    """
    methods: tuple[str, ...] = ("GET", "HEAD", "PUT", "POST", "DELETE")
    times: int | None = None
    status: int = 503
    code: str = "SlowDown"
    text: str = ""
    headers: tuple[str, ...] = ()
    seconds: float = 0.05
    only: Callable[[Request], bool] = lambda request: True
    hits: int = attrs.field(default=0, init=False)

    def takes(self, request: Request) -> bool:
        if request.method not in self.methods or not self.only(request) or self.times == 0:
            return False
        self.hits += 1
        if self.times is not None:
            self.times -= 1
        return True


@attrs.define
class FaultProxy:
    """A proxy with a thread of its own, between `start` and `stop`."""

    upstream: int
    tls: ssl.SSLContext | None = None
    """With it the proxy is asked over TLS; the server behind it never is."""
    port: int = attrs.field(default=0, init=False)
    fault: Fault | None = attrs.field(default=None, init=False)
    seen: list[Request] = attrs.field(factory=list, init=False)
    """Every request that came, also those that were made to fail."""
    open_connections: int = attrs.field(default=0, init=False)
    most_connections: int = attrs.field(default=0, init=False)
    _loop: asyncio.AbstractEventLoop = attrs.field(init=False)
    _thread: threading.Thread | None = attrs.field(default=None, init=False)
    _tasks: set[asyncio.Task[None]] = attrs.field(factory=set, init=False)

    @property
    def endpoint(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    @contextmanager
    def failing(self, kind: str, **more: object) -> Iterator[Fault]:
        """Fail inside the block."""
        self.fault = fault = Fault(kind, **more)  # type: ignore[arg-type]
        try:
            yield fault
        finally:
            self.fault = None

    def start(self) -> None:
        """Listen, on the same port as before if it was started before."""
        self._loop = asyncio.new_event_loop()
        ready = threading.Event()

        async def serve() -> None:
            server = await asyncio.start_server(self._connected, "127.0.0.1", self.port, limit=1 << 20, ssl=self.tls)
            self.port = server.sockets[0].getsockname()[1]
            ready.set()
            async with server:
                await server.serve_forever()

        def run() -> None:
            asyncio.set_event_loop(self._loop)
            with suppress(asyncio.CancelledError):
                self._loop.run_until_complete(serve())
            for task in (waiting := asyncio.all_tasks(self._loop)):
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*waiting, return_exceptions=True))
            self._loop.close()

        self._thread = threading.Thread(target=run, name="fault-proxy", daemon=True)
        self._thread.start()
        assert ready.wait(10), "the proxy did not start"

    def stop(self) -> None:
        def end() -> None:
            for task in asyncio.all_tasks(self._loop):
                task.cancel()

        if self._thread is not None:
            self._loop.call_soon_threadsafe(end)
            self._thread.join(10)
            self._thread = None

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open_connections += 1
        self.most_connections = max(self.most_connections, self.open_connections)
        try:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                behind = await asyncio.open_connection("127.0.0.1", self.upstream, limit=1 << 20)
                try:
                    while await self._exchange(reader, writer, *behind):
                        pass
                finally:
                    behind[1].close()
        finally:
            self.open_connections -= 1
            writer.close()

    async def _exchange(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        back: asyncio.StreamReader,
        forth: asyncio.StreamWriter,
    ) -> bool:
        """One request; whether the connection may have another."""
        head = await reader.readuntil(b"\r\n\r\n")
        method, target = head.decode("latin-1").split(" ", 2)[:2]
        request = Request(method, target, head.decode("latin-1").lower())
        self.seen.append(request)
        body = await _body(reader, head, method)
        fault = self.fault
        if fault is None or not fault.takes(request):
            forth.write(head + body)
            answer, rest = await _answer(back, method)
            writer.write(answer + rest)
            await writer.drain()
            return True
        return await self._fail(fault, request, head + body, writer, back, forth)

    async def _fail(
        self,
        fault: Fault,
        request: Request,
        whole: bytes,
        writer: asyncio.StreamWriter,
        back: asyncio.StreamReader,
        forth: asyncio.StreamWriter,
    ) -> bool:
        if fault.kind == "answer":
            body = b"" if request.method == "HEAD" or not fault.code else _xml(fault)
            lines = [f"HTTP/1.1 {fault.status} Fault", f"Content-Length: {len(body)}", *fault.headers, "", ""]
            writer.write("\r\n".join(lines).encode() + body)
            await writer.drain()
            return True
        if fault.kind == "hang":
            await asyncio.sleep(3600)
        if fault.kind == "reset":
            writer.transport.abort()
            return False
        if fault.kind == "close":
            return False
        forth.write(whole)
        answer, rest = await _answer(back, request.method)
        if fault.kind == "etag":
            lines = [
                line if not line.lower().startswith(b"etag:") else b'ETag: "another"' for line in answer.split(b"\r\n")
            ]
            answer = b"\r\n".join(lines)
        if fault.kind == "garble" and rest:
            rest = bytes([rest[0] ^ 1]) + rest[1:]
        if fault.kind == "slow":
            await asyncio.sleep(fault.seconds)
        if fault.kind in ("cut", "stall"):
            rest = rest[: len(rest) // 2]
        if fault.kind == "drip":
            writer.write(answer)
            for at in range(len(rest)):
                writer.write(rest[at : at + 1])
                await writer.drain()
                await asyncio.sleep(fault.seconds)
            return False
        writer.write(answer + rest)
        await writer.drain()
        if fault.kind == "stall":
            await asyncio.sleep(3600)
        return fault.kind in ("etag", "garble", "slow")


def _xml(fault: Fault) -> bytes:
    return f'<?xml version="1.0"?><Error><Code>{fault.code}</Code><Message>fault</Message>{fault.text}</Error>'.encode()


def _field(head: bytes, name: bytes) -> bytes:
    for line in head.split(b"\r\n"):
        if line.lower().startswith(name + b":"):
            return line.partition(b":")[2].strip()
    return b""


async def _body(reader: asyncio.StreamReader, head: bytes, method: str) -> bytes:
    length = int(_field(head, b"content-length") or 0)
    return await reader.readexactly(length) if length else b""


async def _answer(back: asyncio.StreamReader, method: str) -> tuple[bytes, bytes]:
    head = await back.readuntil(b"\r\n\r\n")
    if method == "HEAD" or head.split(b" ", 2)[1] in (b"204", b"304"):
        return head, b""
    if _field(head, b"transfer-encoding").lower() != b"chunked":
        return head, await _body(back, head, method)
    rest = b""
    while True:
        line = await back.readuntil(b"\r\n")
        piece = await back.readexactly(int(line.split(b";")[0], 16) + 2)
        rest += line + piece
        if piece == b"\r\n":
            return head, rest
