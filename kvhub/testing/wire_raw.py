"""A stranger for the laws of the wire: speaks frames over a plain socket, and stands between two hubs."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import threading
from collections.abc import Callable
from typing import Any

from kvhub.testing.region import LAYOUT
from kvhub.testing.transport_safety import split
from kvhub.testing.wire_hub import Hub
from kvhub.wire import frames

Change = Callable[[bytes, int, int], "bytes | None"]
"""(bytes that pass, how many passed before, which connection: 0 is the first) -> what is passed on; None cuts it."""


class Raw:
    """One connection, blocking; every call ends within `timeout`."""

    def __init__(self, sock: socket.socket, timeout: float = 5.0) -> None:
        self.sock = sock
        sock.settimeout(timeout)
        self._heard = b""
        self._out: frames.Seal | None = None
        self._in: frames.Seal | None = None

    @classmethod
    def dial(cls, address: str, timeout: float = 5.0) -> Raw:
        return cls(socket.create_connection(split(address), timeout=timeout), timeout)

    def send(self, *messages: frames.Message) -> None:
        for message in messages:
            self.sock.sendall(frames.encode(message, self._out))

    def raw(self, data: bytes) -> None:
        """Bytes as they are; a hub that hangs up may do so."""
        with contextlib.suppress(OSError):
            self.sock.sendall(data)

    def heard(self) -> Any:
        """The next message; None when the hub has hung up."""
        while len(self._heard) < 4 or len(self._heard) < 4 + int.from_bytes(self._heard[:4], "big"):
            try:
                more = self.sock.recv(65536)
            except ConnectionError:
                more = b""
            if not more:
                return None
            self._heard += more
        length = int.from_bytes(self._heard[:4], "big")
        frame, self._heard = self._heard[4 : 4 + length], self._heard[4 + length :]
        return frames.decode(frame, self._in)

    def rest(self) -> bytes:
        """Everything until the hub hangs up."""
        found = self._heard
        with contextlib.suppress(ConnectionError):
            while data := self.sock.recv(65536):
                found += data
        return found

    def card(self, hub: Hub, **more: Any) -> frames.Card:
        """A card that fits a hub's."""
        context = hub.transport.context
        return frames.Card("stranger", context.namespace, context.namespace_json, LAYOUT.text, **more)

    def seal(self, secret: bytes, puller: bytes, server: bytes, *, mine: str) -> None:
        """Seal from here on, as the side `mine` does."""
        seals = {way: frames.Seal(secret, f"to {way}".encode(), puller + server) for way in ("server", "puller")}
        self._out = seals["server" if mine == "puller" else "puller"]
        self._in = seals["puller" if mine == "puller" else "server"]

    def greet(self, hub: Hub, steps: int = 9, secret: bytes = b"") -> Any:
        """As a puller that maps: `steps` of Hello, Card and Join; the last answer."""
        nonce = os.urandom(32)
        self.send(frames.Hello(frames.VERSION, nonce))
        answer = self.heard()
        if secret and steps > 1 and isinstance(answer, frames.Challenge):
            self.seal(secret, nonce, answer.nonce, mine="puller")
        for message in (self.card(hub), frames.Join("mapped"))[: max(steps - 1, 0)]:
            if answer is None:
                break
            self.send(message)
            answer = self.heard()
        return answer

    def close(self) -> None:
        self.sock.close()

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Stranger:
    """Listens on a free port and does with each caller what it was given, in threads; `close` ends all of it."""

    def __init__(self, meet: Callable[[Raw], None], host: str = "127.0.0.1") -> None:
        self._meet = meet
        self._listener = socket.create_server((host, 0))
        self.address = f"{host}:{self._listener.getsockname()[1]}"
        self._threads: list[threading.Thread] = []
        self._socks: list[socket.socket] = []
        self._accept = threading.Thread(target=self._run, name="stranger", daemon=True)
        self._accept.start()

    def _run(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self._socks.append(sock)
            thread = threading.Thread(target=self._one, args=(Raw(sock),), name="stranger", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _one(self, raw: Raw) -> None:
        # A hub that hangs up in the middle is what these laws want to see.
        with raw, contextlib.suppress(OSError, frames.BadFrame):
            self._meet(raw)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._accept.join(5.0)
        for sock in self._socks:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5.0)

    def __enter__(self) -> Stranger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def between(target: str, to_server: Change | None = None, to_puller: Change | None = None) -> Stranger:
    """Someone who stands between two hubs, and changes what passes; all connections of a puller go through it."""

    numbers = itertools.count()

    def pump(source: socket.socket, sink: socket.socket, change: Change | None, number: int) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                out = data if change is None else change(data, passed, number)
                passed += len(data)
                if out is None:
                    break
                sink.sendall(out)
        for sock in (source, sink):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def meet(raw: Raw) -> None:
        number = next(numbers)
        with socket.create_connection(split(target), timeout=5.0) as server:
            server.settimeout(None)
            raw.sock.settimeout(None)
            back = threading.Thread(target=pump, args=(server, raw.sock, to_puller, number), daemon=True)
            back.start()
            pump(raw.sock, server, to_server, number)
            back.join(5.0)

    return Stranger(meet)
