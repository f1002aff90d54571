"""The file system: `server.py BACKING MOUNT`; rules come as JSON lines on stdin, each answered by a line on stdout.

A rule is `{"op": "read", "errno": 5, "times": 1, "short": 100, "hang": true}`: the operation that it is for; then an
error number, or how many bytes at most a read or write takes, or that the call waits for the rules to be cleared.
`times` counts down; without it a rule stays.  `{"clear": true}` drops all rules and lets what hangs go on;
`{"count": "read"}` asks how often an operation was called.
"""

# Only the operations that a store of whole files needs; names and signatures are mfusepy's.
# ruff: noqa: PTH102, PTH104, PTH106, PTH108, PTH208

from __future__ import annotations

import json
import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import mfusepy


class FaultFS(mfusepy.Operations):
    use_ns = True

    def __init__(self, backing: str) -> None:
        self._backing = backing
        self._lock = threading.Lock()
        self._rules: list[dict[str, Any]] = []
        self._clear = threading.Event()
        self.counts: Counter[str] = Counter()

    def command(self, rule: dict[str, Any]) -> int:
        with self._lock:
            if "count" in rule:
                return self.counts[rule["count"]]
            if rule.get("clear"):
                self._rules = []
                self._clear.set()
                self._clear = threading.Event()
            else:
                self._rules.append(rule)
            return 0

    def _meet(self, op: str, size: int = 0) -> int:
        """Count a call and do what the first rule for it says; how many bytes it may move."""
        with self._lock:
            self.counts[op] += 1
            rule = next((rule for rule in self._rules if rule["op"] == op), None)
            if rule is None:
                return size
            if "times" in rule:
                rule["times"] -= 1
                if rule["times"] == 0:
                    self._rules.remove(rule)
            until = self._clear
        if rule.get("hang"):
            until.wait()
        if "errno" in rule:
            raise mfusepy.FuseOSError(rule["errno"])
        return min(size, rule.get("short", size))

    def _at(self, path: str) -> str:
        return self._backing + path

    # -- files

    def create(self, path: str, mode: int, fi: Any = None) -> int:
        self._meet("create")
        fi.fh = os.open(self._at(path), os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)
        fi.direct_io = 1
        return 0

    def open(self, path: str, fi: Any) -> int:
        self._meet("open")
        fi.fh = os.open(self._at(path), fi.flags & ~os.O_DIRECT)
        # Not through the page cache: an error number of a read or write then arrives as it is.
        fi.direct_io = 1
        return 0

    def read(self, path: str, size: int, offset: int, fi: Any) -> bytes:
        return os.pread(fi.fh, self._meet("read", size), offset)

    def write(self, path: str, data: bytes, offset: int, fi: Any) -> int:
        return os.pwrite(fi.fh, data[: self._meet("write", len(data))], offset)

    def fsync(self, path: str, datasync: int, fi: Any) -> int:
        self._meet("fsync")
        os.fsync(fi.fh)
        return 0

    def flush(self, path: str, fi: Any) -> int:
        """What close() waits for."""
        self._meet("flush")
        return 0

    def release(self, path: str, fi: Any) -> int:
        os.close(fi.fh)
        return 0

    def truncate(self, path: str, length: int, fi: Any = None) -> int:
        os.truncate(self._at(path), length)
        return 0

    # -- names

    def getattr(self, path: str, fi: Any = None) -> dict[str, Any]:
        self._meet("getattr")
        found = os.lstat(self._at(path))
        told = {name: getattr(found, name) for name in ("st_mode", "st_nlink", "st_size", "st_uid", "st_gid", "st_ino")}
        return told | {"st_mtime": found.st_mtime_ns, "st_atime": found.st_atime_ns, "st_ctime": found.st_ctime_ns}

    def readdir(self, path: str, fh: int) -> Iterator[str]:
        self._meet("readdir")
        yield from (".", "..", *os.listdir(self._at(path)))

    def mkdir(self, path: str, mode: int) -> int:
        self._meet("mkdir")
        os.mkdir(self._at(path), mode)
        return 0

    def rmdir(self, path: str) -> int:
        os.rmdir(self._at(path))
        return 0

    def unlink(self, path: str) -> int:
        self._meet("unlink")
        os.unlink(self._at(path))
        return 0

    def rename(self, old: str, new: str) -> int:
        self._meet("rename")
        os.rename(self._at(old), self._at(new))
        return 0

    def utimens(self, path: str, times: tuple[int, int] | None = None) -> int:
        os.utime(self._at(path), ns=times)
        return 0

    def statfs(self, path: str) -> dict[str, int]:
        found = os.statvfs(self._backing)
        return {name: getattr(found, name) for name in dir(found) if name.startswith("f_")}

    def init(self, path: str) -> None:
        print("mounted", flush=True)


def main() -> None:
    backing, mount = sys.argv[1:]
    system = FaultFS(backing)

    def listen() -> None:
        for line in sys.stdin:
            print(system.command(json.loads(line)), flush=True)

    threading.Thread(target=listen, daemon=True).start()
    # Nothing is remembered by the kernel: each call of a test arrives here.
    mfusepy.FUSE(
        system,
        mount,
        foreground=True,
        raw_fi=True,
        attr_timeout=0,
        entry_timeout=0,
        negative_timeout=0,
        fsname="faultfs",
    )


if __name__ == "__main__":
    main()
