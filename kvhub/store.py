"""`Store`, and `BlockingStore`, the easy way to write one: three methods, everything hard done here."""

from __future__ import annotations

import abc
from collections.abc import Iterator

from kvhub.errors import MisuseError
from kvhub.member import Member
from kvhub.types import Key


class Store(Member):
    """Member + scan.  FIND, LOAD, SAVE and, where claimed, REMOVE come as batches."""

    def scan(self) -> Iterator[tuple[Key, int]]:
        """(key, stored bytes) of every chunk of this hub's namespace, in no order; may block; for operators only.

        Never called while serving.  Works where the capabilities claim `scans`.
        """
        raise MisuseError(f"{self.context.name}: this store does not claim to scan")

    @abc.abstractmethod
    def used_bytes(self) -> int | None:
        """Bytes now kept, as far as known without listing; None where the store cannot tell."""
