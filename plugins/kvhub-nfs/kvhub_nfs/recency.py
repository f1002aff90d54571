"""`Touches`: moves the modification time of files that were of use, so that sweepers know what to keep.

A file is touched at most once in ten minutes, by whichever hub comes first: its own modification time tells.  A
thread of its own does it, off the hot path; what it cannot keep up with is dropped, which costs some accuracy only.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import deque
from collections.abc import Callable

TOUCH_SECONDS = 600.0
MOST_WAITING = 4096
_REFUSED = (errno.EROFS, errno.EACCES, errno.EPERM)


class Touches:
    """`note` is called from any thread and never blocks; a hung file server costs the one thread."""

    def __init__(self, name: str, report: Callable[[str, int], None]) -> None:
        self._name, self._report = name, report
        self._waiting: deque[str] = deque()
        self._news = threading.Event()
        self._thread: threading.Thread | None = None
        self._over = False
        self._ahead_ns = 0

    def note(self, path: str, touched_ns: int) -> None:
        """`path` was of use; its modification time was `touched_ns`."""
        if time.time_ns() + self._ahead_ns - touched_ns < TOUCH_SECONDS * 1e9:
            return
        if self._over or len(self._waiting) >= MOST_WAITING:
            return
        self._waiting.append(path)
        self._news.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"kvhub-{self._name}-touch", daemon=True)
            self._thread.start()

    def close(self, seconds: float) -> None:
        """Stop; waits for a touch under way for at most `seconds`."""
        self._over = True
        self._news.set()
        if self._thread is not None:
            self._thread.join(seconds)

    def _run(self) -> None:
        while True:
            self._news.wait()
            self._news.clear()
            while self._waiting and not self._over:
                self._touch(self._waiting.popleft())
            if self._over:
                return

    def _touch(self, path: str) -> None:
        try:
            os.utime(path)  # to the server's now, which needs no more than leave to write
            self._ahead_ns = os.stat(path).st_mtime_ns - time.time_ns()  # noqa: PTH116
        except FileNotFoundError:
            return
        except OSError as error:
            self._report("touches_refused" if error.errno in _REFUSED else "io_errors", 1)
