"""Keys of a bucket, below the operator's prefix.

v1/<first 2 digits of the key>/<first 32 digits of the namespace digest>/<key>.kv
v1/namespaces/<first 32 digits>/namespace.json
v1/scratch/<random>
"""

from __future__ import annotations

import attrs

from kvhub.pool.medium import NAME

SUFFIX = ".kv"


@attrs.frozen
class Names:
    """Where things are in one bucket."""

    root: str
    """`<prefix>/v1`, or `v1` without a prefix."""

    @classmethod
    def below(cls, prefix: str) -> Names:
        return cls(f"{prefix}/v1" if prefix else "v1")

    def shard(self, shard: str) -> str:
        """What every namespace's chunks that begin with `shard` lie below."""
        return f"{self.root}/{shard}"

    def part(self, space: str, shard: str) -> str:
        """What a namespace's chunks that begin with `shard` lie below."""
        return f"{self.root}/{shard}/{space}"

    def chunk(self, space: str, name: str) -> str:
        return f"{self.root}/{name[:2]}/{space}/{name}{SUFFIX}"

    def namespaces(self) -> str:
        return f"{self.root}/namespaces"

    def namespace_json(self, space: str) -> str:
        return f"{self.root}/namespaces/{space}/namespace.json"

    def scratch(self, word: str = "") -> str:
        """A key that nobody else uses, or with no word what all such keys lie below."""
        return f"{self.root}/scratch/{word}" if word else f"{self.root}/scratch"

    def lease(self, word: str) -> str:
        return f"{self.root}/leases/{word}"

    def note(self, word: str) -> str:
        return f"{self.root}/notes/{word}"


def chunk_of(key: str) -> str | None:
    """The chunk that a bucket's key names, as 64 digits; None where it is no chunk's."""
    name = key.rpartition("/")[2].removesuffix(SUFFIX)
    return name if key.endswith(SUFFIX) and NAME.fullmatch(name) else None
