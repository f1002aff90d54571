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
_SEEDS = (1 << 64) - 1


class Part(NamedTuple):
    """Bytes `start` to `start + size` of a chunk, which is named by its index in the pull."""

    chunk: int
    start: int
    size: int


Group = list[Part]


def plan(lengths: Sequence[int]) -> list[Group]:
    """The parts of each message; negative lengths are chunks that do not come."""
    groups: list[Group] = []
    group: Group = []
    room, many = -1, MOST_PIECES
    for index, length in enumerate(lengths):
        if length < 0:
            continue
        start = 0
        while True:
            size = min(length - start, GROUP_BYTES)
            if size > room or len(group) == many:
                group = []
                groups.append(group)
                room = GROUP_BYTES
            group.append(Part(index, start, size))
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
    for index, start, size in group:
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
    for index, start, size in group:
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
        for index, start, size in group:
            address = base + slots[index] * stride + start
            if address == end:
                words[-1] += size
            elif size:
                words.extend((address, size))
            else:
                continue
            end, total = address + size, total + size
        self.payload_bytes = total
        self.checks = array("B", bytes(CHECK_BYTES * len(group)))
        words.extend((self.checks.buffer_info()[0], CHECK_BYTES * len(group)))
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
        return self._words.buffer_info()[0]

    @property
    def entries(self) -> int:
        return len(self._words) // 2

    @property
    def message_bytes(self) -> int:
        return self.payload_bytes + len(self.checks)

    def stretches(self) -> list[tuple[int, int]]:
        """(address, bytes) in order."""
        words = self._words
        return list(zip(words[::2], words[1::2], strict=True))
