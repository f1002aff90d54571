"""`ExampleStore`: one file for each chunk, in one directory."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import attrs

from kvhub import KvhubError
from kvhub.store import BlockingStore


@attrs.frozen
class ExampleConfig:
    """Options of `use: example`."""

    root: Path = attrs.field(converter=Path, metadata={"help": "the directory; made if it is missing"})
    fsync: bool = attrs.field(default=False, metadata={"help": "flush each chunk to the disk before others see it"})


class ExampleStore(BlockingStore):
    """Chunks outlive the process, and every hub that has the directory sees them."""

    Config: ClassVar[type] = ExampleConfig
    persistent = True
    shared = True

    def open(self) -> None:
        self.folder: Path = self.config.root / self.context.namespace.hex()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / "namespace.json").write_text(self.context.namespace_json)
            probe = f"probe-{self.context.incarnation}"
            self.write(probe, bytes(4096), memoryview(b"probe"))
            self.drop(probe)
        except OSError as error:
            raise KvhubError(
                f"{self.context.name}: cannot write to {self.folder} ({error.strerror}); "
                "create the directory or point 'root' at one that this user may write to"
            ) from error

    def has(self, name: str) -> bool:
        return (self.folder / name).exists()

    def read(self, name: str, header: memoryview, payload: memoryview) -> int | None:
        try:
            with (self.folder / name).open("rb") as file:
                file.readinto(header)
                file.readinto(payload)
                return os.fstat(file.fileno()).st_size
        except FileNotFoundError:
            return None

    def write(self, name: str, header: bytes, payload: memoryview) -> bool:
        handle, part = tempfile.mkstemp(prefix="part-", dir=self.folder)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(header)
                file.write(payload)
                file.flush()
                if self.config.fsync:
                    os.fsync(handle)
            Path(part).replace(self.folder / name)  # readers see nothing before this, and everything after it
        except BaseException:
            Path(part).unlink(missing_ok=True)
            raise
        return True

    def drop(self, name: str) -> None:
        (self.folder / name).unlink(missing_ok=True)

    def names(self) -> Iterator[tuple[str, int]]:
        for path in self.folder.glob("?" * 64):
            yield path.name, path.stat().st_size
