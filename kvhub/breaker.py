"""A breaker per member and direction: keeps a failing member out until a probe on the real data path succeeds."""

from __future__ import annotations

import time
from collections.abc import Callable

TRIP_AFTER = 3
"""Batches in a row that must fail before a member is kept out."""
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 30.0


class Breaker:
    """Closed (everything passes), open (nothing does), or trying (one probe is under way).

    Not thread-safe: the jobs' lock guards it.
    """

    def __init__(self, changed: Callable[[str, str], None], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._changed = changed
        self._clock = clock
        self._failures = 0
        self._pause = FIRST_PAUSE
        self._until = 0.0
        self.state = "closed"
        self.reason = ""

    @property
    def closed(self) -> bool:
        return self.state == "closed"

    def good(self) -> None:
        """A batch went well, or a probe did."""
        self._failures = 0
        self._pause = FIRST_PAUSE
        if self.state != "closed":
            self.state, self.reason = "closed", ""
            self._changed("up", "probe")

    def bad(self, reason: str) -> None:
        """A batch failed, was refused or came late; or a probe did."""
        self._failures += 1
        if self.state == "trying":
            self.state = "open"
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
            self._until = self._clock() + self._pause
        elif self.state == "closed" and self._failures >= TRIP_AFTER:
            self.state, self.reason = "open", reason
            self._until = self._clock() + self._pause
            self._changed("down", reason)

    def due(self) -> bool:
        """Whether it is time to probe."""
        return self.state == "open" and self._clock() >= self._until

    def next_due(self) -> float:
        """When `due` will hold; infinity while closed or trying."""
        return self._until if self.state == "open" else float("inf")

    def trying(self) -> None:
        """A probe has been sent."""
        self.state = "trying"
