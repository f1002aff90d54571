"""How the chunks of a pull are cut into messages, and what one message looks like; both sides reckon alike.

A chunk is cut into parts of at most 2 MiB, so that a large one is checked while the rest of it is under way.  A message
is some parts, one behind the other without padding, and then 16 bytes of check for each: XXH3-128 of the part, seeded
with the key and where in the chunk it begins, so that neither a chunk under another key's name passes nor two parts
that have changed places.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import xxhash

from kvhub.types import Key, Region

GROUP_BYTES = 2 * 1024 * 1024
"""Scattered pieces in messages of this size move nearly as fast as contiguous memory."""
MOST_PIECES = 256
CHECK_BYTES = 16
WINDOW = 6
"""Messages under way on one link: enough to keep the lane busy while the next ones are checked."""
PUT_WINDOW = 64
FLUSH_BYTES = 4 * GROUP_BYTES
"""Puts between two flushes: each costs a round trip and a frame, and what was flushed can be checked meanwhile."""
_SEEDS = (1 << 64) - 1


class Group(NamedTuple):
    """The parts of one message: bytes `starts[i]` to `starts[i] + sizes[i]` of the chunk with index `chunks[i]`.

    Columns instead of a record per part: for ten thousand small chunks the records would cost more than the bytes.
    """

    chunks: Sequence[int]
    starts: Sequence[int]
    sizes: Sequence[int]

    @property
    def checks_bytes(self) -> int:
        return CHECK_BYTES * len(self.chunks)


_NO_STARTS = array("Q", bytes(8 * MOST_PIECES))


def plan(lengths: array[int]) -> list[Group]:
    """The parts of each message; negative lengths are chunks that do not come."""
    most = max(lengths, default=-1)
    if most < 0:
        return []
    coming: Sequence[int] = range(len(lengths))
    if min(lengths) < 0:
        coming = [index for index, length in enumerate(lengths) if length >= 0]
    if most > GROUP_BYTES or min(lengths[index] for index in (coming[0], coming[-1])) < most // 2:
        return _cut(lengths, coming)
    # None has to be cut, and none is much smaller than the largest: as many of them as surely fit.
    step = min(GROUP_BYTES // max(most, 1), MOST_PIECES)
    groups = []
    for at in range(0, len(coming), step):
        chunks = coming[at : at + step]
        sizes = (
            lengths[chunks.start : chunks.stop]
            if isinstance(chunks, range)
            else array("q", [lengths[index] for index in chunks])
        )
        groups.append(Group(chunks, _NO_STARTS[: len(chunks)], sizes))
    return groups


def _cut(lengths: Sequence[int], coming: Sequence[int]) -> list[Group]:
    """Any sizes: parts are put into a message as long as there is room."""
    groups: list[Group] = []
    room = -1
    for index in coming:
        length, start = lengths[index], 0
        while True:
            size = min(length - start, GROUP_BYTES)
            if size > room or len(groups[-1].chunks) == MOST_PIECES:
                groups.append(Group([], [], []))
                room = GROUP_BYTES
            for column, value in zip(groups[-1], (index, start, size), strict=True):
                column.append(value)  # type: ignore[attr-defined]
            room -= size
            start += size
            if start >= length:
                break
    return groups


def check(key: Key, payload: memoryview, start: int = 0) -> bytes:
    """What stands for a part at the end of its message."""
    return xxhash.xxh3_128_digest(payload, (int.from_bytes(key[:8], "little") + start) & _SEEDS)


def checks_of(region: Region, group: Group, keys: Sequence[Key], slots: Sequence[int]) -> list[bytes]:
    """The check of each part of a group, as it lies in the region's slots; `keys` and `slots` by chunk index."""
    view, stride = region.view, region.slot_bytes
    found = []
    for index, start, size in zip(*group, strict=True):
        at = slots[index] * stride + start
        found.append(check(keys[index], view[at : at + size], start))
    return found


def seal_of(keys: Iterable[Key], lengths: Iterable[int], checks: bytes | bytearray) -> bytes:
    """Digest of a commit: XXH3-128 over the keys, the lengths (uint64) and the checks of everything that was sent."""
    state = xxhash.xxh3_128()
    state.update(b"".join(keys))
    state.update(array("Q", lengths).tobytes())
    state.update(checks)
    return state.digest()


def moves(
    region: Region, group: Group, slots: Sequence[int], base: int, slot_bytes: int, theirs: Sequence[int]
) -> list[tuple[int, int, int]]:
    """(own address, other address, bytes) for each stretch that is contiguous on both sides; empty parts left out."""
    found: list[tuple[int, int, int]] = []
    own_base, own_bytes = region.address, region.slot_bytes
    own_end = other_end = -1
    for index, start, size in zip(*group, strict=True):
        own, other = own_base + slots[index] * own_bytes + start, base + theirs[index] * slot_bytes + start
        if own == own_end and other == other_end:
            first, second, before = found[-1]
            found[-1] = (first, second, before + size)
        elif size:
            found.append((own, other, size))
        own_end, other_end = own + size, other + size
    return found


class Pieces:
    """One message as a lane takes it: an array of (address, bytes), the last of which is the checks.

    Keep it until the message's request has ended: the array and the checks are read until then.
    """

    __slots__ = ("_words", "checks", "payload_bytes")

    def __init__(self, region: Region, group: Group, slots: Sequence[int]) -> None:
        words = array("Q")
        base, stride, end, total = region.address, region.slot_bytes, -1, 0
        for index, start, size in zip(*group, strict=True):
            address = base + slots[index] * stride + start
            if address == end:
                words[-1] += size
            elif size:
                words.extend((address, size))
            else:
                continue
            end, total = address + size, total + size
        self.payload_bytes = total
        self.checks = array("B", bytes(group.checks_bytes))
        words.extend((self.checks.buffer_info()[0], group.checks_bytes))
        self._words = words

    @classmethod
    def of(cls, data: array[int]) -> Pieces:
        """A message of its own bytes and nothing else."""
        self = cls.__new__(cls)
        self.payload_bytes, self.checks = 0, data
        self._words = array("Q", (data.buffer_info()[0], len(data) * data.itemsize))
        return self

    @property
    def address(self) -> int:
        """Where the array is in memory."""
        return self._words.buffer_info()[0]

    @property
    def entries(self) -> int:
        """How many (address, bytes) pairs it has."""
        return len(self._words) // 2

    @property
    def message_bytes(self) -> int:
        """Bytes of the whole message, checks included."""
        return self.payload_bytes + len(self.checks)

    def stretches(self) -> list[tuple[int, int]]:
        """(address, bytes) in order."""
        words = self._words
        return list(zip(words[::2], words[1::2], strict=True))
