"""Codecs: how payloads are kept on a store, compressed, rounded or encrypted; and what one store does with them.

A codec works on whole payloads, on the store's worker threads, between the slot and the medium.  The chunk's header
names it by one byte, and several in the order in which they were applied, so that a reader knows what it needs.  Keys
and layouts do not depend on it.  The numbers
that a lossy codec brings back are others than the engine computed: a file that names one has a namespace of its own.
"""

from __future__ import annotations

import abc
import ctypes
import mmap
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import attrs

from kvhub.errors import Damaged, Foreign, KvhubError, MisuseError
from kvhub.types import MOST_CODECS, MOST_GROWTH, SEVERAL, Key


@attrs.frozen
class About:
    """What is known of a payload besides its bytes; the same when it is encoded and when it is decoded."""

    key: Key
    namespace: bytes
    """32 bytes."""
    layout: str
    """Layout text of the chunk, never empty (see `kvhub.layout.Layout.parse`); perhaps one that nobody here knows."""
    payload_bytes: int
    """Bytes that are to be encoded, or that come of decoding."""
    generated: int = 0
    """How many of its tokens were generated rather than given."""
    tenant: bytes = b""
    """Tag of the tenant whose chunk it is (`kvhub.keys.Context.tenant`); empty for none."""
    encoded: tuple[int, ...] = ()
    """Codecs that made these bytes before this one was asked; then they are not in `layout`."""


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
        returned may be memory that the same thread's next `encode` fills anew (`Scratch`).  Raises `Foreign` for a
        chunk that is not kept here, as one of a tenant without a key: it is not stored, which is no fault.
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
    by_store: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict)
    """Store -> names of its codecs in the order in which they are applied, for every store that has any."""

    @property
    def lossy(self) -> tuple[str, ...]:
        """What the namespace is told of lossy codecs that some step names, in one order."""
        named = {self.codecs[name] for chain in self.by_store.values() for name in chain}
        return tuple(sorted({codec.identity for codec in named if codec.cls.lossy}))


class CodecError(KvhubError):
    """A payload could not be encoded; it is not stored, least of all as it is."""


@attrs.frozen
class Encoded:
    """What is to be stored of a payload, good until the same thread encodes again."""

    stored: memoryview
    codecs: tuple[int, ...] = ()
    """What made it, in order; nothing where it is the payload itself."""
    between: tuple[int, ...] = ()
    """Bytes that each of them but the last made."""


class Codecs:
    """The codecs of one store: those that its chunks are saved with, and all that can be read there."""

    def __init__(self, own: Codec | Sequence[Codec] | None = None, others: Iterable[Codec] = ()) -> None:
        """`own` are applied in this order; `others` only read."""
        self.own: tuple[Codec, ...] = (own,) if isinstance(own, Codec) else tuple(own or ())
        if len(self.own) > MOST_CODECS:
            raise MisuseError(f"{len(self.own)} codecs for one store; a header names {MOST_CODECS} at most")
        known = [*self.own, *others]
        self._by_code: Mapping[int, Codec] = {codec.code: codec for codec in reversed(known)}
        self._seal = self.own[-1].code if self.own and self.own[-1].seals else None
        self.readable = frozenset(self._by_code) | ({0} if self._seal is None else set())
        """Codecs that a load may meet, 0 standing for none."""
        self.encoded = frozenset([*self._by_code, SEVERAL] if known else [])
        """Bytes of a header at which a payload has to be decoded."""
        self._between = tuple(Scratch() for _ in range(MOST_CODECS - 1))

    def hold(self, codecs: tuple[int, ...]) -> None:
        """Raise Foreign for what a sealed store does not read: whatever its own seal was not the last to make.

        Whoever can write to the medium could otherwise put a plain chunk in the place of an encrypted one.
        """
        if self._seal is not None and codecs[-1:] != (self._seal,):
            raise Foreign("codec")

    def encode(self, payload: memoryview, about: About) -> Encoded:
        """What to store of a payload.  Codecs that leave it as it is are left out, and not named.

        Raises CodecError, with the codec's own error as its cause, and Foreign for what is not to be stored here.
        """
        stored, codecs, between = payload, tuple[int, ...](), tuple[int, ...]()
        for codec in self.own:
            made = _made(codec, stored, attrs.evolve(about, payload_bytes=stored.nbytes, encoded=codecs))
            if made is None:
                continue
            if made.nbytes > payload.nbytes + MOST_GROWTH:
                raise CodecError(f"codec '{codec.label}' made {made.nbytes} bytes of {payload.nbytes}")
            between = (*between, stored.nbytes) if codecs else ()
            stored, codecs = made, (*codecs, codec.code)
        return Encoded(stored, codecs, between)

    def decode(
        self, codecs: Sequence[int], stored: memoryview, room: memoryview, about: About, between: Sequence[int] = ()
    ) -> None:
        """Fill `room` with the payload that `codecs` made `stored` of, with lengths `between` them.

        Raises Foreign or Damaged, and OSError, MemoryError or ImportError.
        """
        if not codecs:
            copy(stored, room)
        for at in reversed(range(len(codecs))):
            size = between[at - 1] if at else room.nbytes
            into = self._between[at - 1].take(size)[:size] if at else room
            before = attrs.evolve(about, payload_bytes=size, encoded=tuple(codecs[:at]))
            self._decode(codecs[at], stored, into, before)
            stored = into

    def _decode(self, code: int, stored: memoryview, room: memoryview, about: About) -> None:
        try:
            done = self._by_code[code].decode(stored.toreadonly(), room, about)
        except (Foreign, OSError, MemoryError, ImportError):
            raise
        except Exception as error:
            raise Damaged("codec") from error
        if done != about.payload_bytes:
            raise Damaged("codec")


def _made(codec: Codec, payload: memoryview, about: About) -> memoryview | None:
    """What one codec makes of a payload; None where that stays as it is."""
    try:
        made = codec.encode(payload, about)
        stored = memoryview(made or b"").cast("B")
    except Foreign:
        raise
    except Exception as error:
        raise CodecError(f"codec '{codec.label}' failed with {type(error).__name__}: {error}") from error
    if made is None and not codec.seals:
        return None
    if not stored.nbytes:
        raise CodecError(f"codec '{codec.label}' made no bytes of {payload.nbytes}")
    return stored


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
