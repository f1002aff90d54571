"""Codecs: how payloads are kept on a store, compressed, rounded or encrypted; and what one store does with them.

A codec works on whole payloads, on the store's worker threads, between the slot and the medium.  It is named by one
byte in the chunk's header, so that a reader knows what it needs.  Keys and layouts do not depend on it.  The numbers
that a lossy codec brings back are others than the engine computed: a file that names one has a namespace of its own.
"""

from __future__ import annotations

import abc
import ctypes
import mmap
import threading
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import attrs

from kvhub.errors import Damaged, Foreign, KvhubError
from kvhub.types import MOST_GROWTH, Key


@attrs.frozen
class About:
    """What is known of a payload besides its bytes; the same when it is encoded and when it is decoded."""

    key: Key
    namespace: bytes
    """32 bytes."""
    layout: str
    """Layout text of the payload, never empty (see `kvhub.layout.Layout.parse`); perhaps one that nobody here knows."""
    payload_bytes: int
    generated: int = 0
    """How many of its tokens were generated rather than given."""


class Codec(abc.ABC):
    """One way to keep payloads.  An instance is shared: `encode` and `decode` are called by several threads at once.

    A codec that may change its form puts a version into what it stores and raises `Foreign` for a later one.
    """

    name: ClassVar[str]
    """Short word that tells it from all others: `zstd`."""
    code: ClassVar[int]
    """The header's codec byte, 1 to 255; from 128 on for codecs of other projects."""
    kind: ClassVar[str] = ""
    """For a plugin with several codecs, as for stores: `use: PLUGIN/KIND`."""
    lossy: ClassVar[bool] = False
    """Whether decoded payloads may differ from what was encoded."""
    seals: ClassVar[bool] = False
    """Whether a store with this codec keeps and reads nothing but what this codec made: for encryption.  Such a codec
    never returns None from `encode`."""
    Config: ClassVar[type]
    """A frozen attrs class of options, as for members."""

    def __init__(self, config: Any, name: str) -> None:
        """`name` is the codec's name in the file, for messages.  Raises KvhubError when the codec cannot work."""
        self.config = config
        self.label = name

    @classmethod
    def identity(cls, config: Any) -> str:
        """For lossy codecs: equal texts mean equal numbers.  Override it where options or versions change numbers."""
        return cls.name

    @abc.abstractmethod
    def encode(self, payload: memoryview, about: About) -> bytes | bytearray | memoryview | None:
        """What is to be stored, at most MOST_GROWTH bytes longer than `payload`; None to store the payload as it is.

        `payload` is read-only and lent until the return.  None is for what does not get smaller and, from lossy codecs,
        for tails (`kvhub.tail`) and for layouts that they do not know.  An engine's thread may share this process: do
        not hold the interpreter's lock for milliseconds, as filling a new bytearray and joining bytes do.  What is
        returned may be memory that the same thread's next `encode` fills anew (`Scratch`).
        """

    @abc.abstractmethod
    def decode(self, stored: memoryview, room: memoryview, about: About) -> int:
        """Fill `room`, which has `about.payload_bytes` bytes, with the payload; returns how many were filled.

        `stored` passed its checksum: it is what some writer stored.  Raises `Foreign` for what another hub could read
        (a later form, a key that is not here): a miss, and the object stays.  Anything else that is raised, short of
        OSError, MemoryError and ImportError, and another length than `about.payload_bytes` mean a damaged object.
        """


@attrs.frozen
class CodecConfig:
    """One codec of the file, by the name that steps use."""

    name: str
    use: str
    cls: type[Codec]
    options: Any
    """An instance of `cls.Config`."""

    @property
    def identity(self) -> str:
        """What a lossy codec adds to the namespace."""
        return self.cls.identity(self.options)


@attrs.frozen
class Encodings:
    """The codecs of a file, and which store has which."""

    codecs: Mapping[str, CodecConfig] = attrs.field(factory=dict)
    """By the name that steps use: entries of `codecs`, then `use:` words that steps name without an entry."""
    by_store: Mapping[str, str] = attrs.field(factory=dict)
    """Store -> name of its codec, for every store that has one."""

    @property
    def lossy(self) -> tuple[str, ...]:
        """What the namespace is told of lossy codecs that some step names, in one order."""
        named = {self.codecs[name] for name in self.by_store.values()}
        return tuple(sorted({codec.identity for codec in named if codec.cls.lossy}))


class CodecError(KvhubError):
    """A payload could not be encoded; it is not stored, least of all as it is."""


class Codecs:
    """The codecs of one store: the one that its chunks are saved with, and all that can be read there."""

    def __init__(self, own: Codec | None = None, others: Iterable[Codec] = ()) -> None:
        self.own = own
        known = [*([own] if own else []), *others]
        self._by_code: Mapping[int, Codec] = {codec.code: codec for codec in reversed(known)}
        sealed = own is not None and own.seals
        self.readable = frozenset([own.code] if own and sealed else [0, *self._by_code])
        """Codec bytes that a load may meet.  A sealed store reads what its own codec made and nothing else: whoever can
        write to the medium could otherwise put a plain chunk in the place of an encrypted one."""
        self.encoded = self.readable - {0}

    def encode(self, payload: memoryview, about: About) -> tuple[int, memoryview]:
        """(codec byte, what to store, good until the same thread encodes again).

        Raises CodecError, with the codec's own error as its cause.
        """
        if self.own is None:
            return 0, payload
        try:
            made = self.own.encode(payload, about)
            if made is None and not self.own.seals:
                return 0, payload
            stored = memoryview(made or b"").cast("B")
        except Exception as error:
            raise CodecError(f"codec '{self.own.label}' failed with {type(error).__name__}: {error}") from error
        if made is None or not 0 < stored.nbytes <= payload.nbytes + MOST_GROWTH:
            raise CodecError(f"codec '{self.own.label}' made {stored.nbytes} bytes of {payload.nbytes}")
        return self.own.code, stored

    def decode(self, code: int, stored: memoryview, room: memoryview, about: About) -> None:
        """Fill `room` with the payload.  Raises Foreign or Damaged, and OSError, MemoryError or ImportError."""
        if not code:
            copy(stored, room)
            return
        try:
            done = self._by_code[code].decode(stored.toreadonly(), room, about)
        except (Foreign, OSError, MemoryError, ImportError):
            raise
        except Exception as error:
            raise Damaged("codec") from error
        if done != about.payload_bytes:
            raise Damaged("codec")


class Scratch(threading.local):
    """Memory for one stored payload: each thread's own, kept for its next one, aligned for direct reads."""

    def __init__(self) -> None:
        self._memory = memoryview(b"")

    def take(self, room: int) -> memoryview:
        """Memory for whatever may decode to `room` bytes."""
        size = room + MOST_GROWTH
        if self._memory.nbytes < size:
            self._memory = memoryview(mmap.mmap(-1, size))
        return self._memory[:size]


def copy(source: memoryview, target: memoryview) -> None:
    """Copy bytes into `target`, of the same length, without holding up other threads as slicing would."""
    size = source.nbytes
    if size != target.nbytes:
        raise ValueError(f"{size} bytes do not fit {target.nbytes}")
    if size:
        ctypes.memmove(
            ctypes.addressof(ctypes.c_char.from_buffer(target)),
            ctypes.addressof(ctypes.c_char.from_buffer(source)),
            size,
        )
