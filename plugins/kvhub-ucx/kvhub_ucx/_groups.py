"""How the chunks of a pull are cut into messages, and what one message looks like; both sides reckon alike.

A message is the payloads of some chunks, one behind the other without padding, and then 16 bytes of check for each:
XXH3-128 of the payload, seeded with the key, so that a chunk under another key's name does not pass.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import xxhash

from kvhub.types import Key, Region

GROUP_BYTES = 2 * 1024 * 1024
"""Scattered pieces in messages of this size move nearly as fast as contiguous memory; chunks are never cut."""
MOST_PIECES = 256
CHECK_BYTES = 16
WINDOW = 6
"""Messages under way on one link: enough to keep the lane busy while the next ones are checked."""


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


class Pieces:
    """One message as UCX takes it: an array of (address, bytes), with neighbouring slots joined.

    Keep it until the message's request has ended: UCX reads the array and the checks until then.
    """

    __slots__ = ("_words", "checks", "payload_bytes")

    def __init__(self, region: Region, slots: Sequence[int], lengths: Sequence[int]) -> None:
        words = array("Q")
        for slot, length in zip(slots, lengths, strict=True):
            address = region.address + slot * region.slot_bytes
            if words and words[-2] + words[-1] == address:
                words[-1] += length
            elif length:
                words.extend((address, length))
        self.payload_bytes = sum(lengths)
        self.checks = array("B", bytes(CHECK_BYTES * len(lengths)))
        words.extend((self.checks.buffer_info()[0], CHECK_BYTES * len(lengths)))
        self._words = words

    @property
    def address(self) -> int:
        return self._words.buffer_info()[0]

    @property
    def entries(self) -> int:
        return len(self._words) // 2

    @property
    def message_bytes(self) -> int:
        return self.payload_bytes + len(self.checks)
