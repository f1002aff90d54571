"""What moves the bytes: a `Fabric` for all links of a hub, and a `Lane` for one.

The wire calls both from its own thread only.  A lane is one-way traffic between two hubs: the server's lane sends or
puts, the puller's receives.  Requests are positive numbers; 0 stands for one that has ended at once.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import TYPE_CHECKING

from kvhub.types import Region

if TYPE_CHECKING:
    from kvhub.wire.groups import Pieces
    from kvhub.wire.stream import Stream

IN_PROGRESS = 1
"""State of a request that has not ended."""
DONE = 0
"""State of a request that ended well."""
CANCELED = -16
"""State of a receive that was withdrawn; every other negative number is a failure."""


class LaneError(Exception):
    """The lane failed; its link will be cut."""


def _nobody() -> Stream:
    raise LaneError("a server dials nobody")


class Fabric(abc.ABC):
    """What the links of one hub have in common."""

    device_direct = False
    """Whether regions of device memory can be registered, and payloads in them checked.

    No fabric claims it yet: checks are made by the processor, and an unchecked payload is no hit.  What UCX makes of
    device memory is measured by tests/device/ucx_gpu.py."""

    @abc.abstractmethod
    def open(self, region: Region, secret: bytes) -> dict[str, str]:
        """Prove that bytes move, register the region; what was chosen, for the log.  Raises KvhubError."""

    @abc.abstractmethod
    def lane(self, redial: Callable[[], Stream]) -> Lane:
        """A new lane, not connected.  `redial` dials the peer's listener once more, for lanes that need it.

        Raises LaneError, KvhubError or OSError."""

    def server_lane(self) -> Lane:
        """A new lane of the side that sends; it dials nobody."""
        return self.lane(_nobody)

    def ticket(self) -> bytes:
        """What a peer needs, beside addresses, to put into the region (RDMA: the packed remote key)."""
        return b""

    def adopt(self, token: bytes, stream: Stream) -> Lane | None:
        """A peer dialled a second connection and named a lane's token; the lane that took it, None for a stranger's."""
        return None

    def exposed(self) -> str:
        """What of this fabric other machines can reach, "" when nothing."""
        return ""

    def objection(self, names: tuple[str, ...], peer: str) -> str:
        """Why a link to `peer` that came to use these lanes must not be used; empty when all is well."""
        return ""

    @abc.abstractmethod
    def close(self) -> None:
        """All lanes are destroyed; let go of the region.  Idempotent."""


class Lane(abc.ABC):
    """The data side of one link."""

    efd = -1
    """Descriptor that becomes readable when `progress` has something to do, once `arm` has returned True."""
    puts_from: int | None = None
    """Once connected: writing payloads straight into the peer's region is the best that this lane can do with pieces of
    this many bytes and more; None where it never is, and has to be asked for (option `path`)."""
    local = False
    """Once connected: bytes do not leave the memory of this machine."""
    fenced = True
    """Whether `destroy` on the receiving side alone makes late writes impossible.

    False where another process writes by itself (cross-memory attach): then the peer must be known to be silent."""

    @abc.abstractmethod
    def address(self) -> bytes:
        """What the other side's `connect` needs."""

    @abc.abstractmethod
    def connect(self, address: bytes) -> None:
        """Begin to connect.  Raises LaneError."""

    def await_peer(self, address: bytes) -> None:
        """The puller's `connect`: the server sends, so a lane that can be sent to need not do anything.

        Raises LaneError."""
        self.connect(address)

    @abc.abstractmethod
    def names(self) -> tuple[str, ...]:
        """`transport/device` of what is really in use."""

    @property
    @abc.abstractmethod
    def failed(self) -> str:
        """Why the lane is broken, empty while it is well."""

    @abc.abstractmethod
    def send(self, tag: int, pieces: Pieces) -> int:
        """Send pieces as one message; they are lent until the request has ended.  Raises LaneError."""

    @abc.abstractmethod
    def receive(self, tag: int, pieces: Pieces) -> int:
        """Say where the message of that tag goes; lent likewise.  Never 0.  Raises LaneError."""

    @abc.abstractmethod
    def received(self, request: int) -> tuple[int, int]:
        """(status, bytes) of a receive."""

    @abc.abstractmethod
    def status(self, request: int) -> int:
        """Status of a send, put, flush or receive."""

    @abc.abstractmethod
    def cancel(self, request: int) -> None:
        """Withdraw a receive that no message has met; it then ends with CANCELED."""

    @abc.abstractmethod
    def free(self, request: int) -> None:
        """Done with that request."""

    def use_ticket(self, ticket: bytes) -> None:
        """From now on `put` writes into the region of the peer that packed this.  Raises LaneError."""
        raise LaneError("this lane cannot put")

    def put(self, address: int, length: int, remote: int) -> int:
        """Write `length` bytes at `address` to the peer's address `remote`.  Raises LaneError."""
        raise LaneError("this lane cannot put")

    def flush(self) -> int:
        """A request that ends when all puts before it are in the peer's memory."""
        raise LaneError("this lane cannot put")

    @abc.abstractmethod
    def progress(self) -> int:
        """Move things along; 0 when there was nothing to do."""

    @abc.abstractmethod
    def arm(self) -> bool:
        """Whether `efd` will tell of the next event; False: there are events now."""

    @abc.abstractmethod
    def begin_close(self) -> None:
        """Cut the lane off, asking nobody.  Idempotent."""

    @abc.abstractmethod
    def closed(self) -> bool:
        """Whether the cut has ended; call `progress` until then, within reason."""

    @abc.abstractmethod
    def destroy(self) -> None:
        """Afterwards nothing that this lane received or sent touches memory any more (see `fenced`).  Idempotent."""
