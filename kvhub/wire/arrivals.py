"""How the payloads of one pull come in: by messages, by the peer's puts, or by our own reading of its arena.

Nothing is visible before the commit has been heard, agrees with what was offered, and every check has been made.  Loops
over chunks are written for ten thousand of them: each costs time that the bytes do not take.
"""

from __future__ import annotations

import abc
import enum
from array import array
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvhub.types import Batch, Completion, Outcome
from kvhub.wire import frames
from kvhub.wire.greeting import Refusal
from kvhub.wire.groups import CHECK_BYTES, Group, Pieces, checks_of, moves, plan, seal_of
from kvhub.wire.lane import CANCELED, DONE, IN_PROGRESS, Lane, LaneError
from kvhub.wire.mapped import SLICE_BYTES, copy

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
        self.reason = ""
        self.moved = 0
        self.offered: array[int] = array("q")
        """Bytes of each chunk, negative where nothing comes; empty until the offer was heard."""
        self.coming: Sequence[int] = ()
        """Indexes of the chunks that were offered."""
        self.groups: list[Group] = []
        self.commit: frames.Commit | None = None
        self._checks = bytearray()
        """What the server says of all parts so far, in order."""
        self._bad: set[int] = set()
        self._settled = False
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
    def take_checks(self, checks: bytes, *, last: bool) -> None:
        """What the server says of the next parts.  Raises Refusal where that cannot be."""

    @abc.abstractmethod
    def stopped(self, groups: int) -> None:
        """The server has stopped and says how much it sent."""

    def release(self, lane: Lane) -> None:  # noqa: B027 - optional by design
        """The lane is about to be destroyed."""

    # What they share.

    def take_offer(self, offer: frames.Offer) -> None:
        """Note what will not come and begin with what will.  Raises Refusal for an offer that lies."""
        count = len(self.batch.keys)
        lengths = numbers("q", offer.lengths, count)
        for length, room in zip(lengths, self.batch.lengths, strict=True):
            if length > room:
                raise Refusal("protocol", f"the peer offers {length} bytes for a room of {room}")
        if offer.generated:
            self._generated = list(numbers("I", offer.generated, count))
        layouts = [self.link.layout_here(text) for text in offer.layouts or [""]]
        if offer.which or any(layouts):
            which = numbers("H", offer.which or bytes(2 * count), count)
            if max(which, default=0) >= len(layouts):
                raise Refusal("protocol", "the peer offers a layout that it does not name")
            self._layouts = [layouts[one] for one in which] if any(layouts) else None
        self.offered = lengths
        if min(lengths, default=0) < 0:
            self.coming = [index for index, length in enumerate(lengths) if length >= 0]
            self.reason = "oversize" if frames.OVERSIZE in lengths else ""
        else:
            self.coming = range(count)
        self.groups = plan(lengths)
        self.step = Step.RUNNING
        if self.coming:
            self.begin(offer)

    @property
    def complete(self) -> bool:
        """Whether everything offered has come, was committed and was judged."""
        if self.step is not Step.RUNNING or self.commit is None or self.under_way:
            return False
        if not self._settled:
            self._settled = True
            self._settle(self.commit)
        return True

    def _settle(self, commit: frames.Commit) -> None:
        coming, keys = self.coming, self.batch.keys
        lengths: Sequence[int] = self.offered
        if len(coming) < len(keys):
            keys, lengths = tuple(keys[index] for index in coming), [lengths[index] for index in coming]
        if seal_of(keys, lengths, self._checks) != commit.digest:
            self._bad.update(coming)
            self.reason = self.reason or "commit"

    def take_commit(self, commit: frames.Commit) -> None:
        """Raises Refusal for a commit that cannot be."""
        if self.step is Step.RUNNING:
            if self.commit is not None or commit.count != len(self.coming):
                raise Refusal("protocol", f"a commit of {commit.count} chunks for {len(self.coming)} offered")
            self.take_checks(commit.checks, last=True)
            self.commit = commit

    def judge(self, group: Group, expected: bytes | bytearray) -> None:
        """Compare the parts of a group in their slots with what the server said of them."""
        batch = self.batch
        if self.link.checked:
            found = checks_of(self.link.wire.region, group, batch.keys, batch.slots)
        else:
            found = [bytes(CHECK_BYTES)] * len(group.chunks)
        if b"".join(found) != expected:
            for place, (chunk, own) in enumerate(zip(group.chunks, found, strict=True)):
                if own != expected[place * CHECK_BYTES : (place + 1) * CHECK_BYTES]:
                    self._bad.add(chunk)
            self.reason = "checksum"

    def spoil(self, group: Group, reason: str) -> None:
        self.reason = reason
        self._bad.update(group.chunks)

    @property
    def good(self) -> int:
        return len(self.coming) - len(self._bad) if self._settled else 0

    def completion(self, rest: Outcome, reason: str) -> Completion:
        """How the batch ended; `rest` is for chunks that were offered, or about which nothing is known."""
        done = self.complete
        one = Outcome.DONE if done else rest
        outcomes = [one] * len(self.batch.keys)
        if len(self.coming) < len(self.offered):
            for index, length in enumerate(self.offered):
                if length < 0:
                    outcomes[index] = Outcome.MISS if length == frames.ABSENT else Outcome.FAILED
        for index in self._bad:
            outcomes[index] = Outcome.CORRUPT
        if done and not self._bad and len(self.coming) == len(self.offered):
            lengths = tuple(self.offered)
        else:
            lengths = tuple(self.offered[index] if found is Outcome.DONE else 0 for index, found in enumerate(outcomes))
        return Completion(
            id=self.batch.id,
            outcomes=tuple(outcomes),
            lengths=lengths,
            layouts=None if self._layouts is None else tuple(self._layouts),
            generated=None if self._generated is None else tuple(self._generated),
            moved=self.moved,
            reason=self.reason if done or (self.offered and not self.coming) else reason or self.reason,
        )


class MessagePull(Pull):
    """Receives are posted, then the server may send; each message carries the checks of its parts."""

    def __init__(self, link: PullLink, batch: Batch, transfer: int, deadline: float) -> None:
        super().__init__(link, batch, transfer, deadline)
        self._posted: deque[tuple[int, int, Pieces, Group]] = deque()

    def begin(self, offer: frames.Offer) -> None:
        region, lane, slots = self.link.wire.region, self.link.data, self.batch.slots
        for number, group in enumerate(self.groups):
            pieces = Pieces(region, group, slots)
            request = lane.receive(self.transfer << 32 | number, pieces)
            self._posted.append((number, request, pieces, group))
        self.link.say(frames.Go(self.transfer))

    @property
    def under_way(self) -> bool:
        return bool(self._posted)

    def advance(self) -> int:
        lane, ended = self.link.data, 0
        while self._posted:
            _, request, pieces, group = self._posted[0]
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
            self.moved += pieces.payload_bytes
            checks = pieces.checks.tobytes()
            self._checks += checks
            if length == pieces.message_bytes:
                self.judge(group, checks)
            else:
                self.spoil(group, "length")
        return ended

    def take_checks(self, checks: bytes, *, last: bool) -> None:
        if checks or not last:
            raise Refusal("protocol", "checks beside those of the messages")

    def stopped(self, groups: int) -> None:
        for number, request, _, _ in self._posted:
            if number >= groups and self.link.data.status(request) == IN_PROGRESS:
                self.link.data.cancel(request)

    def release(self, lane: Lane) -> None:
        for _, request, _, _ in self._posted:
            lane.cancel(request)
            lane.free(request)


class _CheckedLater(Pull):
    """The checks come over the control connection."""

    def __init__(self, link: PullLink, batch: Batch, transfer: int, deadline: float) -> None:
        super().__init__(link, batch, transfer, deadline)
        self._unjudged: deque[Group] = deque()
        self._judged = 0

    def begin(self, offer: frames.Offer) -> None:
        self._unjudged.extend(self.groups)

    @property
    def judging(self) -> bool:
        """Whether checks are at hand that were not made yet."""
        unjudged = self._unjudged
        return bool(unjudged) and self._judged + unjudged[0].checks_bytes <= len(self._checks)

    def judge_next(self) -> int:
        """One group, so that other peers' transfers go on meanwhile."""
        if not self.judging:
            return 0
        group = self._unjudged.popleft()
        end = self._judged + group.checks_bytes
        self.judge(group, self._checks[self._judged : end])
        self._judged = end
        return 1

    def take_checks(self, checks: bytes, *, last: bool) -> None:
        self._checks += checks
        wanted = sum(group.checks_bytes for group in self.groups)
        if len(self._checks) > wanted or (last and len(self._checks) != wanted):
            raise Refusal("protocol", f"{len(self._checks)} bytes of checks where {wanted} are due")


class PutPull(_CheckedLater):
    """The server writes into our slots, says so group by group, and commits."""

    def __init__(self, link: PullLink, batch: Batch, transfer: int, deadline: float) -> None:
        super().__init__(link, batch, transfer, deadline)
        self._open = True
        """From the request on: the server writes without asking again."""
        self.step = Step.RUNNING

    def asked(self) -> bytes:
        return array("Q", self.batch.slots).tobytes()

    def take_offer(self, offer: frames.Offer) -> None:
        super().take_offer(offer)
        self._open = bool(self.coming)

    @property
    def under_way(self) -> bool:
        return self._open or (bool(self._unjudged) and self.step is Step.RUNNING)

    def take_checks(self, checks: bytes, *, last: bool) -> None:
        super().take_checks(checks, last=last)
        if last:
            self._open = False

    def advance(self) -> int:
        if self.judging:
            self.moved += sum(self._unjudged[0].sizes)
        return self.judge_next()

    def stopped(self, groups: int) -> None:
        self._open = False


class MappedPull(_CheckedLater):
    """We read the server's slots; its commit says that they were leased all the while."""

    def __init__(self, link: PullLink, batch: Batch, transfer: int, deadline: float) -> None:
        super().__init__(link, batch, transfer, deadline)
        self._uncopied: deque[Group] = deque()
        self._theirs: array[int] = array("Q")
        self._read = False

    def begin(self, offer: frames.Offer) -> None:
        mapping = self.link.mapping
        assert mapping is not None
        self._theirs = numbers("Q", offer.slots, len(self.offered))
        if max(self._theirs) >= mapping.slots or max(self.offered) > mapping.slot_bytes:
            raise Refusal("protocol", "the peer offers a slot beyond its arena")
        self._uncopied.extend(self.groups)
        if self.link.checked:
            super().begin(offer)

    @property
    def under_way(self) -> bool:
        # Only this thread writes, and not at this moment: what is not done yet need never be.
        left = not self._read or self.commit is None or bool(self._unjudged)
        return left and self.step is Step.RUNNING

    def advance(self) -> int:
        if not self._uncopied:
            return self.judge_next()
        mapping, region, until = self.link.mapping, self.link.wire.region, self.moved + SLICE_BYTES
        assert mapping is not None
        while self._uncopied and self.moved < until:
            group = self._uncopied.popleft()
            for to, source, size in moves(
                region, group, self.batch.slots, mapping.address, mapping.slot_bytes, self._theirs
            ):
                copy(to, source, size)
                self.moved += size
        if not self._uncopied:
            self._read = True
            self.link.say(frames.Go(self.transfer))
        return 1

    def take_checks(self, checks: bytes, *, last: bool) -> None:
        if not self._read or not last:
            raise Refusal("protocol", "a commit of chunks that were not read yet")
        if self.link.checked:
            super().take_checks(checks, last=last)
        elif checks:
            raise Refusal("protocol", "checks of payloads that are not checked")

    def stopped(self, groups: int) -> None:
        self._uncopied.clear()


def numbers(kind: str, data: bytes, count: int) -> array[int]:
    """Raises Refusal unless there are `count` of them."""
    found: array[int] = array(kind)
    if len(data) != count * found.itemsize:
        raise Refusal("protocol", f"expected {count} numbers of {found.itemsize} bytes, heard {len(data)} bytes")
    found.frombytes(data)
    return found
