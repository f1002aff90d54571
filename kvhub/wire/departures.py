"""How the payloads of one pull go out: as messages, as puts into the puller's region, or read by the puller itself."""

from __future__ import annotations

import abc
import enum
from array import array
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvhub.types import Key
from kvhub.wire import frames
from kvhub.wire.greeting import Refusal
from kvhub.wire.groups import FLUSH_BYTES, PUT_WINDOW, Group, Pieces, checks_of, moves, seal_of
from kvhub.wire.lane import DONE, IN_PROGRESS, Lane, LaneError

if TYPE_CHECKING:
    from kvhub.wire.serve import ServeLink


class Step(enum.Enum):
    WAITING = 1
    """For the source."""
    OFFERED = 2
    """For the puller's go."""
    SENDING = 3
    COMMITTED = 4
    """For the puller's acknowledgement."""
    STOPPED = 5
    """Nothing more will be sent; what was is still under way."""


class Serve(abc.ABC):
    """One pull of a peer."""

    def __init__(
        self,
        link: ServeLink,
        transfer: int,
        keys: list[Key],
        rooms: Sequence[int],
        slots: Sequence[int],
        deadline: float,
    ) -> None:
        self.link = link
        self.transfer = transfer
        self.keys = keys
        self.rooms = rooms
        self.slots = slots
        """Where the puller wants them, for puts."""
        self.deadline = deadline
        self.step = Step.WAITING
        self.ticket: int | None = None
        """Of leases that are to be given back; None again once they were."""
        self.lengths: Sequence[int] = ()
        """Bytes of each chunk, negative where nothing comes."""
        self.held: Sequence[int] = ()
        """The slot of each chunk, 0 where nothing comes."""
        self.count = 0
        """Chunks that were offered."""
        self.groups: list[Group] = []
        self.sent = 0
        """Groups handed to the lane."""
        self.bytes = 0
        self._checks = bytearray()
        """Of the groups so far."""
        self._checked = 0

    @abc.abstractmethod
    def offered(self) -> bytes:
        """The offer is about to be said; slots to say with it."""

    @abc.abstractmethod
    def go(self) -> None:
        """The puller's go.  Raises Refusal where none is due."""

    @property
    @abc.abstractmethod
    def turn(self) -> bool:
        """Whether `send` has something to do and may do it now."""

    @abc.abstractmethod
    def send(self) -> None:
        """One step: about one group.  Raises LaneError."""

    @property
    @abc.abstractmethod
    def under_way(self) -> bool:
        """Whether the lane still reads slots."""

    def advance(self) -> int:
        """See what the lane has done; how many requests ended.  Raises LaneError."""
        return 0

    def release(self, lane: Lane) -> None:  # noqa: B027 - optional by design
        """The lane is about to be destroyed."""

    def check_next(self) -> bytes:
        """Make the checks of the next group."""
        group = self.groups[self._checked]
        if self.link.checked:
            checks = b"".join(checks_of(self.link.wire.region, group, self.keys, self.held))
        else:
            checks = bytes(group.checks_bytes)
        self._checks += checks
        self._checked += 1
        return checks

    def commit(self, checks: bytes | bytearray = b"") -> None:
        """Everything was sent; `checks` are those that the puller does not know yet."""
        self.step = Step.COMMITTED
        keys, lengths = self.keys, self.lengths
        if self.count < len(keys):
            keys = [key for key, length in zip(keys, lengths, strict=True) if length >= 0]
            lengths = [length for length in lengths if length >= 0]
        digest = seal_of(keys, lengths, self._checks)
        self.link.say(frames.Commit(self.transfer, self.count, digest, bytes(checks)))


class MessageServe(Serve):
    """Waits for the puller's receives, then sends message after message."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self._under_way: deque[tuple[int, Pieces]] = deque()

    def offered(self) -> bytes:
        return b""

    def go(self) -> None:
        if self.step is not Step.OFFERED:
            raise Refusal("protocol", "a second go for one pull")
        self.step = Step.SENDING

    @property
    def turn(self) -> bool:
        return self.step is Step.SENDING and self.link.room > 0

    @property
    def under_way(self) -> bool:
        return bool(self._under_way)

    def send(self) -> None:
        pieces = Pieces(self.link.wire.region, self.groups[self.sent], self.held)
        pieces.checks[:] = array("B", self.check_next())
        request = self.link.data.send(self.transfer << 32 | self.sent, pieces)
        if request:
            self._under_way.append((request, pieces))
            self.link.room -= 1
        self.sent, self.bytes = self.sent + 1, self.bytes + pieces.payload_bytes
        if self.sent == len(self.groups):
            self.commit()

    def advance(self) -> int:
        ended, lane = 0, self.link.data
        while self._under_way:
            request, _ = self._under_way[0]
            status = lane.status(request)
            if status == IN_PROGRESS:
                break
            lane.free(request)
            self._under_way.popleft()
            self.link.room += 1
            ended += 1
            if status != DONE:
                raise LaneError(f"a send ended with status {status}")
        return ended

    def release(self, lane: Lane) -> None:
        for request, _ in self._under_way:
            lane.free(request)
        self._under_way.clear()


class PutServe(Serve):
    """Writes into the puller's slots, flushes, and commits when everything is in the puller's memory."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self._puts: deque[tuple[int, int, int]] = deque()
        self._under_way: deque[int] = deque()
        self._flush = 0
        self._flushing = 0
        """Groups that the flush under way speaks for."""
        self._unflushed = 0
        """Bytes put since then."""
        self._landed = 0
        """Bytes of checks that the puller knows."""
        self._dirty = False
        """A put was posted after the last flush began: that it ended here does not mean that it is there."""

    def offered(self) -> bytes:
        self.step = Step.SENDING
        return b""

    def go(self) -> None:
        raise Refusal("protocol", "a go where the server writes by itself")

    @property
    def turn(self) -> bool:
        if self.step is not Step.SENDING:
            return False
        return len(self._under_way) < PUT_WINDOW if self._left else not self._flush

    @property
    def _left(self) -> bool:
        return bool(self._puts) or self.sent < len(self.groups)

    @property
    def under_way(self) -> bool:
        return bool(self._under_way) or self._dirty or bool(self._flush)

    def send(self) -> None:
        lane = self.link.data
        if not self._puts and self.sent < len(self.groups):
            self._fill(self.groups[self.sent])
        while self._puts and len(self._under_way) < PUT_WINDOW:
            own, remote, length = self._puts.popleft()
            self._dirty = True
            request = lane.put(own, length, remote)
            if request:
                self._under_way.append(request)
        if not self._puts and not self._flush and (self._unflushed >= FLUSH_BYTES or not self._left):
            self._begin_flush()

    def _fill(self, group: Group) -> None:
        base, slot_bytes = self.link.remote
        self.check_next()
        self._puts.extend(moves(self.link.wire.region, group, self.held, base, slot_bytes, self.slots))
        self.sent += 1
        size = sum(group.sizes)
        self.bytes, self._unflushed = self.bytes + size, self._unflushed + size

    def _begin_flush(self) -> None:
        """Learn when everything up to here has arrived; more may be put meanwhile."""
        self._flushing, self._unflushed = len(self._checks), 0
        if self._dirty:
            self._dirty = False
            self._flush = self.link.data.flush()
        if not self._flush:
            self._flushed()

    def _flushed(self) -> None:
        if self.step is not Step.SENDING:
            return
        checks = self._checks[self._landed : self._flushing]
        self._landed = self._flushing
        if not self._left and not self._dirty:
            self.commit(checks)
        elif checks:
            self.link.say(frames.Landed(self.transfer, bytes(checks)))

    def advance(self) -> int:
        ended, lane = 0, self.link.data
        while self._under_way:
            status = lane.status(self._under_way[0])
            if status == IN_PROGRESS:
                break
            lane.free(self._under_way.popleft())
            ended += 1
            if status != DONE:
                raise LaneError(f"a put ended with status {status}")
        if self._flush:
            status = lane.status(self._flush)
            if status != IN_PROGRESS:
                lane.free(self._flush)
                self._flush = 0
                ended += 1
                if status != DONE:
                    raise LaneError(f"a flush ended with status {status}")
                self._flushed()
        elif self.step is Step.STOPPED and self._dirty and not self._under_way:
            self._begin_flush()
        return ended

    def release(self, lane: Lane) -> None:
        for request in (*self._under_way, *([self._flush] if self._flush else [])):
            lane.free(request)
        self._under_way.clear()
        self._flush, self._dirty = 0, False


class MappedServe(Serve):
    """The puller reads our slots by itself; all that is done here is to keep them and to say so."""

    _gone = False

    def offered(self) -> bytes:
        return array("Q", self.held).tobytes()

    def go(self) -> None:
        if self._gone:
            raise Refusal("protocol", "a second go for one pull")
        self._gone = True

    @property
    def _ready(self) -> bool:
        return not self.link.checked or self._checked == len(self.groups)

    @property
    def turn(self) -> bool:
        return self.step is Step.OFFERED and (self._gone or not self._ready)

    @property
    def under_way(self) -> bool:
        # The puller may read what is not leased any more: it then gets no commit, and believes nothing.
        return False

    def send(self) -> None:
        if not self._ready:
            self.check_next()
        elif self._gone:
            self.bytes = sum(length for length in self.lengths if length > 0)
            self.commit(self._checks)


KINDS: dict[str, type[Serve]] = {"message": MessageServe, "put": PutServe, "mapped": MappedServe}
