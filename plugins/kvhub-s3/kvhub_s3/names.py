"""Keys of a bucket, below the operator's prefix.

v1/<first 2 digits of the key>/<first 32 digits of the namespace digest>/<key>.kv
v1/namespaces/<first 32 digits>/namespace.json
v1/scratch/<random>
"""

from __future__ import annotations

import attrs

from kvhub.types import KEY_BYTES

SUFFIX = ".kv"
HEX = "0123456789abcdef"
SHARDS = tuple(first + second for first in HEX for second in HEX)


def is_hex(text: str, digits: int) -> bool:
    return len(text) == digits and not text.strip(HEX)


@attrs.frozen
class Names:
    """Where things are in one bucket."""

    root: str
    """`<prefix>/v1`, or `v1` without a prefix."""

    @classmethod
    def below(cls, prefix: str) -> Names:
        return cls(f"{prefix}/v1" if prefix else "v1")

    def shard(self, space: str, shard: str) -> str:
        """What every chunk of a namespace that begins with `shard` lies below."""
        return f"{self.root}/{shard}/{space}"

    def chunk(self, space: str, name: str) -> str:
        return f"{self.root}/{name[:2]}/{space}/{name}{SUFFIX}"

    def namespaces(self) -> str:
        return f"{self.root}/namespaces"

    def namespace_json(self, space: str) -> str:
        return f"{self.root}/namespaces/{space}/namespace.json"

    def scratch(self, word: str) -> str:
        return f"{self.root}/scratch/{word}"


def chunk_of(key: str) -> str | None:
    """The chunk that a bucket's key names, as 64 digits; None where it is no chunk's."""
    name = key.rpartition("/")[2].removesuffix(SUFFIX)
    return name if key.endswith(SUFFIX) and is_hex(name, 2 * KEY_BYTES) else None
