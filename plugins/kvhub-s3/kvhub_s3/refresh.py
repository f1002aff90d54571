"""`Refresher`: puts objects anew that are still of use and have not been written for long, so that sweepers keep them.

S3 notes no uses, and what is collected goes by the time of writing.  A thread of its own reads such an object, verifies
it and puts the same bytes back; what it cannot keep up with is dropped, which costs some accuracy only.  Tails are left
alone: a newer one may have come meanwhile, and would be lost.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from kvhub import chunkfile
from kvhub.pool.look import check_whole
from kvhub_s3 import failures
from kvhub_s3.client import Client
from kvhub_s3.download import Found

MOST_WAITING = 1024


class Refresher:
    """`note` is called from any thread and never blocks."""

    def __init__(
        self,
        name: str,
        client: Client,
        place: Callable[[str], str],
        space: str,
        after: float,
        chunk_bytes: int,
        report: Callable[[str, int], None],
    ) -> None:
        """Objects are put anew `after` seconds; `place` gives an object's key, `chunk_bytes` are a full chunk's."""
        self._name, self._client, self._place, self._space = name, client, place, space
        self._after, self._chunk_bytes, self._report = after, chunk_bytes, report
        self._waiting: deque[tuple[str, Found]] = deque()
        self._news = threading.Event()
        self._thread: threading.Thread | None = None
        self._over = False

    def note(self, name: str, found: Found) -> None:
        """The object was of use, and was `found` like this."""
        if time.time() - found.modified < self._after or self._over or len(self._waiting) >= MOST_WAITING:
            return
        self._waiting.append((name, found))
        self._news.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"kvhub-{self._name}-refresh", daemon=True)
            self._thread.start()

    def close(self, seconds: float) -> None:
        """Stop; waits for an object under way for at most `seconds`."""
        self._over = True
        self._news.set()
        if self._thread is not None:
            self._thread.join(seconds)

    def _run(self) -> None:
        while not self._over:
            self._news.wait()
            self._news.clear()
            while self._waiting and not self._over:
                try:
                    self._refresh(*self._waiting.popleft())
                except failures.Failure:
                    self._report("refreshes_refused", 1)

    def _refresh(self, name: str, found: Found) -> None:
        whole = memoryview(bytearray(found.size))
        there = self._client.read(self._place(name), whole, whole[found.size :])
        if there is None or there.found != found:  # another hub was here before
            return
        try:
            header = check_whole(self._space, name, whole)
        except (chunkfile.Damaged, chunkfile.Foreign):
            return
        if header.payload_bytes == self._chunk_bytes:
            self._client.put(self._place(name), whole)
            self._report("refreshed", 1)
