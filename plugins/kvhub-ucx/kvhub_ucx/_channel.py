"""A non-blocking control connection: frames in, frames out, nothing trusted."""

from __future__ import annotations

import socket
from collections.abc import Iterator

from kvhub_ucx import _frames as frames

_MOST_UNSENT = 64 * 1024 * 1024


class Lost(Exception):
    """The connection is over; `reason` is one word."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class Channel:
    """Owns `sock`.  All methods return at once."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Finds the silent death of a whole machine behind an idle link; busy links have deadlines.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
        self.sock = sock
        self.fd = sock.fileno()
        self.limit = frames.GREETING_LIMIT
        self.ended = False
        """The peer has closed; what it said before was still delivered."""
        self._in = bytearray()
        self._out = bytearray()
        self._seal_out: frames.Seal | None = None
        self._seal_in: frames.Seal | None = None

    @property
    def unsent(self) -> bool:
        return bool(self._out)

    def seal(self, outgoing: frames.Seal, incoming: frames.Seal) -> None:
        """Every frame from now on carries a seal, in both directions."""
        self._seal_out, self._seal_in = outgoing, incoming

    def send(self, message: frames.Message, *, plain: bool = False) -> None:
        """Queue a frame and send what the socket takes.  Raises Lost."""
        self._out += frames.encode(message, None if plain else self._seal_out)
        if len(self._out) > _MOST_UNSENT:
            raise Lost("peer", "the peer does not read what it is sent")
        self.flush()

    def flush(self) -> None:
        try:
            while self._out:
                del self._out[: self.sock.send(memoryview(self._out)[: 1 << 20].tobytes())]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            raise Lost("peer", f"cannot send: {error.strerror}") from error

    def receive(self) -> Iterator[frames.Any]:
        """Whole frames that have come, each decoded when it is asked for, since one may change the seal of the next.

        Raises Lost, or BadFrame for bytes that no peer of ours sends.
        """
        try:
            while len(self._in) <= self.limit:
                data = self.sock.recv(1 << 18)
                if not data:
                    self.ended = True
                    break
                self._in += data
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            raise Lost("peer", f"connection lost: {error.strerror}") from error
        while len(self._in) >= 4:
            length = int.from_bytes(self._in[:4], "big")
            if not 1 <= length <= self.limit:
                raise frames.BadFrame("protocol", f"it announces {length} bytes, allowed are 1 to {self.limit}")
            if len(self._in) < 4 + length:
                break
            frame = bytes(self._in[4 : 4 + length])
            del self._in[: 4 + length]
            yield frames.decode(frame, self._seal_in)

    def close(self) -> None:
        self.sock.close()
