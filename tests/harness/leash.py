"""Run a command on a leash: `python leash.py COMMAND...` with a pipe as standard input.

When the pipe closes, because its holder closed it or died of anything, SIGKILL included, the command and all its
descendants are killed.  SIGTERM is passed to the command alone, which is how it is asked to stop.  Ends with the
command's status, and never before its last descendant is gone.
"""

from __future__ import annotations

import ctypes
import os
import selectors
import signal
import subprocess
import sys
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36


def descendants(root: int) -> list[int]:
    """Process ids below `root`, parents first.  Those that end meanwhile are left out."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                # The command's name may hold spaces and parentheses; fields count from the last parenthesis.
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:
                continue
            if state != "Z":
                parents[int(entry.name)] = int(parent)
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found[1:]


def kill_all(root: int) -> None:
    """SIGKILL everything below `root`, again until nothing new has appeared."""
    while pids := descendants(root):
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        _reap(pids)


def _reap(pids: list[int]) -> None:
    for pid in pids:
        try:
            os.waitpid(pid, 0)
        except ChildProcessError:
            continue


def main() -> int:
    # Orphans of the command become ours, so that none escapes by leaving its parent.
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    wake_read, wake_write = os.pipe()
    for end in (wake_read, wake_write):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    command = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
    watch = selectors.DefaultSelector()
    watch.register(sys.stdin, selectors.EVENT_READ)
    watch.register(wake_read, selectors.EVENT_READ)
    while command.poll() is None:
        for key, _ in watch.select():
            if key.fileobj is sys.stdin:
                if not os.read(sys.stdin.fileno(), 4096):
                    kill_all(os.getpid())
                    return 1
            elif signal.SIGTERM in os.read(wake_read, 512):
                command.terminate()
    kill_all(os.getpid())
    return 128 - command.returncode if command.returncode < 0 else command.returncode


if __name__ == "__main__":
    sys.exit(main())
