"""The bench's side of a worker: started on a core, in a namespace if it is told so, ended whatever happens."""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent.parent
PATIENCE = 120.0


_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """In a new child: a benchmark that is killed leaves nothing behind, not even a process that is stopped."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))


class RowFailed(Exception):
    """A row could not be measured; the sentence says why."""


class Process:
    """`ask(do, **more)` sends an order and returns the answer."""

    def __init__(
        self,
        module: str,
        what: str,
        core: int,
        *,
        python: str = sys.executable,
        enter: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.name = f"{module} {what}"
        paths = os.pathsep.join(filter(None, [str(FOLDER), os.environ.get("PYTHONPATH", "")]))
        environment = {**os.environ, "PYTHONPATH": paths, **(env or {})}
        command = [*enter, python, "-m", f"wire_rows.{module}", what, str(core)]
        self._run = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
            bufsize=1,
            preexec_fn=die_with_parent,
        )
        self._ready = False

    def ready(self) -> None:
        """Until it has imported what it needs and made its arena; so two may start at once."""
        if not self._ready:
            self._answer()
            self._ready = True

    def tell(self, do: str, **more: Any) -> None:
        self.ready()
        assert self._run.stdin is not None
        self._run.stdin.write(json.dumps({"do": do, **more}) + "\n")
        self._run.stdin.flush()

    def answer(self) -> dict[str, Any]:
        found = self._answer()
        if "error" in found:
            raise RowFailed(f"{self.name}: {found['error']}")
        return found

    def ask(self, do: str, **more: Any) -> dict[str, Any]:
        self.tell(do, **more)
        return self.answer()

    def _answer(self) -> dict[str, Any]:
        assert self._run.stdout is not None
        # One answer per order, so nothing can sit in the reader's buffer while we wait on the descriptor.
        if not select.select([self._run.stdout], [], [], PATIENCE)[0]:
            raise RowFailed(f"{self.name}: no answer within {PATIENCE:g} s")
        line = self._run.stdout.readline()
        if not line.startswith("{"):
            raise RowFailed(f"{self.name}: ended with {self._run.poll()}, its last line was {line.strip()!r}")
        return dict(json.loads(line))

    def signal(self, number: int) -> None:
        if self._run.poll() is None:
            self._run.send_signal(number)

    def close(self) -> None:
        if self._run.poll() is None:
            self._run.kill()
        self._run.wait()
        for pipe in (self._run.stdin, self._run.stdout):
            if pipe is not None:
                pipe.close()
