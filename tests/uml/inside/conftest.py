"""Mounts that `boot.sh` made: two clients of one server, and this process is beside the server."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvhub.testing.driver import Driver
from kvhub.testing.region import make_context
from kvhub.types import Key
from kvhub_nfs import DirectoryStore

SERVER = Path("/run/export")
A, B, DEFAULT, SMALL, QUOTA, OLD = (Path("/run") / name for name in ("a", "b", "default", "small", "quota", "old"))
"""Clients a and b with `lookupcache=positive`; b with default options; a small export; one with a quota; b by v3."""

if not A.is_mount():
    # Outside there is no NFS; `make test-nfs` runs these.
    collect_ignore_glob = ["test_*.py"]


class Pool(Driver):
    """One hub's store on a mount, and its counters."""

    def __init__(self, root: Path, *, slot_bytes: int = 32768, **options: object) -> None:
        self.root = root
        self.counts: Counter[str] = Counter()
        context = make_context("pool", report=lambda name, count: self.counts.update({name: count} if count else {}))
        store = DirectoryStore(DirectoryStore.Config(root=root, **options), context)
        super().__init__(store, slots=16, slot_bytes=slot_bytes, patience=60.0)

    def path(self, key: Key) -> Path:
        name = key.hex()
        return self.root / self.member.context.namespace.hex()[:32] / name[:2] / name[2:4] / f"{name}.kv"


@pytest.fixture
def open_pool() -> Iterator[Callable[..., Pool]]:
    opened: list[Pool] = []

    def open_pool(root: Path, **options: object) -> Pool:
        opened.append(Pool(root, **options))  # type: ignore[arg-type]
        opened[-1].attach()
        return opened[-1]

    yield open_pool
    for pool in opened:
        pool.close()


def tc(*words: str) -> None:
    subprocess.run(["tc", "qdisc", *words], check=True)


@pytest.fixture
def cut() -> Iterator[Callable[[str], None]]:
    """Cut a client off from the server; the network is whole again after the test, or when it is called with ""."""
    done: list[str] = []

    def cut(client: str) -> None:
        if client:
            tc("add", "dev", f"to-{client}", "root", "netem", "loss", "100%")
            done.append(client)
        else:
            while done:
                tc("del", "dev", f"to-{done.pop()}", "root")

    yield cut
    cut("")
