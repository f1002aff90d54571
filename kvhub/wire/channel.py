"""Frames over a stream: out, in, nothing trusted."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterator

from kvhub.wire import frames
from kvhub.wire.stream import Stream

_MOST_UNSENT = 64 * 1024 * 1024
_PIECE = 1 << 18


class Lost(Exception):
    """The connection is over; `reason` is one word."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


def _why(error: OSError) -> str:
    # The peer's alert names the certificate's fault; an errno has its own words.
    return str(error.reason if isinstance(error, ssl.SSLError) else error.strerror)


class Channel:
    """Owns `stream`.  All methods return at once."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.fd = stream.fd
        self.limit = frames.GREETING_LIMIT
        self.ended = False
        """The peer has closed; what it said before was still delivered."""
        self._in = bytearray()
        self._out = bytearray()
        self._seal_out: frames.Seal | None = None
        self._seal_in: frames.Seal | None = None
        self._space = memoryview(bytearray(_PIECE))

    @property
    def unsent(self) -> bool:
        """Whether readiness to write would be of use."""
        return bool(self._out) and not self.stream.waits_for_read

    @property
    def unread(self) -> int:
        """Bytes that came and are part of no frame yet."""
        return len(self._in)

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
                with memoryview(self._out) as out:
                    piece = bytes(out[: 1 << 20])
                sent = self.stream.send([memoryview(piece)])
                del self._out[:sent]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            raise Lost("tls" if isinstance(error, ssl.SSLError) else "peer", f"cannot send: {_why(error)}") from error

    def receive(self) -> Iterator[frames.Any]:
        """Whole frames that have come, each decoded when it is asked for, since one may change the seal of the next.

        Raises Lost, or BadFrame for bytes that no peer of ours sends.
        """
        while True:
            more = self._read()
            while len(self._in) >= 4:
                length = int.from_bytes(self._in[:4], "big")
                if not 1 <= length <= self.limit:
                    raise frames.BadFrame("protocol", f"it announces {length} bytes, allowed are 1 to {self.limit}")
                if len(self._in) < 4 + length:
                    break
                frame = bytes(self._in[4 : 4 + length])
                del self._in[: 4 + length]
                yield frames.decode(frame, self._seal_in)
            if not more:
                return

    def _read(self) -> bool:
        """Take in some; False when nothing more is there now."""
        start = len(self._in)
        try:
            while len(self._in) - start <= self.limit:
                count = self.stream.receive([self._space])
                if not count:
                    self.ended = True
                    return False
                self._in += self._space[:count]
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            kind = "tls" if isinstance(error, ssl.SSLError) else "peer"
            raise Lost(kind, f"connection lost: {_why(error)}") from error
        return True

    def silent(self) -> bool:
        """Read and drop; whether the peer has closed its side, be it by dying."""
        with contextlib.suppress(BlockingIOError, InterruptedError):
            try:
                while self.stream.receive([self._space]):
                    pass
            except (BlockingIOError, InterruptedError):
                return False
            except OSError:
                pass
            return True
        return False

    def end(self) -> None:
        """Say that nothing more will be said."""
        self.stream.end()

    def close(self) -> None:
        self.stream.close()
