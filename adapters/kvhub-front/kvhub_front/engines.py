"""Which engine a request gets: each of its legs the least busy one, whatever the other leg got."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class Engines:
    """Engines of one kind by URL."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = tuple(urls)
        self._busy: Counter[str] = Counter()
        self._chosen: Counter[str] = Counter()

    def choose(self) -> str:
        """An engine for one leg; say `left` when the leg has ended.

        Of equally busy ones the least often chosen; where that leaves several, any, or two lists of one length would
        always bring the same two together.
        """
        url = min(self._urls, key=lambda url: (self._busy[url], self._chosen[url], random.random()))
        self._busy[url] += 1
        self._chosen[url] += 1
        return url

    def left(self, url: str) -> None:
        """A leg on this engine has ended."""
        self._busy[url] -= 1

    @contextmanager
    def one(self) -> Iterator[str]:
        """`choose`, for a leg that runs as long as this lasts."""
        url = self.choose()
        try:
            yield url
        finally:
            self.left(url)
