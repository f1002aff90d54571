"""Data connections: dialled by the puller, recognised by the server by a token that only its peer was told."""

from __future__ import annotations

import os
from collections.abc import Callable

from kvhub.types import Region
from kvhub.wire import frames
from kvhub.wire.lane import Fabric, Lane, LaneError
from kvhub.wire.stream import Stream
from kvhub_tcp.lane import TcpLane


class TcpFabric(Fabric):
    """Keeps the lanes that wait for their connection, by token."""

    def __init__(self) -> None:
        self._secret = b""
        self._waiting: dict[bytes, ServerLane] = {}

    def open(self, region: Region, secret: bytes) -> dict[str, str]:
        self._secret = secret
        return {}

    def lane(self, redial: Callable[[], Stream]) -> Lane:
        return PullerLane(redial, self._secret)

    def server_lane(self) -> Lane:
        token = os.urandom(32)
        lane = self._waiting[token] = ServerLane(token, self._waiting)
        return lane

    def adopt(self, token: bytes, stream: Stream) -> Lane | None:
        lane = self._waiting.pop(token, None)
        if lane is not None:
            lane.use(stream)
        return lane

    def close(self) -> None:
        self._waiting.clear()


class ServerLane(TcpLane):
    """Sends, once the puller has dialled."""

    def __init__(self, token: bytes, waiting: dict[bytes, ServerLane]) -> None:
        super().__init__()
        self._token, self._all = token, waiting

    def address(self) -> bytes:
        return self._token

    def connect(self, address: bytes) -> None:
        """The puller dials; what is sent before waits for that."""

    def begin_close(self) -> None:
        self._all.pop(self._token, None)
        super().begin_close()


class PullerLane(TcpLane):
    """Receives; dials as soon as it knows the token."""

    def __init__(self, redial: Callable[[], Stream], secret: bytes) -> None:
        super().__init__()
        self._redial, self._secret = redial, secret

    def address(self) -> bytes:
        return b""

    def connect(self, address: bytes) -> None:
        if len(address) != 32:
            raise LaneError("the peer told no token for the data connection")
        try:
            stream = self._redial()
        except OSError as error:
            raise LaneError(f"cannot dial the data connection: {error.strerror}") from error
        self.say_first(frames.encode(frames.Attach(address, frames.lane_proof(self._secret, address)), None))
        self.use(stream)
