"""What is moved: chunks of one size, or 10,000 scattered pieces; the same bytes and the same slots for every row.

Needs numpy only, since competitors run it in environments without kvhub.
"""

from __future__ import annotations

import mmap
import os
from typing import Any

import numpy as np

KIB, MIB = 1 << 10, 1 << 20
ARENA = "KVHUB_BENCH_ARENA_MIB"
"""Environment variable by which all processes of a run agree."""
ARENA_BYTES = int(os.environ.get(ARENA, 320)) * MIB
"""Ten times the last-level cache of most machines: who walks through it finds cold memory."""
SMALL_ARENA = 128
"""MiB; enough to see that a row works, where there are no scattered pieces."""
BATCH_BYTES = 64 * MIB
"""What one pull moves: a prompt's worth of KV."""
PIECES, PIECE_BYTES = 10_000, 32 * KIB
SCATTER = "10000x32KiB"
SINGLE = "one64KiB"
"""One chunk on its own: what a pull costs before bytes matter."""
SIZES = {"64KiB": 64 * KIB, "1MiB": MIB, "4MiB": 4 * MIB, "16MiB": 16 * MIB, "64MiB": 64 * MIB}
NAMES = (SINGLE, *SIZES, SCATTER)
_ODD = 0x9E3779B97F4A7C15


class Case:
    """One size, and the slots of its pulls: `source[i]` at the server goes to `target[i]` at the puller."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.scattered = name == SCATTER
        self.bytes = PIECE_BYTES if self.scattered else 64 * KIB if name == SINGLE else SIZES[name]
        self.count = PIECES if self.scattered else 1 if name == SINGLE else BATCH_BYTES // self.bytes
        self.slots = ARENA_BYTES // self.bytes
        self.total = self.count * self.bytes

    def slots_of(self, number: int) -> tuple[list[int], list[int]]:
        """(source, target) slots of pull `number`: on through the arena, or in a new random order each time."""
        if self.scattered:
            draw = np.random.default_rng(number)
            return draw.permutation(self.slots)[: self.count].tolist(), draw.permutation(self.slots)[
                : self.count
            ].tolist()
        # A single chunk strides, or the prefetcher would have it in the cache.
        first = number * (37 if self.count == 1 and self.bytes < MIB else self.count)
        source = [(first + at) % self.slots for at in range(self.count)]
        return source, source


def pattern(first_word: int, words: int) -> np.ndarray[Any, Any]:
    """64-bit words of the source arena from `first_word` on; none is like another."""
    with np.errstate(over="ignore"):
        return np.arange(first_word, first_word + words, dtype=np.uint64) * np.uint64(_ODD)


def fill(memory: memoryview) -> None:
    """Make an arena the source."""
    words = np.frombuffer(memory, np.uint64)
    for at in range(0, len(words), MIB):
        words[at : at + MIB] = pattern(at, min(MIB, len(words) - at))


def clear(memory: memoryview, case: Case, target: list[int]) -> None:
    """Zero the slots that a pull is to fill, so that what an earlier pull left there proves nothing."""
    view = np.frombuffer(memory, np.uint8)
    for slot in target:
        view[slot * case.bytes : (slot + 1) * case.bytes] = 0


def wrong(memory: memoryview, case: Case, source: list[int], target: list[int]) -> int:
    """How many chunks of a pull differ from the source."""
    words, each = np.frombuffer(memory, np.uint64), case.bytes // 8
    return sum(
        not np.array_equal(words[to * each : (to + 1) * each], pattern(from_ * each, each))
        for from_, to in zip(source, target, strict=True)
    )


def plain_arena(filled: bool) -> memoryview:
    """Memory like a hub's arena (a memfd, all its pages there), for rows without kvhub."""
    handle = os.memfd_create("kvhub-bench", os.MFD_CLOEXEC)
    os.ftruncate(handle, ARENA_BYTES)
    memory = memoryview(mmap.mmap(handle, ARENA_BYTES))
    os.close(handle)
    if filled:
        fill(memory)
    else:
        np.frombuffer(memory, np.uint8)[:] = 1
    return memory
