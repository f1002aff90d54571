"""The asking side of forked engines."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.metrics import Metrics
from harness.outputs import Output
from harness.paths import ENGINE_PYTHON, engine_environment, needed
from harness.processes import Leashed


class EngineError(RuntimeError):
    """What an engine's process raised, or that it is gone; the message ends with its log's last lines."""


class Zygote:
    """The process that engines are forked from.  Use as a context manager; engines die with it."""

    def __init__(self, *, older: bool = False) -> None:
        # A socket's path has at most 107 bytes: a directory of our own is short wherever tests keep theirs.
        self._directory = Path(tempfile.mkdtemp(prefix="kvhub-zygote-"))
        self.socket = self._directory / "socket"
        command = [ENGINE_PYTHON, "-m", "harness.zygote", self.socket]
        self._process = Leashed("zygote", command, self._directory / "log", engine_environment(older=older))

    def __enter__(self) -> Zygote:
        self._process.start()
        self._process.wait_ready(self.socket.exists, deadline=600)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stop(deadline=5)
        shutil.rmtree(self._directory, ignore_errors=True)

    def engine(
        self, model: Path, log: Path, *, env: Mapping[str, str] | None = None, deadline: float = 300.0, **settings: Any
    ) -> ForkedEngine:
        """Fork an engine; `settings` are `vllm.LLM`'s.  Raises EngineError when it does not start."""
        settings = {"model": str(model), **needed(model), **settings}
        return ForkedEngine(self.socket, settings, log, dict(env or {}), deadline)


class ForkedEngine:
    """One engine in a process of its own.  Use as a context manager, or call `stop` or `kill`."""

    def __init__(self, path: Path, settings: dict[str, Any], log: Path, env: dict[str, str], deadline: float) -> None:
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(deadline)
        self._socket.connect(str(path))
        self._lines = self._socket.makefile("rb")
        try:
            started = self._exchange({"settings": settings, "log": str(log), "env": env})
        except BaseException:
            self._close()
            raise
        self.pid: int = started["pid"]
        self.start_seconds: float = started["seconds"]

    def _exchange(self, message: Mapping[str, Any]) -> Any:
        try:
            self._socket.sendall(json.dumps(message).encode() + b"\n")
            line = self._lines.readline()
        except OSError as why:
            raise EngineError(f"no answer: {why}\n{self.tail()}") from None
        if not line:
            raise EngineError(f"the engine's process is gone\n{self.tail()}")
        told = json.loads(line)
        if "error" in told:
            raise EngineError(f"{told['error']}\n{self.tail()}")
        return told["value"]

    def ask(self, do: str, *, within: float = 120.0, **arguments: Any) -> Any:
        """Ask anything that `forked.Forked` has a method for.  Raises EngineError."""
        if self._socket.fileno() < 0:
            raise EngineError(f"the engine was stopped\n{self.tail()}")
        self._socket.settimeout(within)
        return self._exchange({"do": do, **arguments})

    def run(
        self, requests: Sequence[Mapping[str, Any]], *, within: float = 120.0, finish_work: bool = True
    ) -> list[Output]:
        """Run requests together; greedy, ended by length or abort.

        A request is `prompt` (token ids) and may have `max_tokens`, `logprobs` (-1: the whole vocabulary), `params`
        (`kv_transfer_params`), `at_step` and `abort_at_step` (counted in engine steps of this call).
        """
        told = self.ask("run", requests=list(requests), finish_work=finish_work, deadline=within, within=within + 30)
        return [Output.of_json(one) for one in told]

    def complete(
        self, prompt: Sequence[int], *, max_tokens: int = 16, logprobs: int | None = -1, **more: Any
    ) -> Output:
        """Run one request."""
        request = {"prompt": list(prompt), "max_tokens": max_tokens, "logprobs": logprobs, **more}
        return self.run([request])[0]

    def metrics(self) -> Metrics:
        return Metrics.parse(self.ask("metrics"))

    def forget_prefixes(self) -> bool:
        return bool(self.ask("forget_prefixes"))

    def holdings(self) -> dict[str, int]:
        return dict(self.ask("holdings"))

    def tail(self, lines: int = 40) -> str:
        """The log's last lines."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join([f"--- {self.log}", *text.splitlines()[-lines:]])

    def kill(self) -> None:
        """SIGKILL."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self._close()

    def stop(self) -> None:
        """Let it shut down as a server would, and wait for that.  Idempotent."""
        if self._socket.fileno() >= 0:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)
                self._socket.settimeout(20)
                self._lines.read()
        self._close()

    def _close(self) -> None:
        self._lines.close()
        self._socket.close()

    def __enter__(self) -> ForkedEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


@contextlib.contextmanager
def engines(*those: ForkedEngine) -> Iterator[tuple[ForkedEngine, ...]]:
    """Stop several engines together."""
    try:
        yield those
    finally:
        for one in those:
            one.stop()
