"""`Member`: the one abstract class on the hot path.  Stores and transports are members.

Life: built from its configuration → `attach` once → any number of `submit` and `poll` → `close` once.

Threads: the hub calls `attach` and `close` from the thread that opens or closes it, `submit` from any thread but
never two at a time, and `poll` from its own pump thread.  A member does its work on threads of its own.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ClassVar, Protocol

from kvhub.findings import Finding
from kvhub.types import Batch, Capabilities, Completion, MemberContext, Region


class Bare(Protocol):
    """One plain connection to a member's medium, as little as it takes: what `kvhub bench` holds a store against.

    Used by one thread.  Every method may block and raises OSError.  Names are `kvhub bench`'s own.
    """

    def put(self, name: str, payload: memoryview) -> None:
        """Write an object, in place of one that is there."""

    def get(self, name: str, room: memoryview) -> None:
        """All of an object, into room of its size."""

    def drop(self, name: str) -> None:
        """Remove an object; what is not there is gone, too."""

    def close(self) -> None:
        """End the connection; idempotent."""


class Member(abc.ABC):
    """Something that takes batches of chunks and reports how each chunk ended."""

    Config: ClassVar[type]
    """A frozen attrs class; the YAML's options of this member are its fields.  Every field has a type and, where
    the operator may leave it out, a default.  Converters from `kvhub.units` turn '64GiB' and '150ms' to numbers.
    A field may carry `metadata={"help": "..."}`, which the CLI shows."""

    def __init__(self, config: Any, context: MemberContext) -> None:
        self.config = config
        self.context = context

    @classmethod
    def directory(cls, config: Any) -> Path | None:
        """Where on a file system of this machine a member with these options keeps chunks, None for nowhere.

        For `kvhub doctor` and `kvhub bench`, which look at that file system and measure it.
        """
        return None

    @classmethod
    def bare(cls, config: Any) -> Bare | None:
        """A new plain connection to the medium of a member with these options, None where there is no such thing.

        For `kvhub bench`, which measures several at once.  Raises KvhubError where it cannot be made.
        """
        return None

    @property
    @abc.abstractmethod
    def capabilities(self) -> Capabilities:
        """Fixed from the return of `attach` on."""

    @abc.abstractmethod
    def attach(self, region: Region, wake: Callable[[], None]) -> None:
        """Get ready to move chunks of `region`; probe the medium with a real write, read and delete.

        May block for a few seconds: it runs at start.  Raises `KvhubError` with a full sentence when the member
        cannot work; the start then stops.  `wake` may be called from any thread whenever `poll` has news.
        """

    @abc.abstractmethod
    def submit(self, batch: Batch) -> None:
        """Take an order; return within a millisecond.

        Never raises for what the world does: a full queue is a completion with FULL, an unreachable peer one with
        FAILED.  Slots are lent until the batch's completion has been polled, also beyond the deadline: a member
        that may still write into a slot must not complete the batch.  Raises MisuseError for an operation that the
        capabilities do not claim, for a closed member, and for tuples of unequal length.
        """

    @abc.abstractmethod
    def poll(self) -> list[Completion]:
        """Completions since the last call, in any order; never blocks."""

    def cancel(self, batch_id: int) -> None:  # noqa: B027 - optional by design
        """Nobody waits for this batch any more: end it soon, with LATE for what is not done.  Never blocks."""

    def healthy(self) -> str:
        """Empty when well; otherwise one short sentence for operators (shown, never acted upon)."""
        return ""

    def diagnose(self) -> Iterable[Finding]:
        """What `kvhub doctor` should tell of the member's surroundings: its server, its clock, its lanes.

        Called after `attach`, also after one that raised, and never while serving.  May block for a few seconds.  What
        it raises is told as a fault of the plugin.
        """
        return ()

    @abc.abstractmethod
    def close(self) -> None:
        """Stop within 5 seconds: end threads, sockets and temporary files; drop what is queued.  Idempotent."""
