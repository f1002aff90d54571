"""How the payloads of one pull come in: by messages, by the peer's puts, or by our own reading of its arena.

Nothing is visible before the commit has been heard, agrees with what was offered, and every check has been made.
"""

from __future__ import annotations

import abc
import enum
from array import array
from collections import deque
from typing import TYPE_CHECKING

from kvhub.types import Batch, Completion, Outcome
from kvhub.wire import frames
from kvhub.wire.greeting import Refusal
from kvhub.wire.groups import CHECK_BYTES, GROUP_BYTES, Pieces, check, moves, plan, seal_of
from kvhub.wire.lane import CANCELED, DONE, IN_PROGRESS, Lane, LaneError
from kvhub.wire.mapped import copy

if TYPE_CHECKING:
    from kvhub.wire.pull import PullLink


class Step(enum.Enum):
    ASKED = 1
    """Nothing can reach a slot: the batch may end at any time."""
    RUNNING = 2
    STOPPING = 3
    """The server was told to stop; what it sent before may still come."""


class Pull(abc.ABC):
    """One LOAD batch on its way."""

    def __init__(self, link: PullLink, batch: Batch, transfer: int, deadline: float) -> None:
        self.link = link
        self.batch = batch
        self.transfer = transfer
        self.deadline = deadline
        self.step = Step.ASKED
        self.cut_at = float("inf")
        """STOPPING: when to stop being patient."""
        self.outcomes: list[Outcome | None] = [None] * len(batch.keys)
        self.lengths = [0] * len(batch.keys)
        self.reason = ""
        self.moved = 0
        self.offered: list[int] = []
        self.commit: frames.Commit | None = None
        self._layouts: list[str] | None = None
        self._generated: list[int] | None = None

    # What the paths do differently.

    def asked(self) -> bytes:
        """Slots to tell the server with the request."""
        return b""

    @abc.abstractmethod
    def begin(self, offer: frames.Offer) -> None:
        """The offer is sound, and something will come.  Raises Refusal and LaneError."""

    @property
    @abc.abstractmethod
    def under_way(self) -> bool:
        """Whether a slot may be written to."""

    @abc.abstractmethod
    def advance(self) -> int:
        """See what has come; how many steps that was.  Raises LaneError."""

    @abc.abstractmethod
    def settle(self, commit: frames.Commit) -> None:
        """The commit has come: look at what it says.  Raises Refusal."""

    @abc.abstractmethod
    def stopped(self, groups: int) -> None:
        """The server has stopped and says how much it sent."""

    def release(self, lane: Lane) -> None:  # noqa: B027 - optional by design
        """The lane is about to be destroyed."""

    # What they share.

    def take_offer(self, offer: frames.Offer) -> None:
        """Mark what will not come and begin with what will.  Raises Refusal for an offer that lies."""
        count = len(self.batch.keys)
        lengths = numbers("q", offer.lengths, count)
        generated = numbers("I", offer.generated or bytes(4 * count), count)
        which = numbers("H", offer.which or bytes(2 * count), count)
        for index, length in enumerate(lengths):
            if length < 0:
                self.outcomes[index] = Outcome.MISS if length == frames.ABSENT else Outcome.FAILED
                self.reason = self.reason or ("oversize" if length != frames.ABSENT else "")
            elif length > self.batch.lengths[index]:
                raise Refusal("protocol", f"the peer offers {length} bytes for a room of {self.batch.lengths[index]}")
        if max(which, default=0) >= max(len(offer.layouts), 1):
            raise Refusal("protocol", "the peer offers a layout that it does not name")
        if any(generated):
            self._generated = list(generated)
        layouts = [self.link.layout_here(text) for text in offer.layouts or [""]]
        if any(layouts):
            self._layouts = [layouts[one] for one in which]
        self.offered = list(lengths)
        self.step = Step.RUNNING
        if self.coming:
            self.begin(offer)

    @property
    def coming(self) -> list[int]:
        """Indexes of the chunks that were offered."""
        return [index for index, length in enumerate(self.offered) if length >= 0]

    @property
    def complete(self) -> bool:
        """Whether everything offered has come and was committed."""
        return self.step is Step.RUNNING and self.commit is not None and not self.under_way

    def take_commit(self, commit: frames.Commit) -> None:
        """Raises Refusal for a commit that cannot be."""
        if self.step is Step.RUNNING:
            if self.commit is not None or commit.count != len(self.coming):
                raise Refusal("protocol", f"a commit of {commit.count} chunks for {len(self.coming)} offered")
            self.commit = commit
            self.settle(commit)

    def agrees(self, checks: list[bytes]) -> bool:
        """Whether the commit speaks for these checks of the chunks that came."""
        assert self.commit is not None
        coming = self.coming
        keys, lengths = (self.batch.keys[index] for index in coming), (self.offered[index] for index in coming)
        return seal_of(keys, lengths, checks) == self.commit.digest

    def judge(self, index: int, expected: bytes) -> None:
        """Compare a payload in its slot with what the server said of it."""
        payload = self.link.wire.region.slot(self.batch.slots[index], self.offered[index])
        if check(self.batch.keys[index], payload) == expected:
            self.outcomes[index] = Outcome.DONE
        else:
            self.spoil([index], "checksum")

    def spoil(self, indexes: list[int], reason: str) -> None:
        self.reason = reason
        for index in indexes:
            self.outcomes[index] = Outcome.CORRUPT

    @property
    def good(self) -> int:
        return sum(one is Outcome.DONE for one in self.outcomes)

    def completion(self, rest: Outcome, reason: str) -> Completion:
        """How the batch ended; `rest` is for chunks about which nothing is known, or that were never committed."""
        found: list[Outcome | None] = list(self.outcomes)
        if not self.complete:
            found = [None if one is Outcome.DONE else one for one in found]
        outcomes = tuple(rest if one is None else one for one in found)
        return Completion(
            id=self.batch.id,
            outcomes=outcomes,
            lengths=tuple(self.offered[index] if one is Outcome.DONE else 0 for index, one in enumerate(outcomes)),
            layouts=None if self._layouts is None else tuple(self._layouts),
            generated=None if self._generated is None else tuple(self._generated),
            moved=self.moved,
            reason=reason if any(one is None for one in found) else self.reason,
        )


class MessagePull(Pull):
    """Receives are posted, then the server may send; each message carries the checks of its payloads."""

    def __init__(self, link: PullLink, batch: Batch, transfer: int, deadline: float) -> None:
        super().__init__(link, batch, transfer, deadline)
        self._posted: deque[tuple[int, int, Pieces, list[int]]] = deque()
        self._checks: dict[int, bytes] = {}

    def begin(self, offer: frames.Offer) -> None:
        region, lane = self.link.wire.region, self.link.data
        for number, indexes in enumerate(plan(self.offered)):
            slots = [self.batch.slots[index] for index in indexes]
            pieces = Pieces(region, slots, [self.offered[index] for index in indexes])
            request = lane.receive(self.transfer << 32 | number, pieces)
            self._posted.append((number, request, pieces, indexes))
        self.link.say(frames.Go(self.transfer))

    @property
    def under_way(self) -> bool:
        return bool(self._posted)

    def advance(self) -> int:
        lane, ended = self.link.data, 0
        while self._posted:
            _, request, pieces, indexes = self._posted[0]
            status, length = lane.received(request)
            if status == IN_PROGRESS:
                break
            lane.free(request)
            self._posted.popleft()
            ended += 1
            if status == CANCELED:
                continue
            if status != DONE:
                raise LaneError(f"a receive ended with status {status}")
            self._verify(pieces, indexes, whole=length == pieces.message_bytes)
        if ended and self.complete:
            self._conclude()
        return ended

    def _verify(self, pieces: Pieces, indexes: list[int], *, whole: bool) -> None:
        self.moved += pieces.payload_bytes
        if not whole:
            self.spoil(indexes, "length")
            return
        checks = pieces.checks.tobytes()
        for place, index in enumerate(indexes):
            self._checks[index] = checks[place * CHECK_BYTES : (place + 1) * CHECK_BYTES]
            self.judge(index, self._checks[index])

    def settle(self, commit: frames.Commit) -> None:
        # Messages and frames come over two connections: the last message may still be under way.
        if self.complete:
            self._conclude()

    def _conclude(self) -> None:
        if not self.agrees([self._checks.get(index, b"") for index in self.coming]):
            self.spoil(self.coming, self.reason or "commit")

    def stopped(self, groups: int) -> None:
        for number, request, _, _ in self._posted:
            if number >= groups and self.link.data.status(request) == IN_PROGRESS:
                self.link.data.cancel(request)

    def release(self, lane: Lane) -> None:
        for _, request, _, _ in self._posted:
            lane.cancel(request)
            lane.free(request)


class PutPull(Pull):
    """The server writes into our slots, flushes, and commits with the checks."""

    def __init__(self, link: PullLink, batch: Batch, transfer: int, deadline: float) -> None:
        super().__init__(link, batch, transfer, deadline)
        self._open = True
        """From the request on: the server writes without asking again."""
        self.step = Step.RUNNING
        self._judged: deque[tuple[int, bytes]] = deque()

    def asked(self) -> bytes:
        return array("Q", self.batch.slots).tobytes()

    def begin(self, offer: frames.Offer) -> None:
        """Nothing to do: it is under way."""

    @property
    def under_way(self) -> bool:
        return self._open or bool(self._judged)

    def settle(self, commit: frames.Commit) -> None:
        checks = cut(commit.checks, commit.count)
        self._open = False
        self.moved = sum(self.offered[index] for index in self.coming)
        if self.agrees(checks):
            self._judged.extend(zip(self.coming, checks, strict=True))
        else:
            self.spoil(self.coming, "commit")

    def advance(self) -> int:
        done = size = 0
        # In steps, so that other peers' transfers go on meanwhile.
        while self._judged and size < GROUP_BYTES:
            index, expected = self._judged.popleft()
            self.judge(index, expected)
            done, size = done + 1, size + self.offered[index]
        return done

    def stopped(self, groups: int) -> None:
        self._open = False
        self._judged.clear()

    def take_offer(self, offer: frames.Offer) -> None:
        super().take_offer(offer)
        if not self.coming:
            self._open = False


class MappedPull(Pull):
    """We read the server's slots; its commit says that they were leased all the while."""

    def __init__(self, link: PullLink, batch: Batch, transfer: int, deadline: float) -> None:
        super().__init__(link, batch, transfer, deadline)
        self._moves: deque[tuple[int, int, int]] = deque()
        self._read = False
        self._judged: deque[tuple[int, bytes]] = deque()

    def begin(self, offer: frames.Offer) -> None:
        mapping = self.link.mapping
        assert mapping is not None
        theirs, coming = numbers("Q", offer.slots, len(self.offered)), self.coming
        if any(theirs[index] >= mapping.slots or self.offered[index] > mapping.slot_bytes for index in coming):
            raise Refusal("protocol", "the peer offers a slot beyond its arena")
        self._moves.extend(
            moves(
                self.link.wire.region,
                [self.batch.slots[index] for index in coming],
                [self.offered[index] for index in coming],
                mapping.address,
                mapping.slot_bytes,
                [theirs[index] for index in coming],
            )
        )

    @property
    def under_way(self) -> bool:
        # Only this thread writes, and not at this moment: what is not done yet need never be.
        return self.step is Step.RUNNING and (bool(self._moves) or bool(self._judged) or self.commit is None)

    def advance(self) -> int:
        done = size = 0
        while self._moves and size < GROUP_BYTES:
            to, source, length = self._moves.popleft()
            if length > GROUP_BYTES:
                self._moves.appendleft((to + GROUP_BYTES, source + GROUP_BYTES, length - GROUP_BYTES))
                length = GROUP_BYTES
            copy(to, source, length)
            done, size = done + 1, size + length
        self.moved += size
        if not self._moves and not self._read:
            self._read = True
            self.link.say(frames.Go(self.transfer))
        while self._judged and size < GROUP_BYTES:
            index, expected = self._judged.popleft()
            self.judge(index, expected)
            done, size = done + 1, size + self.offered[index]
        return done

    def settle(self, commit: frames.Commit) -> None:
        coming, checks = self.coming, cut(commit.checks, commit.count) if commit.checks else []
        if not self._read:
            raise Refusal("protocol", "a commit of chunks that were not read yet")
        if not checks and self.link.wire.config.checksum == "always":
            # The server has its own opinion of what needs a check; ours counts here.
            self.spoil(coming, "unchecked")
        elif not self.agrees(checks):
            self.spoil(coming, "commit")
        elif checks:
            self._judged.extend(zip(coming, checks, strict=True))
        else:
            for index in coming:
                self.outcomes[index] = Outcome.DONE

    def stopped(self, groups: int) -> None:
        self._moves.clear()
        self._judged.clear()


def numbers(kind: str, data: bytes, count: int) -> array[int]:
    """Raises Refusal unless there are `count` of them."""
    found: array[int] = array(kind)
    if len(data) != count * found.itemsize:
        raise Refusal("protocol", f"expected {count} numbers of {found.itemsize} bytes, heard {len(data)} bytes")
    found.frombytes(data)
    return found


def cut(checks: bytes, count: int) -> list[bytes]:
    """Raises Refusal unless there are `count` of them."""
    if len(checks) != count * CHECK_BYTES:
        raise Refusal("protocol", f"expected {count} checks, heard {len(checks)} bytes")
    return [checks[at : at + CHECK_BYTES] for at in range(0, len(checks), CHECK_BYTES)]
