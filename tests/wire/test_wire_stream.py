"""TLS that does not block, also over a connection that is still being made."""

from __future__ import annotations

import contextlib
import select
import socket
import time
from pathlib import Path

import pytest

from kvhub.testing.wire_certs import make
from kvhub.wire.stream import Stream, TlsStream, client_context, server_context


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> tuple[object, object]:
    options = make(tmp_path_factory.mktemp("certificates"))
    files = (options["tls_cert"], "", options["tls_ca"])
    return server_context(*files), client_context(*files)


def _connecting(address: tuple[str, int]) -> socket.socket:
    sock = socket.socket()
    sock.setblocking(False)
    sock.connect_ex(address)
    return sock


def _made(sock: socket.socket) -> bool:
    with contextlib.suppress(OSError):
        sock.getpeername()
        return True
    return False


def _exchange(one: Stream, other: Stream, data: bytes, seconds: float = 20.0) -> bytes:
    """Send from one to the other, both non-blocking."""
    left, found, space, end = memoryview(data), b"", memoryview(bytearray(1 << 16)), time.monotonic() + seconds
    while len(found) < len(data):
        assert time.monotonic() < end, f"{len(found)} of {len(data)} bytes came"
        with contextlib.suppress(BlockingIOError):
            left = left[one.send([left]) :] if left else left
        with contextlib.suppress(BlockingIOError):
            found += space[: other.receive([space])]
        if not left or one.waits_for_read:
            with contextlib.suppress(BlockingIOError):
                one.receive([memoryview(bytearray(1))])
        time.sleep(0.001)
    return found


def test_a_connection_that_takes_its_time(contexts: tuple[object, object]) -> None:
    """As on any real network: nothing is sent before it is there, and then everything is TLS."""
    server, client = contexts
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        # Once its queue is full, the kernel lets connections wait.
        waiting: list[socket.socket] = []
        while not waiting or _made(waiting[-1]):
            waiting.append(stack.enter_context(_connecting(listener.getsockname())))
            time.sleep(0.05)
            assert len(waiting) < 20
        last = waiting[-1]
        stream = TlsStream(last, client, server=False, host="127.0.0.1")  # type: ignore[arg-type]
        for _ in range(3):
            with pytest.raises(BlockingIOError):
                stream.send([memoryview(b"hello")])
            with pytest.raises(BlockingIOError):
                stream.receive([memoryview(bytearray(10))])
        accepted = [listener.accept()[0] for _ in waiting[:-1]]
        listener.settimeout(20.0)
        select.select([], [stream.fd], [], 20.0)
        accepted.append(listener.accept()[0])
        for sock in accepted:
            stack.enter_context(sock)
        other = TlsStream(accepted[-1], server, server=True)  # type: ignore[arg-type]
        assert accepted[-1].getpeername() == last.getsockname()
        assert _exchange(stream, other, b"hello" * 100) == b"hello" * 100
        stream.close()
        other.close()


def test_a_connection_that_is_refused(contexts: tuple[object, object]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        address = gone.getsockname()
    stream = TlsStream(_connecting(address), contexts[1], server=False, host="127.0.0.1")  # type: ignore[arg-type]
    with pytest.raises(ConnectionRefusedError):
        stream.send([memoryview(b"hello")])
    stream.close()


def test_a_caller_that_is_gone_again(contexts: tuple[object, object], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        caller = socket.create_connection(listener.getsockname())
        sock, _ = listener.accept()
        caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        caller.close()
    stream = TlsStream(sock, contexts[0], server=True)  # type: ignore[arg-type]
    with pytest.raises(OSError) as caught:
        stream.receive([memoryview(bytearray(10))])
    assert not isinstance(caught.value, BlockingIOError)
    stream.close()
