"""`DirectoryStore`: one file per chunk under a directory that other hubs may share."""

# Paths are strings here: building a Path costs as much as a system call on a local disk.
# ruff: noqa: PTH103, PTH104, PTH108, PTH116, PTH120

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import attrs

from kvhub.chunkfile import HEADER_BYTES, payload_checksum
from kvhub.errors import KvhubError
from kvhub.findings import Finding
from kvhub.store import BlockingStore, Seen
from kvhub.types import KEY_BYTES, MemberContext
from kvhub_nfs import files, mounting, probe
from kvhub_nfs.recency import Touches
from kvhub_nfs.scratch import DIRECTORY_MODE, Scratch

if TYPE_CHECKING:
    from kvhub.pool.medium import Medium
    from kvhub_nfs.room import Rooms

SUFFIX = ".kv"
DIRECT_FROM = 1 << 20
"""Payload bytes from which a call is worth direct I/O; below, the disk's latency outweighs what it saves."""
MOST_WORKERS = 256


def absolute(value: str | os.PathLike[str]) -> Path:
    """An absolute path.  Raises ValueError: a relative one would mean another directory in every process."""
    path = Path(value)
    if not path.is_absolute():
        raise ValueError(f"expected an absolute path such as /mnt/kv, found {os.fspath(value)!r}")
    return path


def _worker_count(value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_WORKERS:
        raise ValueError(f"expected a number of workers from 1 to {MOST_WORKERS}, found {value!r}")
    return value


@attrs.frozen
class DirectoryConfig:
    """The options of a directory store."""

    root: Path = attrs.field(converter=absolute, metadata={"help": "directory for the chunks; it must exist"})
    io: str = attrs.field(
        default="auto",
        validator=attrs.validators.in_(("auto", "buffered", "direct")),
        metadata={
            "help": "direct: past the page cache (O_DIRECT); buffered: through it; auto: direct for nfs/local where "
            "the file system takes it, else buffered.  Chunks below 1 MiB are always buffered"
        },
    )
    workers: int = attrs.field(
        default=4,
        converter=_worker_count,
        metadata={"help": "files read or written at once; a hung server costs one per call"},
    )
    fsync: bool = attrs.field(
        default=False,
        validator=attrs.validators.instance_of(bool),
        metadata={
            "help": "flush each chunk to the disk before it is published, so that it outlives a power cut; "
            "costs a disk flush per chunk.  Without it a power cut can lose or damage late chunks, "
            "which then are misses"
        },
    )
    when_full: str = attrs.field(
        default="sweep",
        validator=attrs.validators.in_(("sweep", "drop")),
        metadata={
            "help": "sweep: when the file system or quota is full, remove what was longest unused of the pool, never "
            "what was used in the last ten minutes, and try once more; drop: leave that to kvhub pool gc"
        },
    )


class DirectoryStore(BlockingStore):
    """Chunks as files: found by path alone, published by rename, so a reader sees a whole chunk or none.

    Nothing is listed while serving, and the deepest directories hold 1/65536 of the chunks each.  An I/O error
    (EIO, ESTALE, ETIMEDOUT) never removes anything.
    """

    kind: ClassVar[str] = ""
    Config = DirectoryConfig
    persistent = True
    shared = True
    prefers_direct: ClassVar[bool] = False
    """What `io: auto` means.  NFS clients gather small writes and read ahead in the page cache."""
    config: DirectoryConfig

    def __init__(self, config: DirectoryConfig, context: MemberContext) -> None:
        super().__init__(config, context)
        self.workers = config.workers
        self._home = f"{config.root}/{context.namespace.hex()[:32]}"
        self._scratch = Scratch(f"{self._home}/.tmp")
        self._touches = Touches(context.name, context.report)
        self._rooms: Rooms | None = None
        self._opening_rooms = threading.Lock()
        self._device = -1
        self._direct = False

    @classmethod
    def medium(cls, config: Any) -> Medium:
        from kvhub_nfs.medium import DirectoryMedium  # no hub needs it

        return DirectoryMedium(config.root, fsync=config.fsync)

    @classmethod
    def directory(cls, config: Any) -> Path | None:
        root: Path = config.root
        return root

    def diagnose(self) -> Iterable[Finding]:
        return mounting.findings(self.config.root, shared=not self.kind)

    def open(self) -> None:
        root = self.config.root
        try:
            if not root.is_dir():
                code = errno.ENOTDIR if root.exists() else errno.ENOENT
                raise OSError(code, os.strerror(code))
            self._device = os.stat(root).st_dev
            if not self.context.writes:
                probe.look(self.context.name, root, Path(self._home, "namespace.json"), self.context.namespace_json)
                # Nothing may be written here, so nothing can be tried: files that refuse it are read the other way.
                self._direct = self._wants_direct()
                return
            self._scratch.make()
            probe.write_read_delete(self._scratch)
            self._direct = self._takes_direct()
            probe.hold_to_namespace(
                self.context.name, Path(self._home, "namespace.json"), self.context.namespace_json, self._scratch
            )
            self.context.report("swept_files", self._scratch.sweep())
        except BaseException as error:
            self._scratch.remove()
            if isinstance(error, OSError):
                raise probe.refusal(self.context.name, root, error) from error
            raise

    def _wants_direct(self) -> bool:
        return self.config.io == "direct" or (self.config.io == "auto" and self.prefers_direct)

    def _takes_direct(self) -> bool:
        if not self._wants_direct() or files.takes_direct(self._scratch.fresh()):
            return self._wants_direct()
        if self.config.io == "direct":
            raise KvhubError(
                f"{self.context.name}: io: direct is not taken by the file system of {self.config.root} (O_DIRECT); "
                "use io: auto or io: buffered"
            )
        return False

    def shut(self) -> None:
        self._touches.close(1.0)
        self._scratch.remove()

    def has(self, name: str) -> bool:
        try:
            # Shorter than a header is a damaged file, which a save may replace.
            return os.stat(self._path(name)).st_size >= HEADER_BYTES
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            self.context.report("stale_handles", 1)
            self._hold_to_root()
            return False

    def read(self, name: str, header: memoryview, payload: memoryview) -> int | None:
        path, direct = self._path(name), self._direct and payload.nbytes >= DIRECT_FROM
        try:
            found = files.read_into(path, header, payload, direct=direct)
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            found = self._read_again(path, header, payload, direct)
        return None if found is None else Seen(*found)

    def _read_again(
        self, path: str, header: memoryview, payload: memoryview, direct: bool
    ) -> tuple[int, files.Identity, bytes] | None:
        """After ESTALE: open the path anew; a file that still is stale has gone, unless the whole mount is stale."""
        self.context.report("stale_handles", 1)
        try:
            return files.read_into(path, header, payload, direct=direct)
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
        self._hold_to_root()
        return None

    def write(self, name: str, header: bytes, payload: memoryview) -> bool:
        return self._write(name, header, payload)

    def write_sealed(self, name: str, seal: files.Seal, payload: memoryview, *, replace: bool = False) -> bool:
        if payload.nbytes < files.HASHED_FROM or self._direct:
            return self._write(name, seal(payload_checksum(payload)), payload)
        return self._write(name, seal, payload)

    def _write(self, name: str, header: bytes | files.Seal, payload: memoryview) -> bool:
        unfinished = self._scratch.fresh()
        fsync, direct = self.config.fsync, self._direct and payload.nbytes >= DIRECT_FROM
        try:
            files.write_whole(unfinished, header, payload, fsync=fsync, direct=direct)
        except FileNotFoundError:
            self._hold_to_root()
            self._scratch.make()
            files.write_whole(unfinished, header, payload, fsync=fsync, direct=direct)
        try:
            self._publish(unfinished, self._path(name))
        except BaseException:
            self._forget(unfinished)
            raise
        return True

    def drop(self, name: str) -> None:
        try:
            os.unlink(self._path(name))
        except FileNotFoundError:
            self._hold_to_root()

    def drop_seen(self, name: str, seen: int, header: bytes) -> None:
        if self.context.writes and isinstance(seen, Seen) and isinstance(seen.identity, files.Identity):
            files.remove_exactly(self._path(name), seen.identity, self._scratch.fresh())

    def used(self, name: str, seen: int) -> None:
        if isinstance(seen, Seen) and isinstance(seen.identity, files.Identity):
            self._touches.note(self._path(name), seen.identity.mtime_ns)

    def make_room(self, size: int) -> bool:
        if self.config.when_full == "drop" or not self.context.writes:
            return False
        with self._opening_rooms:
            if self._rooms is None:
                from kvhub_nfs.room import Rooms  # no hub needs it whose pool is never full

                self._rooms = Rooms(self.config.root, self.context.report)
        return self._rooms.make(size, self.time_left())

    def names(self) -> Iterator[tuple[str, int]]:
        for first in _listed(self._home):
            if first.is_dir(follow_symlinks=False):
                for second in _listed(first.path):
                    if second.is_dir(follow_symlinks=False):
                        yield from _chunks(second.path)

    def _path(self, name: str) -> str:
        return f"{self._home}/{name[:2]}/{name[2:4]}/{name}{SUFFIX}"

    def _publish(self, unfinished: str, path: str) -> None:
        try:
            os.rename(unfinished, path)
        except FileNotFoundError:
            self._hold_to_root()
            os.makedirs(os.path.dirname(path), DIRECTORY_MODE, exist_ok=True)
            os.rename(unfinished, path)

    def _forget(self, unfinished: str) -> None:
        try:
            os.unlink(unfinished)
        except OSError:
            self.context.report("io_errors", 1)

    def _hold_to_root(self) -> None:
        """Raises when the root is not the file system that was attached.

        After an unmount the empty mount point is still there, and writing would fill the wrong disk.
        """
        if os.stat(self.config.root).st_dev != self._device:
            raise OSError(errno.ESTALE, "the root is on another file system than at start")


class LocalStore(DirectoryStore):
    """The same on a machine's own disk, where only this machine's hubs share it."""

    kind = "local"
    prefers_direct = True


def _listed(directory: str) -> Iterator[os.DirEntry[str]]:
    """Entries, less hidden ones: our own `.tmp`, and what NFS makes of files that are removed while open."""
    with os.scandir(directory) as found:
        yield from (entry for entry in found if not entry.name.startswith("."))


def _chunks(directory: str) -> Iterator[tuple[str, int]]:
    for entry in _listed(directory):
        name = entry.name.removesuffix(SUFFIX)
        if name + SUFFIX == entry.name and len(name) == 2 * KEY_BYTES and not name.strip("0123456789abcdef"):
            try:
                yield name, entry.stat(follow_symlinks=False).st_size
            except FileNotFoundError:
                continue
