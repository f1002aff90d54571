"""Pools to keep house in: directories that are filled fast, whose chunks are as old as a test wants them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path

from kvhub import chunkfile
from kvhub.keys import Namespace

NAMESPACE = Namespace("model-a", "1", "bfloat16", "none")
OTHER = Namespace("model-b", "2", "float16", "none")
DAY = 86400.0


def name_of(number: int | str) -> str:
    return sha256(f"pool {number}".encode()).hexdigest()


def whole(name: str, length: int = 1000, namespace: Namespace = NAMESPACE, tenant: bytes = b"") -> bytes:
    """A chunk whose payload depends on its name."""
    payload = (sha256(name.encode()).digest() * (length // 32 + 1))[:length]
    header = chunkfile.pack(bytes.fromhex(name), namespace.digest, payload, created_ns=10**18, tenant=tenant)
    return header + payload


class House:
    """A directory pool and a hand on its files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(exist_ok=True)

    def home(self, namespace: Namespace = NAMESPACE) -> Path:
        return self.root / namespace.digest.hex()[:32]

    def path(self, name: str, namespace: Namespace = NAMESPACE) -> Path:
        return self.home(namespace) / name[:2] / name[2:4] / f"{name}.kv"

    def found(self, namespace: Namespace = NAMESPACE) -> set[str]:
        return {path.stem for path in self.home(namespace).glob("??/??/*.kv")}

    def used_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.root.glob("*/??/??/*.kv"))

    def open_space(self, namespace: Namespace = NAMESPACE) -> None:
        self.home(namespace).mkdir(exist_ok=True)
        (self.home(namespace) / "namespace.json").write_text(namespace.json)

    def add(
        self, numbers: Iterable[int], *, unused: float = DAY, length: int = 1000, namespace: Namespace = NAMESPACE
    ) -> list[str]:
        """Good chunks, last used so many seconds ago."""
        self.open_space(namespace)
        names = [name_of(number) for number in numbers]
        for name in names:
            path = self.path(name, namespace)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(whole(name, length, namespace))
            self.age(path, unused)
        return names

    def age(self, path: Path, unused: float) -> None:
        then = time.time() - unused
        os.utime(path, (then, then))

    def add_sparse(self, count: int, *, size: int, spread: float) -> None:
        """Many objects without contents, last used evenly over the last `spread` seconds."""
        self.open_space()
        now, home, made = time.time(), str(self.home()), set()
        for number in range(count):
            name = name_of(number)
            leaf = f"{home}/{name[:2]}/{name[2:4]}"
            if leaf not in made:
                os.makedirs(leaf, exist_ok=True)  # noqa: PTH103
                made.add(leaf)
            fd = os.open(f"{leaf}/{name}.kv", os.O_WRONLY | os.O_CREAT)
            os.ftruncate(fd, size)
            then = now - spread * (number + 1) / count
            os.utime(fd, (then, then))
            os.close(fd)

    def stray(self) -> list[Path]:
        """Files that are neither chunks nor notes nor a namespace's text."""
        return [path for path in self._files() if path.suffix != ".kv" and path.name != "namespace.json"]

    def _files(self) -> Iterator[Path]:
        notes = self.root / ".kvhub" / "notes"
        return (path for path in self.root.rglob("*") if path.is_file() and notes not in path.parents)


def write_yaml(path: Path, **roots: Path) -> Path:
    """A file with one directory store for each name, and the host tier."""
    stores: dict[str, object] = {"host": {"use": "host", "capacity": "1GiB"}}
    stores |= {name: {"use": "nfs", "root": str(root)} for name, root in roots.items()}
    routes = [*stores]
    data = {"kvhub": 1, "stores": stores, "roles": {"both": {"store": routes, "retrieve": routes}}}
    path.write_text(json.dumps(data))
    return path
