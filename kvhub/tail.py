"""Tails: what is left of a request beyond its last full chunk, kept so that the next turn can take part of it.

A tail's payload is its KV in whole blocks, then a digest per token, then a mark and the count:

    [KV blocks][count x 16 bytes of digests]["KVHT"][count: 4 bytes, little endian]

The digests are those of `Chain.digests`: they agree with a prompt's exactly as far as the tokens do, and tell nothing
of the tokens themselves.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from kvhub.errors import LayoutError
from kvhub.keys import DIGEST_BYTES
from kvhub.layout import Layout

_END = struct.Struct("<4sI")
_MARK = b"KVHT"


def trailer_bytes(tokens: int) -> int:
    """Bytes behind the KV of a tail of `tokens` tokens."""
    return tokens * DIGEST_BYTES + _END.size


def write_trailer(slot: memoryview, layout: Layout, digests: Sequence[bytes]) -> int:
    """Put the trailer behind the KV in `slot`; the payload's length."""
    start = layout.payload_bytes(len(digests))
    trailer = b"".join(digests) + _END.pack(_MARK, len(digests))
    slot[start : start + len(trailer)] = trailer
    return start + len(trailer)


def kept_tokens(payload: memoryview, layout: Layout) -> int:
    """How many tokens a tail holds; 0 for anything that is no tail."""
    size = payload.nbytes
    if size < _END.size:
        return 0
    mark, count = _END.unpack_from(payload, size - _END.size)
    whole = mark == _MARK and size == layout.payload_bytes(count) + trailer_bytes(count)
    return int(count) if whole else 0


def common_tokens(payload: memoryview, layout: Layout, digests: Sequence[bytes]) -> int:
    """How many first tokens a tail shares with a prompt whose digests are given; 0 for anything that is no tail."""
    count = kept_tokens(payload, layout)
    start = layout.payload_bytes(count)
    kept = bytes(payload[start : start + count * DIGEST_BYTES])
    for at in range(min(count, len(digests))):
        if kept[at * DIGEST_BYTES : (at + 1) * DIGEST_BYTES] != digests[at]:
            return at
    return min(count, len(digests))


class Measure:
    """How long payloads must be, for chunks in the hub's own layout and in others that can be converted."""

    def __init__(self, own: Layout, chunk_tokens: int) -> None:
        self.own = own
        self.chunk_tokens = chunk_tokens
        self.chunk_bytes = own.payload_bytes(chunk_tokens)
        self.slot_payload = self.chunk_bytes + trailer_bytes(chunk_tokens)
        self._known: dict[str, Layout | None] = {"": own, own.text: own}

    def layout(self, text: str) -> Layout | None:
        """The layout that a payload says it has, if this hub's kernels can read it."""
        if text not in self._known:
            if len(self._known) > 64:
                return None
            try:
                found: Layout | None = Layout.parse(text)
            except LayoutError:
                found = None
            if found is not None and not found.same_content(self.own):
                found = None
            self._known[text] = found
        return self._known[text]

    def fits(self, text: str, tokens: int, length: int) -> bool:
        """Whether `length` is what `tokens` tokens in that layout must have."""
        layout = self.layout(text)
        return layout is not None and length == layout.payload_bytes(tokens)
