"""Commands in processes of their own, each on a leash, each with a log file."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from harness import leash

_ERROR = re.compile(r"(^|[\s.])\w+Error: ")


class NotReady(RuntimeError):
    """A process that ended or passed its deadline before it was ready; the message ends with its log's last lines."""


class Leashed:
    """One running command.  Use it as a context manager, or call `stop`; if neither happens it dies with us."""

    def __init__(self, name: str, command: Sequence[str | Path], log: Path, env: Mapping[str, str]) -> None:
        self.name = name
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._command = [str(part) for part in command]
        self._env = dict(env)

    def start(self) -> None:
        """Start, or start again after an end; the log goes on in the same file."""
        assert not self.running, f"{self.name} runs already"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(Path(leash.__file__)), *self._command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._env,
                start_new_session=True,
            )

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pids(self) -> list[int]:
        """The command's processes, the one that was started first; the leash itself is not among them."""
        return leash.descendants(self._process.pid) if self._process is not None and self.running else []

    def wait_ready(self, ready: Callable[[], bool], *, deadline: float) -> float:
        """Ask `ready` until it says yes; seconds that took.  Raises NotReady."""
        start = time.monotonic()
        while True:
            if not self.running:
                raise NotReady(f"{self.name} ended before it was ready\n{self.tail()}")
            if ready():
                return time.monotonic() - start
            if time.monotonic() - start > deadline:
                raise NotReady(f"{self.name} was not ready within {deadline:g} s\n{self.tail()}")
            time.sleep(0.1)

    def tail(self, lines: int = 40) -> str:
        """The log's last lines, and before them the first error with what follows it: often far above the end."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        said = text.splitlines()
        first = next((at for at, line in enumerate(said) if _ERROR.search(line)), len(said))
        cause = said[first : first + 6] if first < len(said) - lines else []
        return "\n".join([f"--- {self.log}", *cause, *(["..."] if cause else []), *said[-lines:]])

    def stop(self, *, deadline: float = 20.0) -> None:
        """Ask it to stop (SIGTERM), then kill what is left.  Idempotent."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(deadline)
        self._end()

    def kill(self) -> None:
        """SIGKILL every process of the command, as when its machine fails."""
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._end()

    def pause(self) -> None:
        """SIGSTOP every process of the command: it hangs, its sockets stay open."""
        for pid in self.pids:
            os.kill(pid, signal.SIGSTOP)

    def resume(self) -> None:
        for pid in self.pids:
            os.kill(pid, signal.SIGCONT)

    def _end(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.wait(30)
            self._process = None

    def __enter__(self) -> Leashed:
        if not self.running:
            self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
