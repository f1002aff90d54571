"""`Tally`: how much there is and when it was last used, small enough to be kept in a note beside the chunks.

Times of use fall into bins whose width grows with age: a minute up to six hours, then ten minutes up to three days, an
hour up to sixty days, and days.  Wider bins are made of whole narrower ones, so tallies of different moments add up.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from kvhub.pool.medium import Entry, Medium

_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_WIDTHS = ((_DAY, 60 * _DAY), (_HOUR, 3 * _DAY), (10 * _MINUTE, 6 * _HOUR))
"""(width, age of the bin's end above which it is used).  A wider bin is taken or not as a whole, so none overlap."""
MOST_SIZES = 64
VERSION = 1

Bin = tuple[int, int]
"""Start in seconds since 1970, and width in seconds."""


def bin_of(used: float, now: float, at_least: int = _MINUTE) -> Bin:
    """The bin that a time of use falls into; `at_least` is the width that it was kept with before."""
    for width, age in _WIDTHS:
        start = int(used // width * width)
        if now - (start + width) > age or width == at_least:
            return start, width
    return int(used // _MINUTE * _MINUTE), _MINUTE


class Tally:
    """Chunks, bytes, and both by time of use, of a part of a pool."""

    __slots__ = ("at", "bins", "bytes", "chunks", "sizes")

    def __init__(self, at: float) -> None:
        self.at = at
        """When it was measured, on the medium's clock; of a sum: when the oldest part was."""
        self.chunks = 0
        self.bytes = 0
        self.bins: dict[Bin, tuple[int, int]] = {}
        """(chunks, bytes) by time of use."""
        self.sizes: Counter[int] = Counter()
        """Chunks by size; sizes beyond the first 64 are counted under 0."""

    def add(self, entry: Entry) -> None:
        self._add(bin_of(entry.used, self.at), 1, entry.size)
        self._size(entry.size, 1)

    def merge(self, other: Tally, now: float) -> None:
        """Add another's counts, binned as of `now`."""
        self.at = min(self.at, other.at)
        for (start, width), (chunks, size) in other.bins.items():
            self._add(bin_of(start, now, width), chunks, size)
        for size, chunks in other.sizes.items():
            self._size(size, chunks)

    def _add(self, where: Bin, chunks: int, size: int) -> None:
        had = self.bins.get(where, (0, 0))
        self.bins[where] = (had[0] + chunks, had[1] + size)
        self.chunks += chunks
        self.bytes += size

    def _size(self, size: int, chunks: int) -> None:
        self.sizes[size if size in self.sizes or len(self.sizes) < MOST_SIZES else 0] += chunks

    @property
    def tails(self) -> int:
        """Chunks that have not the most common size: tails and parts, which hold fewer tokens than a full chunk."""
        return self.chunks - max(self.sizes.values(), default=0)

    def plain(self) -> dict[str, Any]:
        return {
            "at": self.at,
            "bins": [[*where, *counts] for where, counts in sorted(self.bins.items())],
            "sizes": sorted(self.sizes.items()),
        }

    @classmethod
    def from_plain(cls, plain: Any) -> Tally:
        """Raises KeyError, TypeError or ValueError for anything that `plain` did not give."""
        tally = cls(float(plain["at"]))
        for start, width, chunks, size in plain["bins"]:
            tally._add((int(start), int(width)), int(chunks), int(size))
        for size, chunks in plain["sizes"]:
            tally.sizes[int(size)] += int(chunks)
        return tally


def total(tallies: Iterable[Tally], now: float) -> Tally:
    found = Tally(now)
    for tally in tallies:
        found.merge(tally, now)
    return found


class Notes:
    """The tallies that are kept in the medium: one note per shard, with every space in it."""

    def __init__(self, medium: Medium) -> None:
        self._medium = medium

    def get(self, shard: str) -> dict[str, Tally]:
        """By space; what cannot be read counts as never measured."""
        data = self._medium.note(f"tally-{shard}")
        try:
            plain = json.loads(data) if data else {}
            if plain.get("version") != VERSION:
                return {}
            return {str(space): Tally.from_plain(each) for space, each in plain["spaces"].items()}
        except (AttributeError, KeyError, TypeError, ValueError):
            return {}

    def put(self, shard: str, measured: dict[str, Tally], spaces: Iterable[str]) -> None:
        """Replace the tallies of the spaces that were measured; forget those of spaces that are no more."""
        kept = {space: tally for space, tally in self.get(shard).items() if space in set(spaces)} | measured
        plain = {"version": VERSION, "spaces": {space: tally.plain() for space, tally in sorted(kept.items())}}
        self._medium.put_note(f"tally-{shard}", json.dumps(plain, separators=(",", ":")).encode())


def by_age(tally: Tally, now: float) -> Iterator[tuple[str, int, int]]:
    """(how long unused, chunks, bytes) in few steps, for people."""
    steps = [("under 10 min", 600), ("under 1 h", _HOUR), ("under 6 h", 6 * _HOUR), ("under 1 d", _DAY)]
    steps += [("under 7 d", 7 * _DAY), ("under 30 d", 30 * _DAY), ("30 d and more", 10**12)]
    rows = {name: (0, 0) for name, _ in steps}
    for (start, width), (chunks, size) in tally.bins.items():
        age = now - (start + width / 2)
        name = next(name for name, most in steps if age < most)
        rows[name] = (rows[name][0] + chunks, rows[name][1] + size)
    for name, (chunks, size) in rows.items():
        yield name, chunks, size
