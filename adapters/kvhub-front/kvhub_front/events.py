"""Server-sent events, passed on whole: what a client reads ends at an event's end, whatever happens to the engine."""

from __future__ import annotations

import re

_DONE = re.compile(rb"(?:\A|[\r\n])data: ?\[DONE\]\s*[\r\n]")
_ENDS = (b"\n\n", b"\r\n\r\n")


class EventCutter:
    """Cuts the bytes of a stream at event boundaries.  Holds at most one unfinished event."""

    def __init__(self, *, most_bytes: int = 64 << 20) -> None:
        self._rest = b""
        self._most = most_bytes
        self.done = False
        """Whether `[DONE]` has passed: only then is the stream's end an end and not a failure."""

    def feed(self, data: bytes) -> bytes:
        """The events that `data` completes, possibly none.  Raises ValueError when one event passes `most_bytes`."""
        # Only the last three kept bytes can belong to a boundary that `data` completes.
        start = max(0, len(self._rest) - 3)
        self._rest += data
        cut = max((at + len(end) for end in _ENDS if (at := self._rest.rfind(end, start)) >= 0), default=0)
        whole, self._rest = self._rest[:cut], self._rest[cut:]
        if len(self._rest) > self._most:
            raise ValueError(f"an event is longer than {self._most} bytes")
        self.done = self.done or _DONE.search(whole) is not None
        return whole
