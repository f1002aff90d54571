"""How the chunks of a pull are cut into messages, and what one message looks like; both sides reckon alike.

A message is the payloads of some chunks, one behind the other without padding, and then 16 bytes of check for each:
XXH3-128 of the payload, seeded with the key, so that a chunk under another key's name does not pass.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

import xxhash

from kvhub.types import Key, Region

GROUP_BYTES = 2 * 1024 * 1024
"""Scattered pieces in messages of this size move nearly as fast as contiguous memory; chunks are never cut."""
MOST_PIECES = 256
CHECK_BYTES = 16
WINDOW = 6
"""Messages under way on one link: enough to keep the lane busy while the next ones are checked."""
PUT_WINDOW = 64


def plan(lengths: Sequence[int]) -> list[list[int]]:
    """Indexes of the chunks of each message; negative lengths are chunks that do not come."""
    groups: list[list[int]] = []
    room = pieces = 0
    for index, length in enumerate(lengths):
        if length < 0:
            continue
        if not groups or length > room or pieces == MOST_PIECES:
            groups.append([])
            room, pieces = GROUP_BYTES, 0
        groups[-1].append(index)
        room, pieces = room - length, pieces + 1
    return groups


def check(key: Key, payload: memoryview) -> bytes:
    """What stands for a chunk at the end of its message."""
    return xxhash.xxh3_128_digest(payload, int.from_bytes(key[:8], "little"))


def seal_of(keys: Iterable[Key], lengths: Iterable[int], checks: Iterable[bytes]) -> bytes:
    """Digest of a commit: XXH3-128 over the keys, the lengths (uint64) and the checks of all chunks that were sent."""
    state = xxhash.xxh3_128()
    state.update(b"".join(keys))
    state.update(array("Q", lengths).tobytes())
    for one in checks:
        state.update(one)
    return state.digest()


def runs(base: int, slot_bytes: int, slots: Sequence[int], lengths: Sequence[int]) -> array[int]:
    """(address, bytes) of each stretch of memory, with neighbours joined, as one flat array of uint64."""
    words = array("Q")
    for slot, length in zip(slots, lengths, strict=True):
        address = base + slot * slot_bytes
        if words and words[-2] + words[-1] == address:
            words[-1] += length
        elif length:
            words.extend((address, length))
    return words


def moves(
    region: Region, slots: Sequence[int], lengths: Sequence[int], base: int, slot_bytes: int, theirs: Sequence[int]
) -> list[tuple[int, int, int]]:
    """(own address, other address, bytes) for each stretch that is contiguous on both sides; empty chunks left out."""
    found: list[tuple[int, int, int]] = []
    own_end = other_end = -1
    for slot, length, there in zip(slots, lengths, theirs, strict=True):
        own, other = region.address + slot * region.slot_bytes, base + there * slot_bytes
        if own == own_end and other == other_end:
            first, second, size = found.pop()
            found.append((first, second, size + length))
        elif length:
            found.append((own, other, length))
        own_end, other_end = own + length, other + length
    return found


class Pieces:
    """One message as a lane takes it: an array of (address, bytes), the last of which is the checks.

    Keep it until the message's request has ended: the array and the checks are read until then.
    """

    __slots__ = ("_words", "checks", "payload_bytes")

    def __init__(self, region: Region, slots: Sequence[int], lengths: Sequence[int]) -> None:
        words = runs(region.address, region.slot_bytes, slots, lengths)
        self.payload_bytes = sum(lengths)
        self.checks = array("B", bytes(CHECK_BYTES * len(lengths)))
        words.extend((self.checks.buffer_info()[0], CHECK_BYTES * len(lengths)))
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
