"""Pace: how a session keeps step with its engine: when it rests, and how fast prompts are computed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

SHORT_REST, LONG_REST = 0.8e-3, 4e-3
LEAST_TOKENS = 16
"""A step with fewer prompt tokens is about decoding, and says little of a prefill."""
_FALL = 0.1


class Rest:
    """Lets the hub's threads run while an engine has nothing to compute and a request waits for its KV.

    Without it the engine steps round and round, and the interpreter's lock with it: I/O threads then wait 5 ms for
    each of their turns.  Ends with the first answer, after 0.8 ms at most; after 4 ms where nothing came for a
    while, since a peer that still computes is waited for as long as a prompt takes.
    """

    def __init__(self) -> None:
        self._seconds = SHORT_REST

    def until(self, answered: threading.Event) -> None:
        self._seconds = SHORT_REST if answered.wait(self._seconds) else min(1.1 * self._seconds, LONG_REST)
        answered.clear()


class Prefill:
    """Prompt tokens that the engine computes per second.

    A step is timed from its plan to the next one's.  An engine that rests in between makes a step look slow and nothing
    makes it look fast, so a faster step is believed at once and a slower one by a tenth.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._under_way = self._planned = 0
        self._since = 0.0
        self.value = 0.0
        """Tokens per second; 0 while nothing was measured."""

    def scheduled(self, tokens: int) -> None:
        """The step that is being planned computes so many prompt tokens more; none where that is below 0."""
        self._planned += max(tokens, 0)

    def stepped(self) -> float:
        """A plan goes out; tokens per second by now."""
        now = self._clock()
        if self._under_way >= LEAST_TOKENS and now > self._since:
            found = self._under_way / (now - self._since)
            self.value = found if found > self.value else self.value + _FALL * (found - self.value)
        self._under_way, self._planned, self._since = self._planned, 0, now
        return self.value
