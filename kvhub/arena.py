"""The arena: the hub's host memory, cut into equal slots in shared memory, with leases and an index.

A slot is free, then filling (claimed by someone who writes into it), then ready (published under a key).  A lease is
a promise that a slot will not change or go away until it is released.  Ready slots without leases are idle: they
are what the host tier keeps, and the least recently used of them make room for new claims.

The memory is a memfd: it needs no name in a file system, so a killed process leaves nothing behind, and other processes
of the same user map it through `/proc/PID/fd/N`, which is the region's name.
"""

from __future__ import annotations

import ctypes
import fcntl
import itertools
import mmap
import os
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from pathlib import Path

from kvhub.errors import KvhubError, MisuseError
from kvhub.types import Held, Key, Region

ALIGN = 4096
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, Linux 5.14: fault pages in without changing them
_POPULATE_PIECE = 64 << 20


def slot_bytes_for(payload_bytes: int) -> int:
    """Slot size for the largest payload: rounded up to whole pages, so that direct I/O can land in it."""
    return -(-payload_bytes // ALIGN) * ALIGN


def available_bytes() -> int | None:
    """Memory that this process may still take: the least of the machine's and the cgroup's; None if unknown."""
    found = []
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                found.append(int(line.split()[1]) * 1024)
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = Path("/sys/fs/cgroup/memory.current").read_text().strip()
        if limit != "max":
            found.append(int(limit) - int(used))
    except (OSError, ValueError):
        pass
    return min(found) if found else None


def _populate(view: memoryview, stop: threading.Event) -> threading.Thread:
    """Fault the pages of a mapping in, on a thread beside the engine's own start.

    The first touch of a fresh page costs more than the copy into it (0.35 instead of 2.4 GB/s measured), and again in
    every process that maps it (1.2 instead of 2.7).  Called through ctypes, which lets other threads run meanwhile.
    """
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

    def run() -> None:
        start = ctypes.addressof(ctypes.c_char.from_buffer(view))
        for at in range(0, view.nbytes, _POPULATE_PIECE):
            if stop.is_set() or madvise(start + at, min(_POPULATE_PIECE, view.nbytes - at), _POPULATE_WRITE):
                return

    thread = threading.Thread(target=run, name="kvhub-arena-warm", daemon=True)
    thread.start()
    return thread


class Arena:
    """Slots, index and leases.  Every method is safe from any thread and takes no longer than its loop."""

    def __init__(self, capacity: int, slot_bytes: int, *, name: str = "arena") -> None:
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
        self._free = list(range(slots - 1, -1, -1))
        self._index: dict[Key, int] = {}
        self._idle: OrderedDict[Key, int] = OrderedDict()
        self._held: list[Held | None] = [None] * slots
        self._key: list[Key | None] = [None] * slots
        self._leases = [0] * slots
        self._keep = [True] * slots
        self.evictions = 0
        self._stop = threading.Event()
        self._warmer = _populate(self.region.view, self._stop)

    # -- what is there ---------------------------------------------------------------------------------------------

    def __contains__(self, key: Key) -> bool:
        return key in self._index

    def run(self, keys: Sequence[Key]) -> int:
        """How many of the first keys are ready, without leasing them."""
        index = self._index
        for count, key in enumerate(keys):
            if key not in index:
                return count
        return len(keys)

    def lease_run(self, keys: Sequence[Key]) -> list[int]:
        """Lease the leading run of ready keys; their slots."""
        with self.lock:
            index, idle, leases, found = self._index, self._idle, self._leases, []
            for key in keys:
                slot = index.get(key)
                if slot is None:
                    break
                if not leases[slot]:
                    del idle[key]
                leases[slot] += 1
                found.append(slot)
            return found

    def lease(self, key: Key) -> int | None:
        """Lease one ready key; its slot, or None."""
        found = self.lease_run((key,))
        return found[0] if found else None

    def held(self, slot: int) -> Held:
        """What a ready slot holds.  Raises MisuseError for a slot that holds nothing."""
        held = self._held[slot]
        if held is None:
            raise MisuseError(f"slot {slot} holds no chunk")
        return held

    # -- filling ---------------------------------------------------------------------------------------------------

    def claim(self, count: int, *, spare: int = 0) -> list[int]:
        """Take up to `count` slots for filling, each with one lease; evicts idle chunks, oldest first.

        Returns fewer when the rest is leased.  `spare` slots are left free for others.
        """
        with self.lock:
            free, taken = self._free, []
            room = len(free) + len(self._idle) - spare
            for _ in range(min(count, room)):
                if not free:
                    key, slot = self._idle.popitem(last=False)
                    del self._index[key]
                    self._clear(slot)
                    self.evictions += 1
                slot = free.pop()
                self._leases[slot] = 1
                taken.append(slot)
            return taken

    def publish(self, key: Key, held: Held, *, keep: bool = True, replace: bool = False) -> bool:
        """Make a filled slot ready under `key`; the claimer's lease stays and has to be released.

        False when another slot is ready under that key (unless `replace`): this one then stays private to its
        leases and is freed with the last.  With `keep=False` the chunk goes as soon as nobody leases it.
        """
        with self.lock:
            slot = held.slot
            if not self._leases[slot] or self._key[slot] is not None:
                raise MisuseError(f"slot {slot} was not claimed for filling")
            self._held[slot] = held
            if key in self._index:
                if not replace:
                    self._keep[slot] = False
                    return False
                self._drop(key)
            self._index[key] = slot
            self._key[slot] = key
            self._keep[slot] = keep
            return True

    def release(self, slots: Iterable[int]) -> None:
        """End one lease on each slot.  Raises MisuseError for a slot that has none."""
        with self.lock:
            for slot in slots:
                if self._leases[slot] < 1:
                    raise MisuseError(f"slot {slot} has no lease to release")
                self._leases[slot] -= 1
                if self._leases[slot]:
                    continue
                key = self._key[slot]
                if key is not None and self._keep[slot]:
                    self._idle[key] = slot
                    continue
                if key is not None:
                    del self._index[key]
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
        slot = self._index.pop(key)
        self._key[slot] = None
        self._keep[slot] = False
        if self._idle.pop(key, None) is not None:
            self._clear(slot)
        return True

    def _clear(self, slot: int) -> None:
        self._key[slot] = self._held[slot] = None
        self._keep[slot] = True
        self._free.append(slot)

    # -- life ------------------------------------------------------------------------------------------------------

    def keys(self) -> list[Key]:
        """Every ready key, in no order."""
        with self.lock:
            return list(self._index)

    def coldest(self, count: int) -> list[Key]:
        """Up to `count` keys in the order in which claims would evict them, the next one first."""
        with self.lock:
            return list(itertools.islice(self._idle, count))

    @property
    def free(self) -> int:
        """Slots that hold nothing."""
        return len(self._free)

    def usage(self) -> dict[str, int]:
        """Slots by state: total, free, idle, leased; and bytes of the ready chunks."""
        with self.lock:
            total, free, idle = self.region.slots, len(self._free), len(self._idle)
            size = sum(held.length for held in self._held if held is not None)
            return {"total": total, "free": free, "idle": idle, "leased": total - free - idle, "bytes": size}

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
    _populate(view, threading.Event())
    return view
