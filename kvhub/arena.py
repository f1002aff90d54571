"""The arena: the hub's host memory, cut into equal slots in shared memory, with leases and an index.

A slot is free, then filling (claimed by someone who writes into it), then ready (published under a key).  A lease is
a promise that a slot will not change or go away until it is released.  Ready slots without leases are idle: they
are what the host tier keeps, and a policy says which of them make room for new claims.  A pin is a lease with an end.

The memory is a memfd: it needs no name in a file system, so a killed process leaves nothing behind, and other processes
of the same user map it through `/proc/PID/fd/N`, which is the region's name.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from kvhub import pages
from kvhub.errors import KvhubError, MisuseError
from kvhub.evict import POLICIES, Policy
from kvhub.pages import available_bytes
from kvhub.types import Held, Key, Region

ALIGN = 4096
MOST_PINNED = 0.25
"""The share of the slots that may be pinned: the rest must be able to make room."""


def slot_bytes_for(payload_bytes: int) -> int:
    """Slot size for the largest payload: rounded up to whole pages, so that direct I/O can land in it."""
    return -(-payload_bytes // ALIGN) * ALIGN


class Arena:
    """Slots, index and leases.  Every method is safe from any thread and takes no longer than its loop."""

    def __init__(
        self,
        capacity: int,
        slot_bytes: int,
        *,
        name: str = "arena",
        policy: str = "lru",
        second_touch: bool = False,
        ttl: float = 0.0,
        huge_pages: bool = True,
        numa_node: int | None = None,
    ) -> None:
        """`second_touch` keeps a chunk only from the second time on that it is published; `ttl` is the age in seconds
        at which a chunk goes, 0 for none."""
        slots = capacity // slot_bytes
        if slots < 1:
            raise KvhubError(
                f"{name}: capacity of {capacity} bytes holds no chunk of {slot_bytes} bytes; "
                f"raise it to {4 * slot_bytes} or more, or lower chunk_tokens"
            )
        room = available_bytes()
        if room is not None and slots * slot_bytes > room:
            raise KvhubError(
                f"{name}: capacity of {slots * slot_bytes} bytes is more than the {room} bytes of memory that are "
                f"available here; lower it or give this process more memory"
            )
        known = pages.nodes()
        if numa_node is not None and known and numa_node not in known:
            raise KvhubError(
                f"{name}: numa_node: {numa_node} is not on this machine; it has {', '.join(map(str, known))}"
            )
        self.lock = threading.RLock()
        self._fd = os.memfd_create("kvhub-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self._fd, slots * slot_bytes)
        # Who maps it in another process would be ended by a read of memory that was cut off.
        fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        self._map = mmap.mmap(self._fd, slots * slot_bytes)
        self._anchor = ctypes.c_char.from_buffer(self._map)
        self.region = Region(
            memoryview(self._map),
            ctypes.addressof(self._anchor),
            slot_bytes,
            slots,
            f"/proc/{os.getpid()}/fd/{self._fd}",
        )
        told = [pages.ask_huge_pages(self.region.address, slots * slot_bytes)] if huge_pages else []
        if numa_node is not None:
            told.append(pages.prefer_node(self.region.address, slots * slot_bytes, numa_node, known))
        self.memory = "; ".join(told)
        """What the kernel was asked for, and whether it offers it, for the log."""
        self._free = list(range(slots - 1, -1, -1))
        self._index: dict[Key, int] = {}
        self._policy: Policy = POLICIES[policy](slots)
        self._idle = 0
        self._bytes = 0
        self._ttl = ttl
        self._ages: OrderedDict[int, float] = OrderedDict()
        """Slot to the time at which its chunk goes, oldest first; only with a `ttl`."""
        self._pins: dict[Key, float] = {}
        self._next_unpin = float("inf")
        self._once: OrderedDict[Key, None] | None = OrderedDict() if second_touch else None
        self._held: list[Held | None] = [None] * slots
        self._key: list[Key | None] = [None] * slots
        self._leases = [0] * slots
        self._keep = [True] * slots
        self.evictions = 0
        self._stop = threading.Event()
        self._warmer = pages.populate(self.region.view, self._stop)

    # -- what is there ---------------------------------------------------------------------------------------------

    def __contains__(self, key: Key) -> bool:
        if self._ages:
            self._expire()
        return key in self._index

    def run(self, keys: Sequence[Key]) -> int:
        """How many of the first keys are ready, without leasing them."""
        index = self._index
        for count, key in enumerate(keys):
            if key not in index:
                return count
        return len(keys)

    def lease_run(self, keys: Sequence[Key], *, use: bool = True) -> list[int]:
        """Lease the leading run of ready keys; their slots.  Without `use` the policy does not count it as one."""
        with self.lock:
            if self._ages:
                self._expire()
            index, leases = self._index, self._leases
            found: list[int] = []
            fresh: list[int] = []
            for key in keys:
                slot = index.get(key)
                if slot is None:
                    break
                if not leases[slot]:
                    fresh.append(slot)
                leases[slot] += 1
                found.append(slot)
            self._idle -= len(fresh)
            self._policy.leased(found if use else (), fresh)
            return found

    def lease_each(self, keys: Sequence[Key]) -> list[int | None]:
        """Lease every key that is ready; its slot, None for the others."""
        with self.lock:
            found: list[int | None] = list(self.lease_run(keys))
            for key in keys[len(found) :]:
                found.append(self.lease(key))
            return found

    def lease(self, key: Key, *, use: bool = True) -> int | None:
        """Lease one ready key; its slot, or None."""
        found = self.lease_run((key,), use=use)
        return found[0] if found else None

    def held(self, slot: int) -> Held:
        """What a ready slot holds.  Raises MisuseError for a slot that holds nothing."""
        held = self._held[slot]
        if held is None:
            raise MisuseError(f"slot {slot} holds no chunk")
        return held

    # -- filling ---------------------------------------------------------------------------------------------------

    def claim(self, count: int, *, spare: int = 0) -> list[int]:
        """Take up to `count` slots for filling, each with one lease; evicts idle chunks as the policy says.

        Returns fewer when the rest is leased.  `spare` slots are left free for others.
        """
        with self.lock:
            free, taken = self._free, []
            if len(free) < count:
                self._expire()
            room = len(free) + self._idle - spare
            for _ in range(min(count, room)):
                if not free:
                    slot = self._policy.victim()
                    key = self._key[slot]
                    assert key is not None
                    del self._index[key]
                    self._idle -= 1
                    self._clear(slot)
                    self.evictions += 1
                slot = free.pop()
                self._leases[slot] = 1
                taken.append(slot)
            return taken

    def publish(self, key: Key, held: Held, *, keep: bool = True, replace: bool = False) -> bool:
        """Make a filled slot ready under `key`; the claimer's lease stays and has to be released.

        False when another slot is ready under that key (unless `replace`): this one then stays private to its
        leases and is freed with the last.  With `keep=False` the chunk goes as soon as nobody leases it, and so does
        one that is not admitted.
        """
        with self.lock:
            slot = held.slot
            if not self._leases[slot] or self._key[slot] is not None:
                raise MisuseError(f"slot {slot} was not claimed for filling")
            self._held[slot] = held
            self._bytes += held.length
            if key in self._index:
                if not replace:
                    self._keep[slot] = False
                    return False
                self._drop(key)
            self._index[key] = slot
            self._key[slot] = key
            self._keep[slot] = keep and self._admitted(key)
            self._policy.added(slot, key)
            if self._ttl:
                self._ages[slot] = time.monotonic() + self._ttl
            return True

    def _admitted(self, key: Key) -> bool:
        once = self._once
        if once is None:
            return True
        if key in once:
            once.move_to_end(key)
            return True
        once[key] = None
        if len(once) > 2 * self.region.slots:
            once.popitem(last=False)
        return False

    def release(self, slots: Iterable[int], *, cold: bool = False) -> None:
        """End one lease on each slot; `cold` ones were no use of the chunk.  Raises MisuseError for a slot without."""
        with self.lock:
            leases, keys, keep = self._leases, self._key, self._keep
            for slot in slots:
                if leases[slot] < 1:
                    raise MisuseError(f"slot {slot} has no lease to release")
                leases[slot] -= 1
                if leases[slot]:
                    continue
                key = keys[slot]
                if key is not None and keep[slot]:
                    self._idle += 1
                    self._policy.idle(slot, cold=cold)
                    continue
                if key is not None:
                    del self._index[key]
                    self._policy.removed(slot)
                self._clear(slot)

    def add_lease(self, slot: int) -> None:
        """One more lease on a slot that already has one."""
        with self.lock:
            if not self._leases[slot]:
                raise MisuseError(f"slot {slot} has no lease to add to")
            self._leases[slot] += 1

    def forget(self, key: Key) -> bool:
        """Take a key out of the index; its slot is freed when its last lease ends."""
        with self.lock:
            return key in self._index and self._drop(key)

    def _drop(self, key: Key) -> bool:
        self._unpin(key)
        slot = self._index.pop(key)
        self._policy.removed(slot)
        self._key[slot] = None
        self._keep[slot] = False
        self._ages.pop(slot, None)
        if not self._leases[slot]:
            self._idle -= 1
            self._clear(slot)
        return True

    def _clear(self, slot: int) -> None:
        held = self._held[slot]
        if held is not None:
            self._bytes -= held.length
        self._key[slot] = self._held[slot] = None
        self._keep[slot] = True
        self._ages.pop(slot, None)
        self._free.append(slot)

    # -- what stays, and what goes by time --------------------------------------------------------------------------

    def pin(self, keys: Sequence[Key], seconds: float) -> int:
        """Keep ready chunks for `seconds` whatever else needs room; how many of the first keys that holds for.

        Ends at the first key that is not ready, and where more than a quarter of the slots would be pinned.  A chunk
        that is pinned already is pinned until then.  Neither a pin nor a lease outlives `forget`, `ttl` or a replacing
        `publish`: the key is gone then.
        """
        with self.lock:
            self._expire()
            until, most = time.monotonic() + seconds, int(MOST_PINNED * self.region.slots)
            for count, key in enumerate(keys):
                if key not in self._pins and (len(self._pins) >= most or self.lease(key, use=False) is None):
                    return count
                self._pins[key] = until
                self._next_unpin = min(self._next_unpin, until)
            return len(keys)

    def unpin(self, keys: Iterable[Key]) -> None:
        """End pins; keys that have none are ignored."""
        with self.lock:
            for key in keys:
                self._unpin(key)

    def _unpin(self, key: Key) -> None:
        if self._pins.pop(key, None) is not None:
            self.release((self._index[key],))

    def _expire(self) -> None:
        """Drop what is older than `ttl`, and end pins whose time is over."""
        with self.lock:
            now = time.monotonic()
            while self._ages and now >= next(iter(self._ages.values())):
                slot = next(iter(self._ages))
                key = self._key[slot]
                assert key is not None
                self._drop(key)
            if now >= self._next_unpin:
                for key in [key for key, until in self._pins.items() if until <= now]:
                    self._unpin(key)
                self._next_unpin = min(self._pins.values(), default=float("inf"))

    # -- life ------------------------------------------------------------------------------------------------------

    def keys(self) -> list[Key]:
        """Every ready key, in no order."""
        with self.lock:
            self._expire()
            return list(self._index)

    def coldest(self, count: int) -> list[Key]:
        """Up to `count` keys about in the order in which claims would evict them, the next one first."""
        with self.lock:
            return [key for slot in self._policy.coldest(count) if (key := self._key[slot]) is not None]

    @property
    def free(self) -> int:
        """Slots that hold nothing."""
        return len(self._free)

    def usage(self) -> dict[str, int]:
        """Slots by state: total, free, idle, pinned and nothing else, leased; and bytes of the ready chunks."""
        with self.lock:
            self._expire()
            total, free, idle = self.region.slots, len(self._free), self._idle
            pinned = sum(self._leases[self._index[key]] == 1 for key in self._pins)
            leased = total - free - idle - pinned
            return {
                "total": total, "free": free, "idle": idle, "pinned": pinned, "leased": leased, "bytes": self._bytes,
            }  # fmt: skip

    def close(self) -> None:
        """Unmap; idempotent.  Views that others still hold keep the memory until they go."""
        self._stop.set()
        self._warmer.join(5.0)
        if self._fd < 0:
            return
        os.close(self._fd)
        self._fd = -1
        del self._anchor
        try:
            self.region.view.release()
            self._map.close()
        except BufferError:
            # A member or a tensor still looks at it; mapping and descriptor go with that view.
            pass
        del self._map


def attach(name: str, size: int) -> memoryview:
    """Map another process's arena by its region's name.  Raises KvhubError when it has gone."""
    try:
        fd = os.open(name, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise KvhubError(
            f"arena {name}: cannot map it ({error.strerror}); its owner has ended or is another user"
        ) from error
    try:
        view = memoryview(mmap.mmap(fd, size))
    finally:
        os.close(fd)
    pages.populate(view, threading.Event())
    return view
