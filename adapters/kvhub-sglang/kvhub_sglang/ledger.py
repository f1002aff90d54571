"""The ledger: which kvhub key stands for which of SGLang's page hashes.

HiCache's storage interface names a page by SHA-256 over the hash before it and its own tokens, and never hands over the
tokens.  They do pass through two functions of SGLang, `get_hash_str` and `write_storage`, which `hooks` listens to.  A
page enters the ledger only after its hash was computed again from the tokens that were heard: what the engine means by
a hash and what kvhub's key says are then the same tokens, whatever the engine did in between.  A page that is
not in the ledger is a miss, never a guess.
"""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from hashlib import sha256

import attrs

from kvhub.keys import Chain, Context, pack_tokens
from kvhub.types import Key

MOST_PAGES = 1 << 17
"""Pages that are remembered, the latest; about 300 bytes each."""
MOST_SEEDS = 1024
"""Contexts that are remembered, the latest."""
MOST_WAITING = 4096
"""Notes that wait to be worked off.  The engine's thread only appends them; keys are computed where they are needed."""


@attrs.frozen
class Page:
    """A page as the hub knows it."""

    key: Key
    number: int
    """Which page of its prompt it is, from 0."""
    tenant: bytes = b""
    """Tag of the tenant whose prompt it is of (`Context.tenant`)."""


@attrs.frozen
class _Note:
    """Tokens and the hashes that the engine gave their pages; `prior` is the hash before the first, "" at a root."""

    tokens: array[int]
    prior: str
    hashes: tuple[str, ...]


class Ledger:
    """Thread-safe."""

    def __init__(self, root: Callable[[Context], Key], page_tokens: int, vocabulary: int) -> None:
        """`root` gives the parent of a context's first page; ids from `vocabulary` on stand for something else."""
        self._root, self._plain = root, root(Context())
        self._page_tokens = page_tokens
        self._vocabulary = vocabulary
        self._lock = threading.Lock()
        self._waiting: deque[_Note] = deque(maxlen=MOST_WAITING)
        self._pages: OrderedDict[str, Page] = OrderedDict()
        self._seeds: OrderedDict[str, tuple[Key, bytes]] = OrderedDict()

    def note(self, tokens: array[int], prior: str, hashes: Sequence[str]) -> None:
        """The engine hashed these tokens, whole pages; costs an append."""
        self._waiting.append(_Note(tokens, prior, tuple(hashes)))

    def note_seed(self, seed: str, context: Context | None) -> None:
        """The engine begins the chains of a context with `seed`; of None nothing may be kept."""
        with self._lock:
            self._seeds.pop(seed, None)
            if context is not None:
                self._seeds[seed] = (self._root(context), context.tenant)
            while len(self._seeds) > MOST_SEEDS:
                self._seeds.popitem(last=False)

    def forget(self) -> None:
        """Forget every page and seed: what they stand for is no longer certain."""
        with self._lock:
            self._waiting.clear()
            self._pages.clear()
            self._seeds.clear()

    def find(self, hashes: Sequence[str]) -> list[Page]:
        """The pages of the leading run of hashes that the ledger knows."""
        with self._lock:
            while self._waiting:
                self._learn(self._waiting.popleft())
            found = []
            for name in hashes:
                page = self._pages.get(name)
                if page is None:
                    break
                self._pages.move_to_end(name)
                found.append(page)
            return found

    def __len__(self) -> int:
        return len(self._pages)

    def _learn(self, note: _Note) -> None:
        if not note.hashes or note.hashes[-1] in self._pages:
            return
        starts = self._starts(note)
        if starts is None:
            return
        parent, number, digest, tenant = starts
        size = self._page_tokens
        for at, name in enumerate(note.hashes):
            tokens = note.tokens[at * size : (at + 1) * size]
            if len(tokens) < size or not 0 <= min(tokens) <= max(tokens) < self._vocabulary:
                return
            digest = sha256(digest + pack_tokens(tokens)).digest()
            if digest.hex() != name:
                return
            chain = Chain(parent, size)
            chain.extend(tokens)
            (parent,) = chain.keys
            self._pages[name] = Page(parent, number + at, tenant)
        while len(self._pages) > MOST_PAGES:
            self._pages.popitem(last=False)

    def _starts(self, note: _Note) -> tuple[Key, int, bytes, bytes] | None:
        """Parent key, number and digest in front of a note's first page, and tenant; None where that is not known."""
        if note.prior:
            digest, before, begun = bytes.fromhex(note.prior), self._pages.get(note.prior), self._seeds.get(note.prior)
            if before is not None:
                return before.key, before.number + 1, digest, before.tenant
            return (begun[0], 0, digest, begun[1]) if begun is not None else None
        first = pack_tokens(note.tokens[: self._page_tokens])
        if sha256(first).hexdigest() == note.hashes[0]:
            return self._plain, 0, b"", b""
        # What is written out begins a chain without saying with which seed; most likely with a late one.
        for name, (begin, tenant) in reversed(self._seeds.items()):
            seed = bytes.fromhex(name)
            if sha256(seed + first).hexdigest() == note.hashes[0]:
                return begin, 0, seed, tenant
        return None
