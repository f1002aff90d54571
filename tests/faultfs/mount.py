"""`Faults`: the file system mounted for one test, and a hand on its rules."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

SERVER = Path(__file__).with_name("server.py")


def why_not() -> str:
    """Empty where FUSE file systems can be mounted, else what is missing."""
    if find_spec("mfusepy") is None:
        return "mfusepy is not installed"
    if shutil.which("fusermount3") is None:
        return "no fusermount3 (Debian: fuse3)"
    if not os.access("/dev/fuse", os.W_OK):
        return "/dev/fuse cannot be opened"
    return ""


class Faults:
    """`root` is the mount, `backing` the directory below it, which no rule touches."""

    def __init__(self, folder: Path) -> None:
        self.root, self.backing = folder / "mount", folder / "backing"
        for path in (self.root, self.backing):
            path.mkdir()
        self._server = subprocess.Popen(
            [sys.executable, str(SERVER), str(self.backing), str(self.root)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._server.stdout is not None
        if self._server.stdout.readline() != "mounted\n":
            raise RuntimeError(f"faultfs did not mount: {self._server.communicate()[1]}")

    def _tell(self, **rule: object) -> int:
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.write(json.dumps(rule) + "\n")
        self._server.stdin.flush()
        return int(self._server.stdout.readline())

    def fail(self, op: str, code: str, **more: object) -> None:
        """Calls of `op` fail with the error of this name; `times=n` for the next n only."""
        self._tell(op=op, errno=getattr(errno, code), **more)

    def hang(self, op: str, **more: object) -> None:
        self._tell(op=op, hang=True, **more)

    def short(self, op: str, most: int) -> None:
        """Reads or writes move `most` bytes at once."""
        self._tell(op=op, short=most)

    def clear(self) -> None:
        """No rule any more; what hangs goes on."""
        self._tell(clear=True)

    def count(self, op: str) -> int:
        return self._tell(count=op)

    def close(self) -> None:
        if self._server.poll() is None:
            self.clear()
        subprocess.run(["fusermount3", "-u", "-z", str(self.root)], capture_output=True, check=False)
        try:
            self._server.communicate(timeout=5)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.communicate()
