"""KV memory of the fake engine, and the model that fills it: every byte of it matters for every later token."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from itertools import product
from operator import itemgetter
from typing import Any

import attrs

from kvhub.errors import LayoutError
from kvhub.keys import Context, encode
from kvhub.layout import Layout

POISON = 0xEE
VOCABULARY = 60_000


def token_offsets(layout: Layout) -> list[tuple[int, ...]]:
    """For each token of a block, where its bytes lie in the block: by layer, key then value, head, dimension.

    The order is the same for every layout of the same content, so two of these lists are a conversion.  Only for
    attention layouts with items of one byte.  Raises LayoutError for others.
    """
    if layout.kind != "attention" or layout.item_bytes != 1:
        raise LayoutError(f"the fake engine reads attention layouts of one-byte items, found {layout.text}")
    cut = layout.key_order.index("c") + 1
    sides = ((layout.key_order, layout.key_dim), (layout.value_order, layout.value_dim))

    def sizes(dim: int) -> dict[str, int]:
        return {"l": layout.layers, "h": layout.heads, "t": layout.block_tokens, "d": dim, "c": 1}

    def flat(letters: str, at: dict[str, int], room: dict[str, int]) -> int:
        index = 0
        for letter in letters:
            index = index * room[letter] + at[letter]
        return index

    spans = []
    for order, dim in sides:
        span = 1
        for letter in order[cut:]:
            span *= sizes(dim)[letter]
        spans.append(span)
    found: list[tuple[int, ...]] = []
    for token in range(layout.block_tokens):
        offsets = []
        for layer, side, head in product(range(layout.layers), range(2), range(layout.heads)):
            order, dim = sides[side]
            for d in range(dim):
                at = {"l": layer, "h": head, "t": token, "d": d, "c": 0}
                outer = flat(order[: cut - 1], at, sizes(dim)) * sum(spans)
                offsets.append(outer + side * spans[0] + flat(order[cut:], at, sizes(dim)))
        found.append(tuple(offsets))
    return found


class BlockMemory:
    """The engine's KV: `blocks` blocks of bytes, read and written by token.

    `layout` is how the engine itself lays them out.  `told` is what it tells of that: the same, or an opaque layout.
    """

    def __init__(self, layout: Layout, blocks: int, told: Layout | None = None) -> None:
        self.layout = layout
        self.told = told or layout
        self.blocks = blocks
        self.data = bytearray(blocks * layout.block_bytes)
        self.offsets = token_offsets(layout)
        self._picks = [itemgetter(*offsets) for offsets in self.offsets]
        self._whole = itemgetter(*(offset for offsets in self.offsets for offset in offsets))

    def block(self, number: int) -> memoryview:
        """The bytes of one block.  Raises IndexError for a number that is none."""
        if not 0 <= number < self.blocks:
            raise IndexError(f"block {number} of {self.blocks}")
        size = self.layout.block_bytes
        return memoryview(self.data)[number * size : (number + 1) * size]

    def read(self, blocks: Sequence[int], tokens: int) -> bytes:
        """The vectors of the first `tokens` positions of a request, one after the other, whatever the layout."""
        full, rest = divmod(tokens, self.layout.block_tokens)
        parts = [bytes(self._whole(self.block(number))) for number in blocks[:full]]
        if rest:
            last = self.block(blocks[full])
            parts += [bytes(pick(last)) for pick in self._picks[:rest]]
        return b"".join(parts)

    def write(self, blocks: Sequence[int], position: int, vector: bytes) -> None:
        """Put the vector of one position where it belongs."""
        number, token = divmod(position, self.layout.block_tokens)
        block = self.block(blocks[number])
        for offset, value in zip(self.offsets[token], vector, strict=True):
            block[offset] = value

    def poison(self, numbers: Sequence[int]) -> None:
        """What a block holds before its owner wrote it: never KV, and never by chance the right bytes."""
        for number in numbers:
            block = self.block(number)
            block[:] = bytes([POISON]) * block.nbytes


@attrs.frozen
class FakeModel:
    """A "network" over digests.

    The vector of a position follows from its token and from the vectors of all earlier positions, as they lie in the
    blocks; the next token follows from all vectors.  So a wrong, stale, swapped or shifted byte changes all that comes.
    """

    weights: str
    vector_bytes: int
    vocabulary: int = VOCABULARY

    def start(self, context: Context) -> Any:
        """The state before the first position.  The salt is not in it: tenants share the weights."""
        state = blake2b(digest_size=self.vector_bytes)
        state.update(encode([self.weights, context.adapter]))
        return state

    def vector(self, state: Any, token: int, position: int, context: Context) -> bytes:
        """KV of the position behind `state`; a placeholder's comes from the item that it stands for."""
        inner = state.copy()
        inner.update(token.to_bytes(4, "little"))
        for item in context.items:
            if item.start <= position < item.start + item.tokens:
                inner.update(encode([position - item.start, item.identity]))
        return bytes(inner.digest())

    def choose(self, state: Any) -> int:
        """The token behind `state`."""
        inner = state.copy()
        inner.update(b"next")
        return int.from_bytes(inner.digest()[:8], "little") % self.vocabulary
