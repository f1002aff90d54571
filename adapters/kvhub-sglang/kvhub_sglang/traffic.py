"""Between HiCache's storage threads and the hub: what is there, bring it, keep it.

HiCache calls from threads of its own (lookups, gets and sets, one at a time each), and those may wait; its scheduler
never does.  They wait for the deadlines of the configuration and a moment more, never for a member.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import torch

from kvhub.errors import LayoutError
from kvhub.fetch import Fetch
from kvhub.hub import Hub
from kvhub.keys import Chain
from kvhub.types import Found, Held
from kvhub_kernels import arena_tensor
from kvhub_sglang.ledger import Page
from kvhub_sglang.pages import HostPages

MARGIN = 1.0
"""Seconds beyond a deadline after which the hub itself is not believed any more."""
ROOM_SECONDS = 1.0
"""How long a set waits for slots that background stores still hold."""
SHARE = 4
"""At most one part in so many of the arena is asked for at once: gets, sets and stores under way share it."""
MOST_THREADS = 4
_POLL = 0.002

T = TypeVar("T")


class Traffic:
    """One per hub.  Safe from any thread."""

    def __init__(self, hub: Hub, pages: HostPages) -> None:
        self.hub = hub
        self.pages = pages
        region = hub.arena.region
        self.arena = arena_tensor(region.view, region.slots, region.slot_bytes)
        self._names = itertools.count(1)
        self._threads = min(MOST_THREADS, len(os.sched_getaffinity(0)))
        self._most = max(1, region.slots // SHARE)
        self._within = max((step.deadline for step in hub.route.retrieve), default=0.0) + MARGIN

    # -- looking up ------------------------------------------------------------------------------------------------

    def present(self, pages: Sequence[Page]) -> int:
        """How many of the first pages are there; a hint."""
        name = f"hicache-{next(self._names)}"
        try:
            found = self._lookup(name, pages)
            return self._count(found, pages) if found is not None else 0
        finally:
            self.hub.release(name)

    def _lookup(self, name: str, pages: Sequence[Page]) -> Found | None:
        if not pages:
            return None
        size, first = self.hub.measure.chunk_tokens, pages[0].number
        chain = Chain(b"", size, tenant=pages[0].tenant)
        # The keys in front are the engine's own affair: they are not searched for, and only their number counts.
        chain.keys = [b""] * first + [page.key for page in pages]
        limit = len(chain.keys) * size
        ask = partial(self.hub.lookup, name, chain, computed=first * size, limit=limit, tails=False)
        return self._wait(ask, self.hub.limits.lookup + MARGIN)

    def _count(self, found: Found, pages: Sequence[Page]) -> int:
        return max(found.tokens // self.hub.measure.chunk_tokens - pages[0].number, 0)

    def _wait(self, ask: Callable[[], T | None], seconds: float) -> T | None:
        """Ask until there is an answer; None when there is none in time."""
        end = time.monotonic() + seconds
        while (answer := ask()) is None and time.monotonic() < end:
            # Several threads wait for this event: one that is woken in vain asks again a moment later.
            self.hub.answered.wait(_POLL)
            self.hub.answered.clear()
        return answer

    # -- bringing --------------------------------------------------------------------------------------------------

    def bring(self, pages: Sequence[Page], targets: Sequence[int]) -> list[bool]:
        """Copy pages from wherever they are into the host pool's pages `targets`; which of them are there now."""

        def take(number: int, helds: Sequence[Held]) -> None:
            groups: dict[str, list[int]] = {}
            for at, held in enumerate(helds):
                groups.setdefault(held.layout, []).append(at)
            for text, ats in groups.items():
                source = self.hub.measure.layout(text)
                if source is None:
                    raise LayoutError("a chunk of another model's layout")
                self.pages.write(
                    [targets[number + at] for at in ats], self.arena, [helds[at].slot for at in ats], source,
                    threads=self._threads,
                )  # fmt: skip

        return self._bring(pages, take)

    def bring_flat(self, pages: Sequence[Page], targets: Sequence[torch.Tensor]) -> list[bool]:
        """`bring` into flat tensors."""

        def take(number: int, helds: Sequence[Held]) -> None:
            for at, held in enumerate(helds):
                source = self.hub.measure.layout(held.layout)
                if source is None:
                    raise LayoutError("a chunk of another model's layout")
                self.pages.write_flat(targets[number + at], self.arena, held.slot, source)

        return self._bring(pages, take)

    def _bring(self, pages: Sequence[Page], take: Callable[[int, Sequence[Held]], None]) -> list[bool]:
        done = 0
        while done < len(pages):
            part = pages[done : done + self._most]
            count = self._part(part, partial(take, done))
            done += count
            if count < len(part):
                break
        return [at < done for at in range(len(pages))]

    def _part(self, pages: Sequence[Page], take: Callable[[Sequence[Held]], None]) -> int:
        hub, size, first = self.hub, self.hub.measure.chunk_tokens, pages[0].number
        name = f"hicache-{next(self._names)}"
        try:
            found = self._lookup(name, pages)
            count = self._count(found, pages) if found is not None else 0
            if not count:
                return 0
            fetch: Fetch = hub.fetch(name, computed=first * size, tokens=(first + count) * size)
            over = self._wait(lambda: fetch.over, self._within)
            count = max((over or 0) // size - first, 0)
            helds = [fetch.helds[first + at] for at in range(count)]
            if helds:
                take(helds)
                self._count_hits(fetch, helds, size)
            return count
        finally:
            hub.release(name)

    def _count_hits(self, fetch: Fetch, helds: Sequence[Held], size: int) -> None:
        for at, held in enumerate(helds):
            member = fetch.search.origin[at]
            self.hub.reports.count("hit_tokens", size, member=member)
            if held.generated:
                self.hub.reports.count("generated_hit_tokens", held.generated, member=member)

    # -- keeping ---------------------------------------------------------------------------------------------------

    def keep(self, pages: Sequence[Page], sources: Sequence[int]) -> list[bool]:
        """Store the host pool's pages `sources`; which of them are kept, on their way, or there already."""
        return self._keep(pages, lambda ats, slots: self.pages.read([sources[at] for at in ats], self.arena, slots))

    def keep_flat(self, pages: Sequence[Page], sources: Sequence[torch.Tensor]) -> list[bool]:
        """`keep` of flat tensors."""
        return self._keep(
            pages, lambda ats, slots: self.pages.read_flat([sources[at] for at in ats], self.arena, slots)
        )

    def _keep(self, pages: Sequence[Page], fill: Callable[[list[int], list[int]], None]) -> list[bool]:
        kept = 0
        end = time.monotonic() + ROOM_SECONDS
        while kept < len(pages):
            count = self._keep_part(pages, kept, fill)
            kept += count
            if not count:
                if time.monotonic() > end:
                    break
                time.sleep(_POLL)
        return [at < kept for at in range(len(pages))]

    def _keep_part(self, pages: Sequence[Page], start: int, fill: Callable[[list[int], list[int]], None]) -> int:
        """Store what there is room for, from `start` on; how many pages that settled."""
        hub, part = self.hub, pages[start : start + self._most]
        slots = hub.reserve([page.key for page in part])
        mine = [at for at, slot in enumerate(slots) if slot >= 0]
        try:
            if mine:
                fill([start + at for at in mine], [slots[at] for at in mine])
        except BaseException:
            hub.cancel([slots[at] for at in mine], [part[at].key for at in mine])
            raise
        length = hub.measure.chunk_bytes
        if mine:
            helds = [Held(slots[at], length, number=part[at].number, tenant=part[at].tenant) for at in mine]
            hub.commit([(part[at].key, held) for at, held in zip(mine, helds, strict=True)])
        for at, page in enumerate(part):
            if slots[at] < 0 and page.key not in hub.arena and not hub.is_filling(page.key):
                return at
        return len(part)

    def forget(self) -> int:
        """Empty the host tier; how many chunks that were."""
        return sum(self.hub.arena.forget(key) for key in tuple(self.hub.arena.keys()))

    def close(self) -> None:
        """Let go of the arena's memory and close the hub."""
        self.arena = torch.empty((0, 0), dtype=torch.uint8)
        self.hub.close()
