"""UCX as a fabric of kvhub's wire: one context for the hub, one worker for each link."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from kvhub.types import MemberContext, Region
from kvhub.wire.groups import Pieces
from kvhub.wire.lane import IN_PROGRESS, Fabric, Lane, LaneError
from kvhub.wire.stream import Stream
from kvhub_ucx import _lanes, _settings
from kvhub_ucx._libucp import Context, UcxError, Worker
from kvhub_ucx._opening import open_context
from kvhub_ucx.config import Config

_BY_THE_PROCESS = ("cma", "knem", "xpmem")
"""The peer's processor writes: nothing that is done here keeps it from it."""
_WITHIN_THE_MACHINE = (*_BY_THE_PROCESS, "posix", "sysv", "self")
"""UCX takes one of these only to a peer on this machine, and then prefers it to TCP for everything large."""
_BY_DEVICES = ("rc", "dc", "ud", "srd", "gga")
"""A network device writes, as long as our end of the connection exists."""
_TCP_PUTS_FROM = 256 * 1024
"""Over TCP a put is read from the socket straight into the slot, where a message is copied once more; it costs more for
each piece, so that below this size (bytes) messages are faster."""


class UcxFabric(Fabric):
    """Opened and used on the wire's thread."""

    def __init__(self, config: Config, context: MemberContext) -> None:
        self._config = config
        self._name = context.name
        self._report = context.report
        self._log = structlog.get_logger("kvhub.ucx").bind(member=context.name)
        self._context: Context | None = None

    def open(self, region: Region, secret: bytes) -> dict[str, str]:
        self._context, facts = open_context(self._config, self._name, region)
        return facts

    def lane(self, redial: Callable[[], Stream]) -> Lane:
        assert self._context is not None
        return UcxLane(Worker(self._context))

    def ticket(self) -> bytes:
        assert self._context is not None
        return self._context.ticket()

    def exposed(self) -> str:
        return _settings.exposed(self._config)

    def objection(self, names: tuple[str, ...], peer: str) -> str:
        problem = _lanes.lacking(self._config, names)
        if problem and self._config.require_action == "warn":
            self._report("lane_unwanted", 1)
            self._log.warning("wire.lane_unwanted", peer=peer, text=problem)
            return ""
        return problem

    def close(self) -> None:
        context, self._context = self._context, None
        if context is not None:
            context.close()


class UcxLane(Lane):
    """One worker with one endpoint; its errors are the lane's."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self.efd = worker.efd
        self._closing = 0
        self._lanes: tuple[str, ...] = ()

    def address(self) -> bytes:
        return self._worker.address()

    def connect(self, address: bytes) -> None:
        try:
            self._worker.connect(address)
            self._lanes = self._worker.lanes()
            kinds = tuple(name.partition("/")[0].partition("_")[0] for name in self._lanes)
            self.fenced = not any(kind in _BY_THE_PROCESS for kind in kinds)
            self.local = any(kind in _WITHIN_THE_MACHINE for kind in kinds)
            if any(kind in _BY_THE_PROCESS + _BY_DEVICES for kind in kinds):
                self.puts_from = 0
            elif "tcp" in kinds and not self.local:
                self.puts_from = _TCP_PUTS_FROM
        except UcxError as error:
            raise LaneError(str(error)) from error

    def await_peer(self, address: bytes) -> None:
        """UCX makes the receiving end by itself when the peer connects.

        An endpoint of our own would meet the peer's half-way, and UCX 1.21 then now and then frees a TCP connection
        that the endpoint still names: closing it ended the process (seen once in eight cut links of a stress test).
        """

    def use_ticket(self, ticket: bytes) -> None:
        try:
            self._worker.use_ticket(ticket)
        except UcxError as error:
            raise LaneError(str(error)) from error

    def names(self) -> tuple[str, ...]:
        # What UCX can say of an endpoint is complete only once it is connected.
        if self._worker.endpoint is not None:
            self._lanes = self._worker.lanes() or self._lanes
        return self._lanes

    @property
    def failed(self) -> str:
        return self._worker.library.text(self._worker.failed) if self._worker.failed else ""

    def send(self, tag: int, pieces: Pieces) -> int:
        return self._try(self._worker.send, tag, pieces.address, pieces.entries)

    def receive(self, tag: int, pieces: Pieces) -> int:
        return self._try(self._worker.receive, tag, pieces.address, pieces.entries)

    def put(self, address: int, length: int, remote: int) -> int:
        return self._try(self._worker.put, address, length, remote)

    def flush(self) -> int:
        return self._try(self._worker.flush)

    @staticmethod
    def _try(call: Callable[..., int], *arguments: int) -> int:
        try:
            return call(*arguments)
        except UcxError as error:
            raise LaneError(str(error)) from error

    def received(self, request: int) -> tuple[int, int]:
        return self._worker.received(request)

    def status(self, request: int) -> int:
        return self._worker.status(request)

    def cancel(self, request: int) -> None:
        self._worker.cancel(request)

    def free(self, request: int) -> None:
        self._worker.free(request)

    def progress(self) -> int:
        return self._worker.progress()

    def arm(self) -> bool:
        return self._worker.arm()

    def begin_close(self) -> None:
        try:
            self._closing = self._worker.force_close()
        except UcxError:
            self._closing = 0

    def closed(self) -> bool:
        return not self._closing or self._worker.status(self._closing) != IN_PROGRESS

    def destroy(self) -> None:
        if self.closed():
            # All puts have ended.  Else the key is left to the context: a leak is better than a pointer to nothing.
            self._worker.drop_ticket()
        if self._closing:
            self._worker.free(self._closing)
            self._closing = 0
        self._worker.destroy()
