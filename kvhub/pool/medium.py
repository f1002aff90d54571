"""`Medium`: a shared store's medium as housekeeping sees it; a store offers it with `Store.medium`.

Blocking, and for operators' processes only: listing never happens on a serving path.  It is built from the member's
options alone; there is no engine, no arena and no namespace of one's own.  Objects are those of `kvhub.chunkfile`,
whole: 4096 bytes of header, then the payload.

Objects are spread over 256 shards by the first two hex digits of their names, the same for every space.  A shard is
what a sweep lists, leases and resumes at a time.  Any number of processes may keep house at once: a lease is a courtesy
that saves work, and whatever two of them do to one object must do no harm.
"""

from __future__ import annotations

import abc
import re
import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self

import attrs

SHARDS = tuple(f"{number:02x}" for number in range(256))
NAME = re.compile(r"[0-9a-f]{64}")
"""An object's name: its key in hex."""
SPACE = re.compile(r"[0-9a-f]{32}")
"""A space's id: the first half of the namespace's digest in hex."""
WORD = re.compile(r"[a-z0-9][a-z0-9-]{0,99}")
"""The name of a lease or a note."""


@attrs.frozen
class Space:
    """A namespace's part of the medium."""

    id: str
    """The first 32 hex digits of the namespace's digest."""
    text: str | None
    """What the namespace is (`kvhub.keys.Namespace.json`), as kept beside the chunks; None where none can be read."""


@attrs.frozen
class Entry:
    """One object, as it was when it was listed or read."""

    name: str
    size: int
    """Bytes of the whole object, header included."""
    used: float
    """When it was last written or used, in seconds since 1970 on the medium's clock (`Medium.now`).  A medium may know
    later uses only roughly; it never tells of one that is later than the truth by more than its own delay."""
    created: float | None
    """When it was written, on the same clock; None where only the object's header tells."""
    identity: object
    """Equal only for the very same object that, as far as the medium can tell, was not used in between."""


@attrs.frozen
class Leftover:
    """An unfinished object whose owner is surely dead: a temporary file, a multipart upload."""

    name: str
    size: int
    """Bytes; 0 where the medium does not tell."""
    since: float
    """When it was last written, in seconds since 1970 on the medium's clock."""


@attrs.frozen
class Room:
    """Bytes of the file system or quota."""

    total: int
    free: int


class Medium(abc.ABC):
    """What housekeeping asks of a shared store's medium.

    Every method may block and may raise OSError for what the medium does (a store whose client raises something else
    converts it: PermissionError, TimeoutError, ConnectionError, or plain OSError with a full sentence).  An absent
    object is never an error.  Methods are called from several threads at once.
    """

    @abc.abstractmethod
    def describe(self) -> str:
        """Where it is, for messages and without secrets: `/mnt/kv`, `s3://bucket/prefix`."""

    def now(self) -> float:
        """Seconds since 1970 on the clock that `Entry.used` is told in: the server's, where there is one."""
        return time.time()

    @abc.abstractmethod
    def room(self) -> Room | None:
        """Total and free bytes, or None where the medium cannot tell."""

    def close(self) -> None:  # noqa: B027 - optional by design
        """Let go of connections.  Idempotent."""

    # -- chunks ------------------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def spaces(self) -> Iterator[Space]:
        """Every namespace that has a place here, in order of id; also one without a text."""

    @abc.abstractmethod
    def entries(self, space: str, shard: str, after: str = "") -> Iterator[Entry]:
        """The objects of one shard in order of name, from the first name above `after` on.

        Streams: memory does not grow with the number of objects beyond a page of them.  Leaves out what is no chunk
        by its name.  Objects that come or go meanwhile may be told or not.
        """

    @abc.abstractmethod
    def read(self, space: str, name: str, into: memoryview) -> Entry | None:
        """Fill `into` from the object's first byte on, as far as both go, by a fresh open; None where it is absent.

        The entry is that of what was read; its `size` tells whether `into` took it all.  An empty `into` asks for the
        entry alone.  Does not count as a use.
        """

    @abc.abstractmethod
    def remove(self, space: str, entries: Sequence[Entry]) -> list[Entry]:
        """Remove those that still are what their `identity` says; returns what this very call removed.

        An object that was replaced or used since it was listed stays.  What is gone already is left out of the answer
        and is no error.  Takes up to 1000 at once.  Where the medium cannot compare and remove in one step, an object
        that is replaced in between may be lost: that costs a miss, since a name has only one content.
        """

    @abc.abstractmethod
    def put(self, space: str, name: str, whole: memoryview) -> bool:
        """Make an object visible whole or not at all; False where one with this name was there already."""

    @abc.abstractmethod
    def admit(self, space: Space) -> None:
        """Make the space ready for `put`, with its text beside it.

        Raises KvhubError with a full sentence where another text is there; a space without a text gets none.
        """

    @abc.abstractmethod
    def forget(self, space: str) -> bool:
        """Take away what is left of a space that has no chunks: its text, its directories; whether it is gone.

        Leaves everything as it is where a chunk or a live writer's file is found.
        """

    # -- unfinished objects ------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def leftovers(self, older_than: float) -> Iterator[Leftover]:
        """Unfinished objects that nobody will finish: their owner is known to be dead, or not written to for
        `older_than` seconds."""

    @abc.abstractmethod
    def clear(self, leftovers: Sequence[Leftover]) -> int:
        """Remove them; how many this call removed.  What is gone already is no error."""

    # -- leases and notes --------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def claim(self, lease: str, holder: str, seconds: float) -> bool:
        """Take, renew or take over a lease (a WORD) for `seconds`; whether `holder` has it now.

        True where nobody has it, where `holder` has it, and where whoever had it let it expire.  Best effort: two
        holders at once are possible and must be harmless.
        """

    @abc.abstractmethod
    def release(self, lease: str, holder: str) -> None:
        """Give a lease back if `holder` has it."""

    @abc.abstractmethod
    def note(self, name: str) -> bytes | None:
        """A small object by its name (a WORD), or None."""

    @abc.abstractmethod
    def put_note(self, name: str, data: bytes) -> None:
        """Keep a small object (up to 1 MiB), whole or not at all, in the place of what has its name."""

    @abc.abstractmethod
    def drop_note(self, name: str) -> None:
        """Remove a small object if it is there."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
