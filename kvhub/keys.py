"""Namespaces, contexts and chained keys: which KV is the same KV.

A key is a SHA-256 chained over the tokens.  It depends on nothing but its inputs: no builtin `hash`, no process
seed, no dictionary order.  SHA-256 is chosen because it has CPU instructions on every current server (about half
a microsecond for a chunk of 64 tokens) and because two different prompts must never share a key.

    root      = H("R", namespace digest, fields of the context)
    chunk i   = H("C", parent, tokens)                 parent of chunk 0 is the root
                H("M", parent, tokens, items)          where multimodal items overlap the chunk
    part      = H("P", parent, tokens, items)          a chunk of fewer tokens, named by what is in it
    tail      = H("T", parent)                         the latest tail behind `parent`, whatever is in it
    digest j  = H("D", digest j-1, token j)[:16]       what tells how far a tail agrees with a prompt
    tag       = H("V", salt)[:16]                      the tenant's, which is kept beside its chunks and in no key

`parent` is 32 bytes and tokens are 4 bytes each, little endian, so every input has one reading; variable fields are
length-prefixed.  `tests/core/test_keys.py` holds golden vectors: a change of any of this changes KEY_VERSION.
"""

from __future__ import annotations

import json
import struct
import sys
import time
from array import array
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from hashlib import sha256

import attrs

from kvhub.errors import MisuseError
from kvhub.types import Key

KEY_VERSION = 1
DIGEST_BYTES = 16
TENANT_BYTES = 16
PIECE = 8192
"""Tokens that are keyed before other threads may run: 0.2 ms."""
YIELD = 20e-6
"""Seconds; after a sleep of 0 the same thread would have the interpreter's lock again before anyone else has woken."""


def encode(fields: Iterable[bytes | str | int | None]) -> bytes:
    """One reading only: each field as a type letter, its length (8 bytes, little endian) and its bytes."""
    parts = []
    for field in fields:
        if field is None:
            letter, data = b"n", b""
        elif isinstance(field, bytes):
            letter, data = b"b", field
        elif isinstance(field, str):
            # Engines accept any string as a salt, lone surrogates included; the pool must tell them apart too.
            letter, data = b"s", field.encode("utf-8", "surrogatepass")
        else:
            letter, data = b"i", str(field).encode()
        parts.append(letter + struct.pack("<Q", len(data)) + data)
    return b"".join(parts)


def _axes(value: Iterable[tuple[str, int, int]]) -> tuple[tuple[str, int, int], ...]:
    return tuple(sorted(value))


def _pairs(value: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(value))


@attrs.frozen(slots=False)
class Namespace:
    """Everything that makes KV unusable by another model or engine set-up; equal fields share, others never do."""

    model: str
    """What the weights are: an identity that does not depend on where they lie."""
    revision: str
    """Weights revision or digest: a new one never meets old KV."""
    dtype: str
    """Item type of the KV, with its quantisation and scales if any: `float8_e4m3fn k=0.04 v=0.05`."""
    groups: str
    """The layer groups, canonical text: kinds, layers, heads, dimensions, window, rotary set-up."""
    coordinates: tuple[tuple[str, int, int], ...] = attrs.field(converter=_axes, default=())
    """(axis, index, size) of every parallel axis that changes the bytes: `("tp", 0, 2)`.  Leave out replicated ones."""
    chunk_tokens: int = 64
    extra: tuple[tuple[str, str], ...] = attrs.field(converter=_pairs, default=())
    """Further facts that partition: a lossy codec, a speculative head."""

    @cached_property
    def json(self) -> str:
        """Readable form, kept beside the data."""
        fields = attrs.asdict(self) | {"key_version": KEY_VERSION}
        return json.dumps(fields, sort_keys=True, indent=1, ensure_ascii=True)

    @cached_property
    def digest(self) -> bytes:
        """32 bytes: SHA-256 over every field and `KEY_VERSION`."""
        fields: list[str | int] = [
            "kvhub namespace",
            KEY_VERSION,
            self.model,
            self.revision,
            self.dtype,
            self.groups,
        ]
        fields += [self.chunk_tokens, len(self.coordinates)]
        for axis, index, size in self.coordinates:
            fields += [axis, index, size]
        fields.append(len(self.extra))
        for name, value in self.extra:
            fields += [name, value]
        return sha256(encode(fields)).digest()


@attrs.frozen
class Item:
    """A multimodal item: `tokens` placeholders from `start` on stand for what `identity` names (its full hash)."""

    start: int
    tokens: int
    identity: str


def _items(items: Iterable[Item]) -> tuple[Item, ...]:
    return tuple(sorted(items, key=lambda item: (item.start, item.tokens, item.identity)))


@attrs.frozen
class Context:
    """What is mixed into a request's first key, besides its namespace."""

    adapter: str | None = None
    """LoRA name and content digest or generation; None is the base model."""
    salt: str | None = None
    """Tenant isolation, as the engine was given it; any string.  None and "" are different."""
    items: tuple[Item, ...] = attrs.field(converter=_items, default=())
    extra: tuple[tuple[str, str], ...] = attrs.field(converter=_pairs, default=())

    def root(self, namespace: Namespace | bytes) -> Key:
        """The parent of the first chunk."""
        digest = namespace if isinstance(namespace, bytes) else namespace.digest
        fields: list[bytes | str | int | None] = [digest, self.adapter, self.salt, len(self.extra)]
        for name, value in self.extra:
            fields += [name, value]
        return sha256(b"R" + encode(fields)).digest()

    @property
    def tenant(self) -> bytes:
        """Tag that chunks of this salt carry: 16 bytes that follow from it alone; empty without a salt.

        Whoever sees a tag can try guesses of its salt, so a salt that is to stay secret has to be random.
        """
        return sha256(b"V" + encode([self.salt])).digest()[:TENANT_BYTES] if self.salt is not None else b""


def pack_tokens(tokens: Sequence[int]) -> bytes:
    """4 bytes per token, little endian.  Raises MisuseError for an id outside 0..2^32-1."""
    try:
        packed = array("I", tokens)
    except (OverflowError, TypeError) as error:
        raise MisuseError(f"token ids must be integers from 0 to 4294967295: {error}") from error
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


class Chain:
    """The keys of one request's tokens; grows as tokens are generated.

    Not thread-safe.  `extend` costs about a microsecond per chunk (see `tests/benchmarks/lookup.py`).
    """

    __slots__ = ("_bytes", "_items", "_root", "chunk_tokens", "keys", "tenant")

    def __init__(self, root: Key, chunk_tokens: int, items: tuple[Item, ...] = (), tenant: bytes = b"") -> None:
        self._root = root
        self.tenant = tenant
        """Tag of the tenant whose chunks these are (`Context.tenant`)."""
        self._items = items
        self._bytes = bytearray()
        self.chunk_tokens = chunk_tokens
        self.keys: list[Key] = []
        """Keys of the full chunks so far."""

    @property
    def tokens(self) -> int:
        """Tokens so far."""
        return len(self._bytes) // 4

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens and compute the keys of the chunks that became full."""
        self._bytes += pack_tokens(tokens)
        span = self.chunk_tokens * 4
        keys, parent = self.keys, self.parent(len(self.keys))
        start, end = len(keys) * span, len(self._bytes) - span
        data = bytes(memoryview(self._bytes)[start:])
        if self._items:
            for at in range(0, end - start + 1, span):
                parent = self._digest(b"M", parent, data[at : at + span], start // 4 + at // 4)
                keys.append(parent)
            return
        prefix, append = b"C", keys.append
        for at in range(0, end - start + 1, span):
            parent = sha256(prefix + parent + data[at : at + span]).digest()
            append(parent)

    def extend_kindly(self, tokens: Sequence[int]) -> None:
        """`extend` for long prompts beside threads that must not be held up: hashing keeps the interpreter's lock."""
        for at in range(0, len(tokens), PIECE):
            self.extend(tokens[at : at + PIECE])
            time.sleep(YIELD)

    def _digest(self, letter: bytes, parent: Key, data: bytes, first: int) -> Key:
        last = first + len(data) // 4
        fields: list[int | str] = []
        for item in self._items:
            if item.start < last and first < item.start + item.tokens:
                fields += [item.start - first, item.tokens, item.identity]
        if not fields and letter == b"M":
            return sha256(b"C" + parent + data).digest()
        return sha256(letter + parent + struct.pack("<I", len(data) // 4) + data + encode(fields)).digest()

    def parent(self, chunks: int) -> Key:
        """The key behind which chunk number `chunks` comes."""
        return self.keys[chunks - 1] if chunks else self._root

    def part_key(self, tokens: int) -> Key:
        """Key of the partial chunk that ends with token number `tokens`, named by its own content."""
        first = tokens // self.chunk_tokens * self.chunk_tokens
        if not first < tokens <= self.tokens:
            raise MisuseError(f"no partial chunk ends at token {tokens} of {self.tokens}")
        return self._digest(
            b"P", self.parent(first // self.chunk_tokens), bytes(self._bytes[first * 4 : tokens * 4]), first
        )

    def tail_key(self, chunks: int) -> Key:
        """Where the latest tail behind the first `chunks` full chunks is kept."""
        return sha256(b"T" + self.parent(chunks)).digest()

    def digests(self, chunks: int, limit: int) -> list[bytes]:
        """A digest per token behind the first `chunks` full chunks, at most `limit` of them.

        Digest j agrees between two prompts exactly if they agree in every token (and item) up to j.
        """
        first = chunks * self.chunk_tokens
        last = min(first + limit, self.tokens)
        state, found = self.parent(chunks), []
        for at in range(first, last):
            token = bytes(self._bytes[at * 4 : at * 4 + 4])
            items = [i for i in self._items if i.start <= at < i.start + i.tokens]
            fields = [field for i in items for field in (at - i.start, i.tokens, i.identity)]
            state = sha256(b"D" + state + token + encode(fields)).digest()
            found.append(state[:DIGEST_BYTES])
        return found


def fingerprint(facts: Mapping[str, str]) -> str:
    """Short stable digest of named facts, for logs and for `Namespace.revision`."""
    fields: list[str] = [part for name in sorted(facts) for part in (name, facts[name])]
    return sha256(encode(fields)).hexdigest()[:32]
