"""`Scratch`: where one hub's unfinished files lie, and how another hub tells that their owner is dead.

Every hub has a directory of its own, `.tmp/<boot>-<pid space>-<pid>-<start>-<random>`, beside the chunks and so on
the same file system.  What a killed writer left there is swept by the next hub that starts: at once when the process
is known to be dead, which only the same kernel and pid namespace can know, otherwise after a day.
"""

# Paths are strings here: building a Path costs as much as a system call on a local disk.
# ruff: noqa: PTH103, PTH106, PTH108, PTH116, PTH120

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

DIRECTORY_MODE = 0o770
"""Before the umask."""
AGE_SECONDS = 24 * 3600.0
"""Far above any write.  Compared on the file server's clock alone."""


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _start_and_state(pid: int) -> tuple[str, str]:
    """When a process started, in clock ticks since boot, and its state letter; empty where /proc does not tell."""
    fields = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return (fields[19], fields[0]) if len(fields) > 19 else ("", "")


def _place() -> str:
    """Names this kernel's boot and this pid namespace; empty where that cannot be known."""
    boot = _text("/proc/sys/kernel/random/boot_id").replace("-", "").strip()
    try:
        return f"{boot[:16]}-{os.stat('/proc/self/ns/pid').st_ino}" if boot else ""
    except OSError:
        return ""


def new_owner() -> str:
    """A name that no other hub has, now or later."""
    start, _ = _start_and_state(os.getpid())
    return f"{_place() or 'unknown-0'}-{os.getpid()}-{start or 0}-{secrets.token_hex(4)}"


def surely_dead(owner: str) -> bool:
    """Whether the process that named itself `owner` lived under this kernel and is gone; False when in doubt."""
    boot, _, rest = owner.partition("-")
    fields = rest.split("-")
    if len(fields) != 4 or not fields[1].isdigit() or f"{boot}-{fields[0]}" != _place():
        return False
    pid = int(fields[1])
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    start, state = _start_and_state(pid)
    return bool(start) and (start != fields[2] or state in "ZX")


class Scratch:
    """This hub's own directory of unfinished files under `parent`; paths are strings, being hot."""

    def __init__(self, parent: str) -> None:
        self.parent = parent
        self.path = f"{parent}/{new_owner()}"
        self._numbers = itertools.count()

    def make(self) -> None:
        for last in (False, False, True):
            try:
                os.makedirs(self.path, DIRECTORY_MODE, exist_ok=True)
                return
            except FileNotFoundError:
                # Somebody took the empty directories above away meanwhile (`remove_above`).
                if last:
                    raise

    def fresh(self) -> str:
        """A path that nobody uses; thread-safe."""
        return f"{self.path}/{next(self._numbers)}"

    def sweep(self) -> int:
        """Remove what dead hubs left; how many files.  What others sweep at the same time is no error."""
        now = os.stat(self.path).st_mtime
        return sum(self._sweep_owner(owner, now) for owner in _entries(self.parent) if owner.path != self.path)

    @staticmethod
    def _sweep_owner(owner: os.DirEntry[str], now: float) -> int:
        swept = 0
        with contextlib.suppress(OSError):
            dead = surely_dead(owner.name)
            for left in [*_entries(owner.path), owner]:
                if dead or now - left.stat(follow_symlinks=False).st_mtime > AGE_SECONDS:
                    if left is owner:
                        os.rmdir(owner.path)
                    else:
                        os.unlink(left.path)
                        swept += 1
        return swept

    def remove(self) -> None:
        """Remove the directory unless a writer that was written off still has a file in it."""
        with contextlib.suppress(OSError):
            os.rmdir(self.path)

    def remove_above(self) -> None:
        """Remove the directory of all scratches, and the one above it, where they are empty."""
        with contextlib.suppress(OSError):
            os.rmdir(self.parent)
            os.rmdir(os.path.dirname(self.parent))


def _entries(directory: str) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as found:
            yield from list(found)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR):
            raise
