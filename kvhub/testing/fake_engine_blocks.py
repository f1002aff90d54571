"""Blocks of the fake engine: a pool with use counts and a prefix cache of its own, as paged engines have."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import sha256

from kvhub.keys import Context, encode, pack_tokens


class BlockPool:
    """Free blocks are reused oldest first; one that holds cached tokens stays findable until then."""

    def __init__(self, blocks: int, *, caching: bool) -> None:
        self.blocks = blocks
        self.caching = caching
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(blocks))
        self._uses = [0] * blocks
        self._key: list[bytes | None] = [None] * blocks
        self._cached: dict[bytes, int] = {}

    @property
    def used(self) -> int:
        return self.blocks - len(self._free)

    def find(self, keys: Sequence[bytes]) -> list[int]:
        """Blocks of the leading run of keys that are cached."""
        found = []
        for key in keys:
            block = self._cached.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def take(self, count: int, shared: Sequence[int] = ()) -> list[int] | None:
        """`count` blocks to write into, and one more use of each shared one; None, and nothing done, without room."""
        idle = sum(block in self._free for block in shared)
        if len(self._free) - idle < count:
            return None
        for block in shared:
            self._free.pop(block, None)
            self._uses[block] += 1
        taken = []
        for _ in range(count):
            block, _ = self._free.popitem(last=False)
            self._drop(block)
            self._uses[block] = 1
            taken.append(block)
        return taken

    def free(self, blocks: Sequence[int]) -> None:
        """End one use of each; the last of a request are reused first, since prefixes are worth more."""
        for block in reversed(blocks):
            assert self._uses[block] > 0, f"block {block} was freed twice"
            self._uses[block] -= 1
            if not self._uses[block]:
                self._free[block] = None

    def cache(self, blocks: Sequence[int], keys: Sequence[bytes]) -> None:
        """These blocks hold whole, computed tokens."""
        if self.caching:
            for block, key in zip(blocks, keys, strict=False):
                if self._key[block] is None and key not in self._cached:
                    self._key[block] = key
                    self._cached[key] = block

    def forget(self) -> None:
        """Empty the prefix cache; blocks in use stay with their users."""
        for block in list(self._cached.values()):
            self._drop(block)

    def _drop(self, block: int) -> None:
        key, self._key[block] = self._key[block], None
        if key is not None:
            del self._cached[key]


def block_keys(keys: list[bytes], tokens: Sequence[int], context: Context, block_tokens: int) -> None:
    """Extend the keys of a request's full blocks to all of its tokens.  They are this engine's own, not the hub's."""
    if not keys and len(tokens) >= block_tokens:
        keys.append(_key(encode([context.adapter, context.salt]), tokens[:block_tokens], 0, context))
    while (len(keys) + 1) * block_tokens <= len(tokens):
        first = len(keys) * block_tokens
        keys.append(_key(keys[-1], tokens[first : first + block_tokens], first, context))


def _key(parent: bytes, tokens: Sequence[int], first: int, context: Context) -> bytes:
    inside = [item for item in context.items if item.start < first + len(tokens) and first < item.start + item.tokens]
    fields = [field for item in inside for field in (item.start, item.tokens, item.identity)]
    return sha256(parent + pack_tokens(tokens) + encode(fields)).digest()
