"""`DirectoryMedium`: a directory store as housekeeping sees it.

Beside the namespaces, `<root>/.kvhub/` holds `leases/` and `notes/`.  When a chunk was last used is its file's
modification time, which `recency` moves; access times are not relied upon (relatime, NFS).  All times are the file
server's.
"""

# Paths are strings here: building a Path costs as much as a system call on a local disk.
# ruff: noqa: PTH103, PTH104, PTH106, PTH108, PTH112, PTH116, PTH120, PTH208

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from kvhub.chunkfile import HEADER_BYTES
from kvhub.errors import KvhubError
from kvhub.pool.medium import NAME, SHARDS, SPACE, Entry, Leftover, Medium, Room, Space
from kvhub_nfs import files, leases, probe
from kvhub_nfs.scratch import AGE_SECONDS, DIRECTORY_MODE, Scratch, surely_dead
from kvhub_nfs.store import SUFFIX

HOUSE = ".kvhub"
CLOCK_SECONDS = 60.0
"""How long the difference to the file server's clock is taken as known."""
_STAYS = (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST)


class DirectoryMedium(Medium):
    """One root directory with all its namespaces."""

    def __init__(self, root: Path, *, fsync: bool = False) -> None:
        try:
            if not root.is_dir():
                code = errno.ENOTDIR if root.exists() else errno.ENOENT
                raise OSError(code, os.strerror(code))
            os.listdir(root)
            self._device = root.stat().st_dev
        except OSError as error:
            raise KvhubError(probe.advice(root, error)) from error
        self._root, self._fsync = str(root), fsync
        self._house = f"{root}/{HOUSE}"
        self._lock = threading.Lock()
        self._scratches: dict[str, Scratch] = {}
        self._ahead = 0.0
        self._asked = float("-inf")

    def describe(self) -> str:
        return self._root

    def now(self) -> float:
        with self._lock:
            asked = time.monotonic()
            if asked - self._asked > CLOCK_SECONDS:
                self._asked, self._ahead = asked, 0.0
                with contextlib.suppress(OSError):  # read-only: this machine's clock has to do
                    clock = self._fresh(HOUSE)
                    files.write_whole(clock, b"", memoryview(b""), fsync=False)
                    self._ahead = os.stat(clock).st_mtime - time.time()
                    os.unlink(clock)
            return time.time() + self._ahead

    def room(self) -> Room | None:
        found = os.statvfs(self._root)
        return Room(found.f_frsize * found.f_blocks, found.f_frsize * found.f_bavail)

    def close(self) -> None:
        with self._lock:
            for scratch in self._scratches.values():
                scratch.remove()
            if house := self._scratches.get(HOUSE):
                house.remove_above()  # a look at a pool leaves nothing there
            self._scratches.clear()

    # -- chunks ------------------------------------------------------------------------------------------------------

    def spaces(self) -> Iterator[Space]:
        for name in _names(self._root):
            if SPACE.fullmatch(name) and os.path.isdir(f"{self._root}/{name}"):
                yield Space(name, _text(f"{self._root}/{name}/namespace.json"))

    def entries(self, space: str, shard: str, after: str = "") -> Iterator[Entry]:
        for second in _names(f"{self._root}/{space}/{shard}"):
            if shard + second < after[:4] or len(second) != 2:
                continue
            leaf = f"{self._root}/{space}/{shard}/{second}"
            for file in _names(leaf):
                name = file.removesuffix(SUFFIX)
                if name > after and name + SUFFIX == file and NAME.fullmatch(name):
                    with contextlib.suppress(FileNotFoundError):
                        status = os.lstat(f"{leaf}/{file}")
                        if stat.S_ISREG(status.st_mode):
                            yield _entry(name, status.st_size, files.identity(status))

    def read(self, space: str, name: str, into: memoryview) -> Entry | None:
        found = files.read_into(self._path(space, name), into, memoryview(bytearray()))
        return None if found is None else _entry(name, found[0], found[1])

    def remove(self, space: str, entries: Sequence[Entry]) -> list[Entry]:
        removed: list[Entry] = []
        failed: OSError | None = None
        for entry in entries:
            path = self._path(space, entry.name)
            try:
                if files.identity(os.lstat(path)) == entry.identity:
                    os.unlink(path)
                    removed.append(entry)
            except FileNotFoundError:
                continue
            except OSError as error:
                failed = failed or error
        if failed is not None and not removed:
            raise failed
        return removed

    def put(self, space: str, name: str, whole: memoryview) -> bool:
        path = self._path(space, name)
        if os.path.lexists(path):
            return False
        self._hold_to_root()
        unfinished = self._fresh(space)
        files.write_whole(unfinished, bytes(whole[:HEADER_BYTES]), whole[HEADER_BYTES:], fsync=self._fsync)
        try:
            os.makedirs(os.path.dirname(path), DIRECTORY_MODE, exist_ok=True)
            os.rename(unfinished, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(unfinished)
            raise
        return True

    def admit(self, space: Space) -> None:
        self._hold_to_root()
        scratch = self._scratch(space.id)
        if space.text is not None:
            path = Path(self._root, space.id, "namespace.json")
            probe.hold_to_namespace(self._root, path, space.text, scratch)

    def forget(self, space: str) -> bool:
        home = f"{self._root}/{space}"
        with self._lock:
            if mine := self._scratches.pop(space, None):
                mine.remove()
        now = self.now()
        for owner in _names(f"{home}/.tmp"):
            with contextlib.suppress(FileNotFoundError):
                if not surely_dead(owner) and now - os.stat(f"{home}/.tmp/{owner}").st_mtime < AGE_SECONDS:
                    return False
        try:
            for shard in SHARDS:
                for second in _names(f"{home}/{shard}"):
                    os.rmdir(f"{home}/{shard}/{second}")
                _rmdir(f"{home}/{shard}")
            for owner in _names(f"{home}/.tmp"):
                os.rmdir(f"{home}/.tmp/{owner}")
            _rmdir(f"{home}/.tmp")
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{home}/namespace.json")
            _rmdir(home)
        except OSError as error:
            if error.errno not in (*_STAYS, errno.ENOTDIR):
                raise
        return not os.path.lexists(home)

    # -- unfinished objects ------------------------------------------------------------------------------------------

    def leftovers(self, older_than: float) -> Iterator[Leftover]:
        now = self.now()
        mine = {scratch.path for scratch in self._scratches.values()}
        for place in [*(space.id for space in self.spaces()), HOUSE]:
            for owner in _names(f"{self._root}/{place}/.tmp"):
                path = f"{self._root}/{place}/.tmp/{owner}"
                if path not in mine:
                    yield from self._left(f"{place}/.tmp/{owner}", surely_dead(owner), now - older_than)

    def _left(self, owner: str, dead: bool, before: float) -> Iterator[Leftover]:
        with contextlib.suppress(FileNotFoundError):
            since = os.lstat(f"{self._root}/{owner}").st_mtime
            for file in _names(f"{self._root}/{owner}"):
                with contextlib.suppress(FileNotFoundError):
                    status = os.lstat(f"{self._root}/{owner}/{file}")
                    if dead or status.st_mtime < before:
                        yield Leftover(f"{owner}/{file}", status.st_size, status.st_mtime)
            if dead or since < before:
                yield Leftover(f"{owner}/", 0, since)

    def clear(self, leftovers: Sequence[Leftover]) -> int:
        cleared = 0
        for left in leftovers:
            path = f"{self._root}/{left.name}"
            try:
                if path.endswith("/"):
                    os.rmdir(path)
                else:
                    os.unlink(path)
            except OSError as error:
                if error.errno not in (*_STAYS, errno.ENOTDIR):
                    raise
            else:
                cleared += 1
        return cleared

    # -- leases and notes --------------------------------------------------------------------------------------------

    def claim(self, lease: str, holder: str, seconds: float) -> bool:
        return leases.claim(self._inside("leases", lease), holder, seconds, self.now(), lambda: self._fresh(HOUSE))

    def release(self, lease: str, holder: str) -> None:
        leases.release(self._inside("leases", lease), holder, self._fresh(HOUSE))

    def note(self, name: str) -> bytes | None:
        try:
            return Path(f"{self._house}/notes/{name}").read_bytes()
        except FileNotFoundError:
            return None

    def put_note(self, name: str, data: bytes) -> None:
        unfinished = self._fresh(HOUSE)
        files.write_whole(unfinished, data, memoryview(b""), fsync=False)
        os.rename(unfinished, self._inside("notes", name))

    def drop_note(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{self._house}/notes/{name}")

    def _path(self, space: str, name: str) -> str:
        return f"{self._root}/{space}/{name[:2]}/{name[2:4]}/{name}{SUFFIX}"

    def _inside(self, folder: str, name: str) -> str:
        self._scratch(HOUSE)  # so that the house is not empty, and nobody who closes takes it away
        os.makedirs(f"{self._house}/{folder}", DIRECTORY_MODE, exist_ok=True)
        return f"{self._house}/{folder}/{name}"

    def _hold_to_root(self) -> None:
        """Raises when the root was unmounted: what is written below it would fill another disk."""
        if os.stat(self._root).st_dev != self._device:
            raise OSError(errno.ESTALE, f"{self._root} is on another file system than when it was opened")

    def _fresh(self, place: str) -> str:
        """A path for an unfinished file on the root's file system, in a directory that tells whose it is."""
        return self._scratch(place).fresh()

    def _scratch(self, place: str) -> Scratch:
        """Made each time: that of a watcher which slept for long was taken for left over."""
        scratch = self._scratches.setdefault(place, Scratch(f"{self._root}/{place}/.tmp"))
        scratch.make()
        return scratch


def _entry(name: str, size: int, identity: files.Identity) -> Entry:
    return Entry(name, size, identity.mtime_ns / 1e9, None, identity)


def _names(directory: str) -> list[str]:
    """Names in order, less hidden ones: our own, and what NFS makes of files that are removed while open."""
    try:
        return sorted(name for name in os.listdir(directory) if not name.startswith("."))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _text(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (FileNotFoundError, UnicodeDecodeError):
        return None


def _rmdir(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.rmdir(path)
