"""`FakeSource`: the hub as a serving transport sees it, over a dict of slots, with a ledger of what was lent."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import attrs

from kvhub.types import Held, Key, Region

Ready = Callable[[int, list[Held | None]], None]
POISON = 0xEE


@attrs.define
class _Ticket:
    keys: tuple[Key, ...]
    deadline: float
    ready: Ready
    answered: bool = False
    slots: tuple[int, ...] = ()


class FakeSource:
    """A `kvhub.transport.Source` whose chunks a test puts there, fills slowly, or forgets.

    `inline` answers inside `take` where it can, as a hub does when all is ready; otherwise every answer comes from
    another thread.  With `poison`, a slot whose last lease ends is overwritten at once, as a hub would reuse it: a
    transport that gives back too early then delivers poison.
    """

    def __init__(self, region: Region, *, inline: bool = True, poison: bool = False) -> None:
        self.region, self.inline, self.poison = region, inline, poison
        self.error: BaseException | None = None
        """If set, `take` raises it."""
        self.taken: list[tuple[Key, ...]] = []
        self.returned: list[int] = []
        """Tickets in the order of `give_back`; one that is there twice was given back twice."""
        self.promises: list[str] = []
        self.faults: list[str] = []
        """What a transport did that no hub would expect."""
        self._chunks: dict[Key, Held] = {}
        self._filling: set[Key] = set()
        self._tickets: dict[int, _Ticket] = {}
        self._free = list(range(region.slots // 2))
        self._news = threading.Condition(threading.RLock())
        self._closed = False
        self._thread = threading.Thread(target=self._answer, name="fake-source", daemon=True)
        self._thread.start()

    # -- what a test does

    def put(self, key: Key, payload: bytes, *, layout: str = "", generated: int = 0) -> None:
        """Make a chunk ready, in the lower half of the region."""
        with self._news:
            slot = self._free.pop(0)
            self.region.slot(slot, len(payload))[:] = payload
            self._chunks[key] = Held(slot, len(payload), layout, generated)
            self._filling.discard(key)
            self._news.notify_all()

    def begin(self, *keys: Key) -> None:
        """These keys are being filled: `put` or `abandon` ends that."""
        with self._news:
            self._filling |= set(keys)

    def abandon(self, *keys: Key) -> None:
        """These keys will not be filled: whoever waits for them is told that they are not to be had."""
        with self._news:
            self._filling -= set(keys)
            self._news.notify_all()

    @property
    def lent(self) -> int:
        """Tickets that were taken and not given back."""
        with self._news:
            return len(self._tickets)

    def close(self) -> None:
        """End the thread that answers."""
        with self._news:
            self._closed = True
            self._news.notify_all()
        self._thread.join()

    # -- Source

    def take(self, keys: Sequence[Key], deadline: float, ready: Ready) -> int:
        if self.error is not None:
            raise self.error
        with self._news:
            number = len(self.taken) + 1
            self.taken.append(tuple(keys))
            self._tickets[number] = _Ticket(tuple(keys), deadline, ready)
            self._news.notify_all()
        if self.inline:
            self._serve(number)
        return number

    def give_back(self, ticket: int) -> None:
        with self._news:
            self.returned.append(ticket)
            found = self._tickets.pop(ticket, None)
            if found is None:
                self.faults.append(f"ticket {ticket} was given back twice, or never taken")
                return
            still = {slot for other in self._tickets.values() for slot in other.slots}
            for slot in set(found.slots) - still if self.poison else ():
                view = self.region.slot(slot)
                view[:] = bytes([POISON]) * view.nbytes

    def fulfilled(self, promise: str) -> None:
        with self._news:
            self.promises.append(promise)

    def _serve(self, number: int) -> None:
        with self._news:
            ticket = self._tickets.get(number)
            if ticket is None or ticket.answered:
                return
            if ticket.deadline > time.monotonic() and self._filling.intersection(ticket.keys):
                return
            found = [self._chunks.get(key) for key in ticket.keys]
            ticket.answered, ticket.slots = True, tuple(held.slot for held in found if held is not None)
        # Outside the lock, so that a transport may call back from another thread meanwhile.
        try:
            ticket.ready(number, found)
        except Exception as error:
            self.faults.append(f"ready raised {type(error).__name__}: {error}")

    def _answer(self) -> None:
        while True:
            with self._news:
                if self._closed:
                    return
                waiting = [number for number, ticket in self._tickets.items() if not ticket.answered]
                times = [self._tickets[number].deadline - time.monotonic() for number in waiting]
                due = [n for n in waiting if self._tickets[n].deadline <= time.monotonic()]
                due += [n for n in waiting if not self._filling.intersection(self._tickets[n].keys)]
                if not due:
                    self._news.wait(min([60.0, *(max(0.0, left) for left in times)]))
            for number in due:
                self._serve(number)
