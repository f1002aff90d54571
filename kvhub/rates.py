"""Rates: how fast members bring and keep chunks, and how fast the engine computes them; measured, never configured.

Nothing is declined before both sides of a comparison were measured, and what is declined is tried again now and then:
a pool that was slow once may be fast by now.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

HALF_LIFE = 10.0
"""Seconds of work after which an old measurement counts half."""
AGAIN_AFTER = 10.0
"""Seconds after which a declined source is asked once more, to measure it anew."""


class Rate:
    """Units per second of work: a mean in which older work fades."""

    def __init__(self) -> None:
        self._units = self._seconds = 0.0

    def add(self, units: float, seconds: float) -> None:
        """So many units took so much time of work."""
        if units <= 0 or seconds <= 0:
            return
        fade = 0.5 ** (seconds / HALF_LIFE)
        self._units = self._units * fade + units
        self._seconds = self._seconds * fade + seconds

    @property
    def value(self) -> float:
        """0 while nothing was measured."""
        return self._units / self._seconds if self._seconds else 0.0


class Declined(NamedTuple):
    """Two estimates, in seconds."""

    loading: float
    computing: float
    first: bool
    """Since this source was last worth it, or was measured anew."""


class Rates:
    """What a hub knows of time.  Called under the hub's lock, or where a stale value does no harm."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.prefill = 0.0
        """Prompt tokens that the engine computes per second; 0 while nothing was measured."""
        self._loads: dict[str, Rate] = {}
        self._declined: dict[str, float] = {}

    def loaded(self, member: str, size: int, seconds: float) -> None:
        """A load of `size` bytes took so long, its waiting included."""
        self._loads.setdefault(member, Rate()).add(size, seconds)

    def slower(self, member: str, size: int, tokens: int, ratio: float = 1.0) -> Declined | None:
        """Why not to load `size` bytes from a member: computing their `tokens` takes less than `ratio` times as long.

        None where it is worth it, where that is not known, and now and then all the same, to measure it anew.
        """
        rate = self._loads.get(member)
        if rate is None or not rate.value or not self.prefill:
            return None
        loading, computing = size / rate.value, tokens / self.prefill
        if loading * ratio <= computing:
            self._declined.pop(member, None)
            return None
        now, first = self._clock(), member not in self._declined
        if now >= self._declined.setdefault(member, now + AGAIN_AFTER):
            del self._declined[member]
            return None
        return Declined(loading, computing, first)
