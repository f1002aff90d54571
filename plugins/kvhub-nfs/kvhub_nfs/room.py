"""`Rooms`: what a store does when its file system or quota is full."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from kvhub.errors import KvhubError
from kvhub.pool.room import make_room
from kvhub_nfs.medium import DirectoryMedium

SWEEP_SECONDS = 2.0
"""A sweep keeps one worker that long at most: loads go on with the others."""
REST_SECONDS = 30.0
"""After a sweep that found nothing to remove: everything is young, and will be for a while."""


class Rooms:
    """Thread-safe: one sweeps at a time, and who comes meanwhile does not wait."""

    def __init__(self, root: Path, report: Callable[[str, int], None]) -> None:
        self._root, self._report = root, report
        self._sweeping = threading.Lock()
        self._rest_until = 0.0

    def make(self, size: int, seconds: float) -> bool:
        """Remove what was longest unused, within `seconds`; whether anything went."""
        if time.monotonic() < self._rest_until or not self._sweeping.acquire(blocking=False):
            return False
        gone = 0
        try:
            with DirectoryMedium(self._root) as medium:
                gone = make_room(medium, size, min(seconds, SWEEP_SECONDS)).chunks
        except (OSError, KvhubError):
            self._report("io_errors", 1)
        finally:
            if not gone:
                self._rest_until = time.monotonic() + REST_SECONDS
            self._sweeping.release()
        self._report("room_sweeps", 1)
        self._report("room_chunks", gone)
        return gone > 0
