"""How the payloads of one pull go out: as messages, as puts into the puller's region, or read by the puller itself."""

from __future__ import annotations

import abc
import enum
from array import array
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvhub.types import Held, Key
from kvhub.wire import frames
from kvhub.wire.greeting import Refusal
from kvhub.wire.groups import GROUP_BYTES, PUT_WINDOW, Pieces, check, moves, plan, seal_of
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
        self.coming: list[tuple[int, Held]] = []
        """(index of the key, what is held) of each chunk that was offered."""
        self.checks: list[bytes] = []
        """Of `coming`, as far as they have been made."""
        self.sent = 0
        """Groups handed to the lane."""
        self.bytes = 0

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

    def check_next(self, count: int) -> int:
        """Make the checks of the next `count` chunks; their bytes."""
        region, size = self.link.wire.region, 0
        for index, held in self.coming[len(self.checks) : len(self.checks) + count]:
            self.checks.append(check(self.keys[index], region.slot(held.slot, held.length)))
            size += held.length
        return size

    def commit(self, *, checks: bool) -> None:
        """Everything was sent."""
        self.step = Step.COMMITTED
        keys, lengths = [self.keys[index] for index, _ in self.coming], [held.length for _, held in self.coming]
        digest = seal_of(keys, lengths, self.checks)
        said = b"".join(self.checks) if checks else b""
        self.link.say(frames.Commit(self.transfer, len(self.coming), digest, said))


class MessageServe(Serve):
    """Waits for the puller's receives, then sends message after message."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self._groups: list[list[int]] = []
        self._under_way: deque[tuple[int, Pieces]] = deque()

    def offered(self) -> bytes:
        self._groups = plan([held.length for _, held in self.coming])
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
        region, places = self.link.wire.region, self._groups[self.sent]
        helds = [self.coming[place][1] for place in places]
        pieces = Pieces(region, [held.slot for held in helds], [held.length for held in helds])
        self.check_next(len(places))
        checks = b"".join(self.checks[places[0] : places[-1] + 1])
        pieces.checks[:] = array("B", checks)
        request = self.link.data.send(self.transfer << 32 | self.sent, pieces)
        if request:
            self._under_way.append((request, pieces))
            self.link.room -= 1
        self.sent, self.bytes = self.sent + 1, self.bytes + pieces.payload_bytes
        if self.sent == len(self._groups):
            self.commit(checks=False)

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
        self._groups: deque[list[int]] = deque()
        self._puts: deque[tuple[int, int, int]] = deque()
        self._under_way: deque[int] = deque()
        self._flush = 0
        self._dirty = False
        """A put was posted after the last flush: that it ended here does not mean that it is there."""

    def offered(self) -> bytes:
        self._groups.extend(plan([held.length for _, held in self.coming]))
        self.step = Step.SENDING
        return b""

    def go(self) -> None:
        raise Refusal("protocol", "a go where the server writes by itself")

    @property
    def turn(self) -> bool:
        return self.step is Step.SENDING and len(self._under_way) < PUT_WINDOW and not self._flush

    @property
    def under_way(self) -> bool:
        return bool(self._under_way) or self._dirty

    def send(self) -> None:
        lane = self.link.data
        if not self._puts and self._groups:
            self._fill(self._groups.popleft())
        while self._puts and len(self._under_way) < PUT_WINDOW:
            own, remote, length = self._puts.popleft()
            self._dirty = True
            request = lane.put(own, length, remote)
            if request:
                self._under_way.append(request)
        if not self._puts and not self._groups:
            self._settle()

    def _fill(self, places: list[int]) -> None:
        base, slot_bytes = self.link.remote
        some = [self.coming[place] for place in places]
        helds = [held for _, held in some]
        theirs = [self.slots[index] for index, _ in some]
        self.bytes += self.check_next(len(places))
        slots, lengths = [held.slot for held in helds], [held.length for held in helds]
        self._puts.extend(moves(self.link.wire.region, slots, lengths, base, slot_bytes, theirs))
        self.sent += 1

    def _settle(self) -> None:
        """Make sure that all puts have arrived, then commit if that was all of them."""
        if self._dirty:
            self._flush = self.link.data.flush()
            self._dirty = bool(self._flush)
        if not self._dirty and self.step is Step.SENDING:
            self.commit(checks=True)

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
                self._flush, self._dirty = 0, False
                ended += 1
                if status != DONE:
                    raise LaneError(f"a flush ended with status {status}")
                self._settle()
        elif self.step is Step.STOPPED and self._dirty and not self._under_way:
            self._settle()
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
        slots = array("Q", bytes(8 * len(self.keys)))
        for index, held in self.coming:
            slots[index] = held.slot
        return slots.tobytes()

    def go(self) -> None:
        if self._gone:
            raise Refusal("protocol", "a second go for one pull")
        self._gone = True

    @property
    def _checked(self) -> bool:
        return self.link.wire.config.checksum != "always" or len(self.checks) == len(self.coming)

    @property
    def turn(self) -> bool:
        return self.step is Step.OFFERED and (self._gone or not self._checked)

    @property
    def under_way(self) -> bool:
        # The puller may read what is not leased any more: it then gets no commit, and believes nothing.
        return False

    def send(self) -> None:
        size = 0
        while not self._checked and size < GROUP_BYTES:
            size += self.check_next(1)
        if self._gone and self._checked:
            self.bytes = sum(held.length for _, held in self.coming)
            self.commit(checks=bool(self.checks))


KINDS: dict[str, type[Serve]] = {"message": MessageServe, "put": PutServe, "mapped": MappedServe}
