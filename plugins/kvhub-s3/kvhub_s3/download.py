"""`Downloads`: chunks right from the socket into their slots, for a third of the CPU that obstore takes.

obstore signs the address, so that any credentials will do, and this asks for it: `HEAD`, or `GET` with a range, one
answer after the other on connections that are kept.  Every wait ends at the server's longest silence or the caller's
deadline, whichever is nearer.
"""

from __future__ import annotations

import re
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from email.utils import parsedate_to_datetime
from typing import NamedTuple, TypeVar
from urllib.parse import urlsplit

import attrs

from kvhub.chunkfile import PayloadChecksum
from kvhub.store import Late
from kvhub_s3 import failures

MOST_HEAD = 64 << 10
"""Bytes of an answer's head, or of an error's body, that are looked at."""
PIECE = 4 << 20
"""The most that is taken off the socket at a time, so that it still is in the cache when it is hashed.  Smaller pieces
cost more in turns between threads than they win there."""
IDLE_SECONDS = 15.0
"""Below what servers wait before they close a connection: AWS about 20 s."""
T = TypeVar("T")
_TOTAL = re.compile(r"bytes 0-\d+/(\d+)")
_CODE = re.compile(rb"<Code>\s*(\w{1,64})\s*</Code>")


class Found(NamedTuple):
    """An object as it was when it was seen; equal only for the very same one, as far as the server can tell."""

    size: int
    tag: str
    """Its ETag; empty where the server gives none."""
    modified: int
    """Seconds since 1970 on the server's clock: answers to reads and listings agree to the second only."""


class Read(NamedTuple):
    found: Found
    checksum: bytes
    """`PayloadChecksum` of what was put into the payload's buffer."""


class Empty(Exception):
    """The object has no first byte."""


class _Stale(Exception):
    """A kept connection was closed by the server before it could be asked."""


@attrs.define
class _Connection:
    socket: socket.socket
    fresh: bool = True
    used: float = 0.0

    def wait_at_most(self, seconds: float) -> None:
        if seconds <= 0:
            raise TimeoutError
        self.socket.settimeout(seconds)


@attrs.define
class _Answer:
    connection: _Connection
    status: int
    fields: dict[str, str]
    """The head's fields, names in lower case."""
    rest: bytes
    """What came of the body with the head."""
    over: bool = False
    """Whether nothing more of it is to come."""


@attrs.define
class Downloads:
    """Connections to one server.  Thread-safe; a call takes a connection of its own."""

    connect_timeout: float
    stall_timeout: float
    load_timeout: float
    tls: ssl.SSLContext | None
    time_left: Callable[[], float]
    _idle: deque[_Connection] = attrs.field(factory=deque, init=False)
    _closed: bool = attrs.field(default=False, init=False)

    def get(self, url: str, header: memoryview, payload: memoryview) -> Read | None:
        """Fill `header`, then `payload`, as far as the object goes; None where there is none.

        Raises `Failure`, Late, and Empty for an object of no bytes.
        """
        return self._once_more_if_stale(lambda end: self._get(url, header, payload, end))

    def head(self, url: str) -> Found | None:
        """The object, or None where there is none.  Raises `Failure` and Late."""
        return self._once_more_if_stale(lambda end: self._head(url, end))

    def close(self) -> None:
        """Close what is idle; calls under way close theirs."""
        self._closed = True
        self._drop_idle()

    def _drop_idle(self) -> None:
        with suppress(IndexError):
            while True:
                self._idle.pop().socket.close()

    def _once_more_if_stale(self, call: Callable[[float], T]) -> T:
        end = time.monotonic() + self.load_timeout
        try:
            try:
                return call(end)
            except _Stale:
                self._drop_idle()
                return call(end)
        except (OSError, ValueError) as error:
            if isinstance(error, TimeoutError) and self.time_left() <= 0:
                raise Late from None
            raise meaning(error) from None
        except _Stale:
            raise failures.Broken("the connection broke off") from None

    def _get(self, url: str, header: memoryview, payload: memoryview, end: float) -> Read | None:
        room = header.nbytes + payload.nbytes
        with self._asking("GET", url, end, f"Range: bytes=0-{room - 1}\r\n") as answer:
            length = int(answer.fields.get("content-length", "-1"))
            if answer.status in (200, 206) and length < 0:
                raise failures.Refused("an answer without its length")
            if answer.status not in (200, 206):
                body = self._small(answer, length, end)
                answer.over = body is not None
                _hold_to_absent(answer.status, body or b"")
                return None
            if length > room:
                raise failures.Broken("more bytes than were asked for")
            checksum = self._body(answer, length, header, payload, end)
            answer.over = True
            total = _TOTAL.match(answer.fields.get("content-range", ""))
            found = _found(int(total[1]) if total else length, answer.fields)
            if length != min(found.size, room):
                raise failures.Broken("fewer bytes than the object has")
            return Read(found, checksum)

    def _head(self, url: str, end: float) -> Found | None:
        with self._asking("HEAD", url, end) as answer:
            answer.over = True
            if answer.status != 200:
                _hold_to_absent(answer.status, b"")
                return None
            if "content-length" not in answer.fields:
                raise failures.Refused("an answer without its length")
            return _found(int(answer.fields["content-length"]), answer.fields)

    @contextmanager
    def _asking(self, method: str, url: str, end: float, more: str = "") -> Iterator[_Answer]:
        """One request on a connection that is kept if its answer is over by the end of the block."""
        to = urlsplit(url)
        connection = self._connected(to.hostname or "", to.port or (443 if to.scheme == "https" else 80))
        answer = None
        try:
            head = f"{method} {to.path}?{to.query} HTTP/1.1\r\nHost: {to.netloc}\r\n{more}\r\n"
            answer = self._asked(connection, head.encode(), end)
            yield answer
        finally:
            keeps = answer is not None and answer.over and answer.fields.get("connection", "").lower() != "close"
            if keeps and not self._closed:
                connection.fresh, connection.used = False, time.monotonic()
                self._idle.append(connection)
            else:
                connection.socket.close()

    def _connected(self, host: str, port: int) -> _Connection:
        with suppress(IndexError):
            while True:
                kept = self._idle.pop()
                if time.monotonic() - kept.used < IDLE_SECONDS:
                    return kept
                kept.socket.close()
        bare = socket.create_connection((host, port), min(self.connect_timeout, max(0.001, self.time_left())))
        try:
            bare.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return _Connection(bare if self.tls is None else self.tls.wrap_socket(bare, server_hostname=host))
        except BaseException:
            bare.close()
            raise

    def _patience(self, end: float) -> float:
        return min(self.stall_timeout, end - time.monotonic(), self.time_left())

    def _asked(self, connection: _Connection, request: bytes, end: float) -> _Answer:
        """Send, and take the head of the answer."""
        data = bytearray()
        try:
            connection.wait_at_most(self._patience(end))
            connection.socket.sendall(request)
            while (at := data.find(b"\r\n\r\n")) < 0:
                connection.wait_at_most(self._patience(end))
                more = connection.socket.recv(MOST_HEAD)
                if not more or len(data) > MOST_HEAD:
                    raise ConnectionResetError
                data += more
        except (ConnectionError, ssl.SSLEOFError):
            if not connection.fresh and not data:
                raise _Stale from None
            raise
        first, *lines = data[:at].decode("latin-1").split("\r\n")
        fields = {name.lower(): text.strip() for name, _, text in (line.partition(":") for line in lines)}
        return _Answer(connection, int(first.split(" ", 2)[1]), fields, bytes(data[at + 4 :]))

    def _small(self, answer: _Answer, length: int, end: float) -> bytes | None:
        """An error's body; None where it does not say its length or is large."""
        if not 0 <= length <= MOST_HEAD:
            return None
        rest = answer.rest
        while len(rest) < length:
            answer.connection.wait_at_most(self._patience(end))
            more = answer.connection.socket.recv(length - len(rest))
            if not more:
                raise ConnectionResetError
            rest += more
        return rest

    def _body(self, answer: _Answer, length: int, header: memoryview, payload: memoryview, end: float) -> bytes:
        """Take `length` bytes into the buffers; the payload's checksum."""
        connection, rest = answer.connection, answer.rest
        checksum = PayloadChecksum()
        for view, hashing in ((header[:length], False), (payload[: max(0, length - header.nbytes)], True)):
            got, hashed = min(len(rest), view.nbytes), 0
            view[:got], rest = rest[:got], rest[got:]
            while True:
                if hashing:
                    checksum.add(view[hashed:got])
                    hashed = got
                if got == view.nbytes:
                    break
                connection.wait_at_most(self._patience(end))
                more = connection.socket.recv_into(view[got : got + PIECE])
                if not more:
                    raise failures.Broken("the connection broke off")
                got += more
        return checksum.digest()


def _found(size: int, fields: dict[str, str]) -> Found:
    made = parsedate_to_datetime(fields["last-modified"]) if "last-modified" in fields else None
    return Found(size, fields.get("etag", ""), int(made.timestamp()) if made else 0)


def _hold_to_absent(status: int, body: bytes) -> None:
    """Raise what an answer without an object means, unless it is that there is none."""
    code = _CODE.search(body)
    said = code[1].decode() if code else ""
    if status == 404 and said != "NoSuchBucket":
        return
    if status == 416:
        raise Empty
    raise failures.of_status(status, said, body.decode("latin-1"))


def meaning(error: Exception) -> failures.Failure:
    """What an error of sockets and of TLS means."""
    if isinstance(error, TimeoutError):
        return failures.Timeout("no answer in time")
    if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
        return failures.BadTls(error.reason or "TLS")
    if isinstance(error, ConnectionRefusedError | socket.gaierror) or type(error) is OSError:
        return failures.Unreachable("no connection")
    return failures.Broken("the connection broke off")
