"""Messages over one stream, straight between slots and the socket.

    8 bytes  tag, little endian
    8 bytes  length of what follows
    n bytes  the pieces, one behind the other

A receive has to be posted before its message begins: the wire sends nothing that was not asked for.  All copying is
done by calls of this process, so closing the socket is a complete fence.
"""

from __future__ import annotations

import contextlib
import ctypes
import select
import ssl
import struct
from collections import deque
from collections.abc import Sequence

from kvhub.wire.groups import Pieces
from kvhub.wire.lane import CANCELED, DONE, IN_PROGRESS, Lane
from kvhub.wire.stream import Stream

_HEAD = struct.Struct("<QQ")
_MOST_MESSAGE = 1 << 48
_STEP = 4 << 20
"""Bytes moved before the other links get their turn."""


def _views(pieces: Pieces) -> deque[memoryview]:
    """The memory that a message lists; the caller keeps `pieces` for as long."""
    return deque(
        memoryview((ctypes.c_char * size).from_address(address)).cast("B")
        for address, size in pieces.stretches()
        if size
    )


def _advance(views: deque[memoryview], count: int) -> None:
    """Drop the first `count` bytes."""
    while count:
        first = views[0]
        if count < first.nbytes:
            views[0] = first[count:]
            return
        count -= first.nbytes
        views.popleft()


def _first(views: deque[memoryview]) -> Sequence[memoryview]:
    """As many as one call can take."""
    return [view for view, _ in zip(views, range(256), strict=False)]


class _Receive:
    def __init__(self, pieces: Pieces) -> None:
        self.pieces = pieces
        self.status, self.length = IN_PROGRESS, 0


class TcpLane(Lane):
    """Both ends; only one of them sends."""

    def __init__(self) -> None:
        self._poll = select.epoll()
        self.efd = self._poll.fileno()
        self._stream: Stream | None = None
        self._problem = ""
        self._interest = 0
        self._out: deque[tuple[int, deque[memoryview], object]] = deque()
        """(request, what is left of the message, what must be kept for it)"""
        self._next = 1
        self._sends: dict[int, int] = {}
        self._receives: dict[int, _Receive] = {}
        self._by_tag: dict[int, int] = {}
        self._head = bytearray(_HEAD.size)
        self._in: deque[memoryview] = deque([memoryview(self._head)])
        self._now: _Receive | None = None
        """The message that is coming in; None while its head is awaited."""

    def use(self, stream: Stream) -> None:
        """The connection is there, or being made."""
        self._stream = stream
        self._interest = select.EPOLLIN | (select.EPOLLOUT if self._out else 0)
        self._poll.register(stream.fd, self._interest)

    def say_first(self, data: bytes) -> None:
        """Bytes that go before all messages."""
        self._out.appendleft((0, deque([memoryview(data)]), data))

    def names(self) -> tuple[str, ...]:
        return ("tls/socket" if self._stream is not None and self._stream.secure else "tcp/socket",)

    @property
    def failed(self) -> str:
        return self._problem

    # Requests.

    def _number(self) -> int:
        self._next += 1
        return self._next

    def send(self, tag: int, pieces: Pieces) -> int:
        request = self._number()
        self._sends[request] = IN_PROGRESS
        views = _views(pieces)
        views.appendleft(memoryview(_HEAD.pack(tag, pieces.message_bytes)))
        self._out.append((request, views, pieces))
        return request

    def receive(self, tag: int, pieces: Pieces) -> int:
        request = self._number()
        self._receives[request] = _Receive(pieces)
        self._by_tag[tag] = request
        return request

    def received(self, request: int) -> tuple[int, int]:
        found = self._receives[request]
        return found.status, found.length

    def status(self, request: int) -> int:
        found = self._receives.get(request)
        return found.status if found is not None else self._sends[request]

    def cancel(self, request: int) -> None:
        found = self._receives.get(request)
        if found is not None and found.status == IN_PROGRESS and found is not self._now:
            found.status = CANCELED

    def free(self, request: int) -> None:
        if self._receives.pop(request, None) is not None:
            self._by_tag = {tag: one for tag, one in self._by_tag.items() if one != request}
        self._sends.pop(request, None)

    # Moving.

    def progress(self) -> int:
        if self._stream is None or self._problem:
            return 0
        try:
            return self._push(self._stream) + self._take(self._stream)
        except OSError as error:
            self._problem = str(error.reason if isinstance(error, ssl.SSLError) else error.strerror) or "lost"
            return 1

    def _push(self, stream: Stream) -> int:
        moved = 0
        with contextlib.suppress(BlockingIOError, InterruptedError):
            while self._out and moved < _STEP:
                request, views, _ = self._out[0]
                count = stream.send(_first(views))
                moved += count
                _advance(views, count)
                if not views:
                    self._out.popleft()
                    if request in self._sends:
                        self._sends[request] = DONE
        return moved

    def _take(self, stream: Stream) -> int:
        moved = 0
        with contextlib.suppress(BlockingIOError, InterruptedError):
            while moved < _STEP:
                count = stream.receive(_first(self._in))
                if not count:
                    self._problem = "the peer closed the data connection"
                    return moved + 1
                moved += count
                _advance(self._in, count)
                while not self._in:
                    self._step()
                    if self._problem:
                        return moved
        return moved

    def _step(self) -> None:
        """A head or a message is complete: get ready for what comes next."""
        if self._now is not None:
            self._now.status = DONE
            self._now = None
            self._in.append(memoryview(self._head))
            return
        tag, length = _HEAD.unpack(self._head)
        found = self._receives.get(self._by_tag.get(tag, 0))
        if found is None or found.status != IN_PROGRESS or length > min(found.pieces.message_bytes, _MOST_MESSAGE):
            self._problem = "the peer sends what was not asked for"
            return
        self._now, found.length = found, length
        room = _views(found.pieces)
        while room and length:
            self._in.append(room[0][:length])
            length -= min(length, room.popleft().nbytes)

    def arm(self) -> bool:
        stream = self._stream
        if stream is None or self._problem:
            return True
        wanted = select.EPOLLIN | (select.EPOLLOUT if self._out and not stream.waits_for_read else 0)
        if wanted != self._interest:
            self._poll.modify(stream.fd, wanted)
            self._interest = wanted
        # TLS may hold bytes that no descriptor tells of.
        return not stream.pending()

    # The end.

    def begin_close(self) -> None:
        stream, self._stream = self._stream, None
        self._problem = self._problem or "closed"
        if stream is not None:
            self._poll.unregister(stream.fd)
            stream.close()

    def closed(self) -> bool:
        return True

    def destroy(self) -> None:
        self.begin_close()
        self._out.clear()
        self._in.clear()
        self._receives.clear()
        self._sends.clear()
        self._poll.close()
