"""`Scratch`: namespaces that nobody else has, on a medium that others may use; and how they are taken away again.

A law says `namespace="tests"`; what the member gets is a random namespace instead.  So no law can meet, change or
remove a chunk of a real model, however wrong the member is, unless it mixes namespaces, which is a law of its own.
"""

from __future__ import annotations

import contextlib
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from typing import Any

import attrs

from kvhub.codec import Codecs
from kvhub.errors import KvhubError
from kvhub.pool.medium import Medium
from kvhub.store import Store
from kvhub.testing.driver import Driver
from kvhub.types import Batch, Key, MemberContext, Op, Outcome, Region

MODEL = "kvhub-verify-scratch"
"""The model's name in every scratch namespace: what was left by a process that was killed is found by it."""
_TEXT = f'{{"model": "{MODEL}"}}'
_AT_ONCE = 256
_FORGET_SECONDS = 3.0


@contextmanager
def unbroken() -> Iterator[None]:
    """Ctrl-C waits until this is over: half a start, end or write would leave what the cleaning cannot take away."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pending: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda found, _: pending.append(found)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
        for found in pending:
            signal.raise_signal(found)


def medium_of(cls: type[Store], options: Any) -> Medium | None:
    """The store's medium for housekeeping, None where it offers none."""
    try:
        return cls.medium(options)
    except KvhubError:
        return None


class Scratch:
    """The namespaces of one law, or of a run."""

    def __init__(self, cls: type[Store], options: Any, codecs: Codecs | None = None) -> None:
        self._base, self._options, self._codecs = cls, options, codecs
        self._salt = secrets.token_bytes(16)
        self._contexts: dict[bytes, MemberContext] = {}
        self._saved: dict[bytes, set[Key]] = {}
        self._opened: list[Store] = []
        self._cls = self._recording()

    def open(self, context: MemberContext) -> Store:
        """A member of the law's `context`, in a namespace of this scratch."""
        namespace = sha256(self._salt + context.namespace).digest()
        mine = attrs.evolve(context, namespace=namespace, namespace_json=_TEXT, codecs=self._codecs)
        self._contexts[namespace] = mine
        member = self._cls(self._options, mine)
        self._opened.append(member)
        return member

    def note(self, namespace: bytes, keys: Sequence[Key]) -> None:
        """These keys may have objects now."""
        self._saved.setdefault(namespace, set()).update(keys)

    def clean(self) -> list[str]:
        """Remove everything; what could not be removed, as sentences.  May be called again."""
        # A law that was interrupted may have left one open, whose workers would still put chunks there.
        while self._opened:
            with contextlib.suppress(Exception):
                self._opened.pop().close()
        medium = medium_of(self._base, self._options)
        left = []
        for namespace, context in list(self._contexts.items()):
            keys = self._saved.get(namespace, set())
            try:
                said = self._removed(context, keys) if medium is None else _swept(medium, namespace, keys)
            except (OSError, KvhubError, AssertionError) as error:
                said = f"{type(error).__name__}: {error}"
            if said:
                left.append(f"namespace {namespace.hex()[:32]}: {said}")
            else:
                self._saved.pop(namespace, None)
        if medium is not None:
            medium.close()
        return left

    def _recording(self) -> type[Store]:
        """The store's class, whose members tell us what they save: a store need not be able to list."""
        scratch = self

        class Recording(self._base):  # type: ignore[misc, name-defined]
            def attach(self, region: Region, wake: Callable[[], None]) -> None:
                with unbroken():
                    super().attach(region, wake)

            def submit(self, batch: Batch) -> None:
                if batch.op is Op.SAVE:
                    scratch.note(self.context.namespace, batch.keys)
                super().submit(batch)

            def close(self) -> None:
                with unbroken():
                    super().close()

        Recording.__name__ = Recording.__qualname__ = self._base.__name__
        return Recording

    def _removed(self, context: MemberContext, keys: set[Key]) -> str:
        """Ask the store itself; why something is left, or ""."""
        if not keys:
            return ""
        driver = Driver(self._base(self._options, context), slots=2)
        driver.attach()
        try:
            claims = driver.member.capabilities
            if not claims.removes:
                return f"the store cannot remove its {len(keys)} chunks" if claims.persistent else ""
            found = sorted(keys)
            gone = 0
            for at in range(0, len(found), _AT_ONCE):
                gone += driver.remove(found[at : at + _AT_ONCE]).count(Outcome.DONE)
            return f"{len(found) - gone} chunks could not be removed" if gone < len(found) else ""
        finally:
            driver.close()


def _swept(medium: Medium, namespace: bytes, keys: set[Key]) -> str:
    """Remove what housekeeping finds under the keys' shards, and the namespace itself."""
    space = namespace.hex()[:32]
    for shard in sorted({key.hex()[:2] for key in keys}):
        entries = list(medium.entries(space, shard))
        for at in range(0, len(entries), _AT_ONCE):
            medium.remove(space, entries[at : at + _AT_ONCE])
    until = time.monotonic() + _FORGET_SECONDS
    while not medium.forget(space):
        # A chunk that was touched while it was listed stays at first, and so does a writer's file.
        for shard in sorted({key.hex()[:2] for key in keys}):
            medium.remove(space, list(medium.entries(space, shard)))
        if time.monotonic() > until:
            return "chunks or files of writers are still there"
        time.sleep(0.05)
    return ""


@attrs.frozen
class Hand:
    """The contract's hand on stored objects, for stores that offer housekeeping a `kvhub.pool.medium.Medium`."""

    medium: Medium

    def read(self, context: MemberContext, key: Key) -> bytes | None:
        space, name = context.namespace.hex()[:32], key.hex()
        entry = self.medium.read(space, name, memoryview(b""))
        if entry is None:
            return None
        into = bytearray(entry.size)
        self.medium.read(space, name, memoryview(into))
        return bytes(into)

    def write(self, context: MemberContext, key: Key, data: bytes) -> None:
        space, name = context.namespace.hex()[:32], key.hex()
        until = time.monotonic() + _FORGET_SECONDS
        with unbroken():
            while not self.medium.put(space, name, memoryview(data)):
                entry = self.medium.read(space, name, memoryview(b""))
                if entry is not None:
                    self.medium.remove(space, [entry])
                assert time.monotonic() < until, f"the object of {name[:16]} cannot be replaced"
