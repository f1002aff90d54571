"""Non-blocking byte streams, plain or TLS, behind two calls."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import ssl
from collections.abc import Sequence

_MOST_BUFFERS = 512


class Stream:
    """Owns a connected or connecting socket.  Both calls raise BlockingIOError when nothing can be done now."""

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

    secure = False
    waits_for_read = False
    """A send has to wait until something was read: readiness to write means nothing now."""

    def send(self, buffers: Sequence[memoryview]) -> int:
        """Bytes taken of the buffers, which are sent one behind the other."""
        return self.sock.sendmsg(buffers[:_MOST_BUFFERS])

    def receive(self, buffers: Sequence[memoryview]) -> int:
        """Bytes put into the buffers; 0 when the peer has closed."""
        return self.sock.recvmsg_into(buffers[:_MOST_BUFFERS])[0]

    def pending(self) -> bool:
        """Whether bytes can be received of which the descriptor does not tell."""
        return False

    def end(self) -> None:
        """Tell the peer that nothing more comes; what it still says can be read."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close the socket at once; what was not sent is lost."""
        self.sock.close()


class TlsStream(Stream):
    """TLS; the handshake is part of the first send or receive."""

    secure = True

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, *, server: bool, host: str = "") -> None:
        super().__init__(sock)
        self._context, self._server, self._host = context, server, host
        self._tls: ssl.SSLSocket | None = None

    def _ready(self) -> ssl.SSLSocket:
        """TLS over a connection that is there: `ssl` would send plain bytes over one that is still being made."""
        if self._tls is None:
            try:
                self.sock.getpeername()
            except OSError as error:
                code = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if code or self._server or error.errno != errno.ENOTCONN:
                    raise OSError(code or error.errno, os.strerror(code or error.errno or 0)) from error
                raise BlockingIOError from error
            self._tls = self._context.wrap_socket(
                self.sock,
                server_side=self._server,
                do_handshake_on_connect=False,
                server_hostname=self._host or None,
            )
            self.sock = self._tls
        return self._tls

    def send(self, buffers: Sequence[memoryview]) -> int:
        self.waits_for_read = False
        try:
            return self._ready().send(next(buffer for buffer in buffers if buffer.nbytes))
        except ssl.SSLWantReadError as error:
            self.waits_for_read = True
            raise BlockingIOError from error
        except ssl.SSLWantWriteError as error:
            raise BlockingIOError from error

    def receive(self, buffers: Sequence[memoryview]) -> int:
        try:
            return self._ready().recv_into(next(buffer for buffer in buffers if buffer.nbytes))
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            raise BlockingIOError from error
        except ssl.SSLEOFError:
            return 0

    def pending(self) -> bool:
        return self._tls is not None and self._tls.pending() > 0


def server_context(certificate: str, key: str, authority: str) -> ssl.SSLContext:
    """TLS for who is dialled; with an authority, a caller without a certificate of it is refused.  Raises OSError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key or None)
    if authority:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(authority)
    return context


def client_context(certificate: str, key: str, authority: str) -> ssl.SSLContext:
    """TLS for who dials: the server's certificate must be of the authority and name the dialled host.

    Raises OSError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key or None)
    if authority:
        context.load_verify_locations(authority)
    else:
        context.load_default_certs()
    return context
