"""Where the demo's chunks are kept: a directory, or a bucket of a real S3 server that is started for it."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import attrs

from demo.progress import say

BUCKET, CREDENTIALS = "kvhub-demo", "DEMO"
MOST_LISTED = 1000


class Pool(Protocol):
    """The demo's own hand on the pool, behind the hubs' backs."""

    @property
    def options(self) -> str:
        """The store's line in the YAML."""

    def chunks(self) -> list[str]:
        """Names of whole chunks and tails in the pool."""

    def read(self, name: str) -> bytes: ...

    def replace(self, name: str, data: bytes) -> None: ...


@attrs.frozen
class Directory:
    root: Path

    @property
    def options(self) -> str:
        return f'{{use: nfs, root: "{self.root}"}}'

    def chunks(self) -> list[str]:
        paths = [path.relative_to(self.root) for path in self.root.rglob("*.kv")]
        return [str(path) for path in paths if ".tmp" not in path.parts]

    def read(self, name: str) -> bytes:
        return (self.root / name).read_bytes()

    def replace(self, name: str, data: bytes) -> None:
        path = self.root / name
        replacement = path.with_suffix(".replacement")
        replacement.write_bytes(data)
        replacement.rename(path)

    def empty(self) -> None:
        """Remove every chunk."""
        for name in self.chunks():
            (self.root / name).unlink()


@attrs.frozen
class Bucket:
    endpoint: str
    rest: object
    """Signed requests to the bucket (`kvhub_s3.rest.Rest`)."""

    @property
    def options(self) -> str:
        credentials = f"credentials: {{env: {CREDENTIALS}}}"
        return f'{{use: s3, bucket: {BUCKET}, endpoint: "{self.endpoint}", {credentials}}}'

    def chunks(self) -> list[str]:
        body = self.ask("GET", "", {"list-type": "2"})
        names = re.findall(r"<Key>([^<]+\.kv)</Key>", body.decode())
        assert len(names) < MOST_LISTED, "one page of a listing holds the whole demo"
        return names

    def read(self, name: str) -> bytes:
        return self.ask("GET", name)

    def replace(self, name: str, data: bytes) -> None:
        self.ask("PUT", name, body=data)

    def ask(self, method: str, *target: object, **more: object) -> bytes:
        answer = self.rest.ask(method, *target, **more)  # type: ignore[attr-defined]
        if answer.status != 200:
            raise OSError(f"the demo's bucket answers {answer.status}: {answer.body[:300]!r}")
        return bytes(answer.body)


def written(pool: Pool, objects: int, *, deadline: float = 30.0) -> float:
    """Wait until the pool holds so many objects; seconds that took.

    A next turn that comes earlier hits less; here it should hit all, so that the table can be read.
    """
    start = time.monotonic()
    while len(pool.chunks()) < objects:
        if time.monotonic() - start > deadline:
            say(f"after {deadline:g} s the pool holds {len(pool.chunks())} objects; {objects} were due")
            break
        time.sleep(0.05)
    return time.monotonic() - start


@contextmanager
def opened(kind: str, home: Path) -> Iterator[Pool]:
    """A new, empty pool of kind `nfs` or `s3`, with what it keeps in `home`; the server ends with the block."""
    folder = home / "pool"
    folder.mkdir(parents=True)
    if kind == "nfs":
        yield Directory(folder)
        return
    from s3server import ACCESS, SECRET, running  # only this kind needs kvhub-s3 and the server

    os.environ |= {f"{CREDENTIALS}_ACCESS_KEY_ID": ACCESS, f"{CREDENTIALS}_SECRET_ACCESS_KEY": SECRET}
    with running(folder) as server:
        server.make_bucket(BUCKET)
        yield Bucket(server.endpoint, server.rest(BUCKET))
