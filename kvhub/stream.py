"""Stream: pulls a prompt from a prefill that still computes it, piece by piece, so that wire and prefill work at once.

A piece that cannot be had ends the stream: what came before it is the hit, and the engine computes the rest.  Each
piece has the step's deadline, so that a prefill must bring something within that time or is not waited for any more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kvhub.types import Completion, Held, Key, Outcome, Peer

if TYPE_CHECKING:
    from kvhub.hub import Hub
    from kvhub.router import BoundStep

AHEAD = 2
"""Pieces that are asked for at a time: while one crosses, the next one's question is there already."""
FIRST_PAUSE, LONGEST_PAUSE = 0.005, 0.1
"""Seconds between two questions to a prefill that has not heard of the request; doubled each time."""


class Stream:
    """One request's pull.  Called under the hub's lock."""

    def __init__(
        self,
        hub: Hub,
        step: BoundStep,
        peer: Peer,
        keys: Sequence[Key],
        came: Callable[[int, list[Held | None]], None],
        over: Callable[[], None],
    ) -> None:
        """`came(at, helds)` is told what arrived of the chunks from number `at` on, with one lease each; `over()`
        that no more will."""
        self._hub = hub
        self._step = step
        self._peer = peer
        self._keys = keys
        self._came = came
        self._over = over
        self._slots: list[int] = []
        """Of the chunks from `_next` on: claimed at once, so that requests do not stop each other half-way."""
        self._next = 0
        self._running: dict[int, int] = {}
        """First chunk of each piece under way -> its order."""
        self._begun = False
        """Something came: the prefill is at work."""
        self._pause = FIRST_PAUSE
        self._grace = 0.0
        self._stopped = False

    def start(self) -> None:
        self._grace = time.monotonic() + self._hub.limits.stream_grace
        self._slots = self._hub.orders.claim(len(self._keys))
        self._go_on()

    def stop(self) -> None:
        """Nobody wants the rest any more; idempotent."""
        self._stopped = True
        self._drop(0)

    def _go_on(self) -> None:
        # Nothing is asked ahead before the prefill is known to be at work: a miss of the first piece is asked again.
        while self._slots and len(self._running) < (AHEAD if self._begun else 1):
            count, first = min(self._hub.limits.stream_chunks, len(self._slots)), self._next
            slots, self._slots = self._slots[:count], self._slots[count:]
            self._next += count
            self._ask(first, slots)
        if not self._running:
            self._over()

    def _ask(self, first: int, slots: list[int]) -> None:
        def ended(helds: list[Held | None], completion: Completion) -> None:
            self._ended(first, helds, completion)

        keys = self._keys[first : first + len(slots)]
        self._running[first] = self._hub.orders.fill(
            self._step.name, keys, slots, self._step.deadline, ended, peer=self._peer
        )

    def _ended(self, first: int, helds: list[Held | None], completion: Completion) -> None:
        wanted = self._running.pop(first, None) is not None
        self._came(first, helds)
        if self._stopped or not wanted:
            return
        if None not in helds:
            self._begun = True
        elif self._may_come(completion):
            self._running[first] = -1
            self._hub.reports.count("stream_pauses")
            self._hub.pump.later(self._pause, lambda: self._ask_again(first, len(helds)))
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
            return
        else:
            self._drop(first)
        self._go_on()

    def _may_come(self, completion: Completion) -> bool:
        """Whether this looks like a prefill that has not heard of the request yet."""
        absent = set(completion.outcomes) == {Outcome.MISS}
        return absent and not self._begun and time.monotonic() + self._pause < self._grace

    def _ask_again(self, first: int, count: int) -> None:
        with self._hub.lock:
            if self._stopped or self._running.get(first) != -1:
                return
            slots = self._hub.orders.claim(count)
            if slots:
                self._ask(first, slots)
            else:
                del self._running[first]
                self._drop(first)
                self._go_on()

    def _drop(self, first: int) -> None:
        """Want nothing from this chunk on."""
        slots, self._slots = self._slots, []
        self._hub.give_back(slots)
        for at in [at for at in self._running if at >= first]:
            order = self._running.pop(at)
            if order >= 0:
                self._hub.jobs.cancel(order)
