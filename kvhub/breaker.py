"""A breaker per member and direction: keeps a failing member out until a probe on the real data path succeeds."""

from __future__ import annotations

import time
from collections.abc import Callable

TRIP_AFTER = 3
"""Batches of one kind in a row that must fail before a member is kept out."""
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 30.0


class Breaker:
    """Closed (everything passes), open (nothing does), or trying (one probe is under way).

    Not thread-safe: the jobs' lock guards it.
    """

    def __init__(self, changed: Callable[[str, str], None], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._changed = changed
        self._clock = clock
        self._failures: dict[str, int] = {}
        self._down = False
        self._pause = FIRST_PAUSE
        self._until = 0.0
        self.state = "closed"
        self.reason = ""

    @property
    def closed(self) -> bool:
        return self.state == "closed"

    def good(self, kind: str = "") -> None:
        """A batch of this kind went well, or a probe did.

        Kinds are counted apart: a FIND that answers says nothing of the loads that hang.
        """
        self._failures.pop(kind, None)
        if self.state == "open":
            # It was under way when the others failed; the probe decides.
            return
        self._pause = FIRST_PAUSE
        if self._down:
            self._failures.clear()
            self._down, self.state, self.reason = False, "closed", ""
            self._changed("up", "probe")

    def bad(self, reason: str, kind: str = "") -> None:
        """A batch of this kind failed, was refused or came late; or a probe did."""
        self._failures[kind] = self._failures.get(kind, 0) + 1
        if self.state == "trying" or (self._down and self.state == "closed"):
            self.state = "open"
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
            self._until = self._clock() + self._pause
        elif self.state == "closed" and self._failures[kind] >= TRIP_AFTER:
            self.state, self.reason, self._down = "open", reason, True
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

    def let_in(self) -> None:
        """Where no probe can be made, the next batch is the probe, whatever its kind."""
        self.state = "closed"
