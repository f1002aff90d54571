"""The benchmark's side of an engine process: start it, order, read the answer, end it."""

from __future__ import annotations

import json
import os
import select
import subprocess
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
START_SECONDS = 240.0
ORDER_SECONDS = 180.0


def environment(threads: int) -> dict[str, str]:
    """The same for every row; each line has a reason in the engine, not in the connector."""
    kept = {name: value for name, value in os.environ.items() if name != "VLLM_CPU_KVCACHE_SPACE"}
    return kept | {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # one process per engine: TTFT without vLLM's own IPC
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # otherwise every engine pins itself to the same core
        "OMP_NUM_THREADS": str(threads),
        "TORCHDYNAMO_DISABLE": "1",  # the logprobs path is compiled even with enforce_eager
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "LMCACHE_TRACK_USAGE": "false",
        "LMCACHE_DISABLE_BANNER": "1",
        "PYTHONHASHSEED": "0",
        "PYTHONPATH": str(HERE.parent),  # with -P: the names of our files hide no library's
        "TZ": "UTC",  # LMCache's log lines carry local time
        "VLLM_LOGGING_LEVEL": "WARNING",
    }


class EngineFailed(RuntimeError):
    """An engine process died, answered an error or did not answer in time."""


class EngineProcess:
    """A process that runs `engine.py`.  One order at a time; between orders the engine is idle."""

    def __init__(self, name: str, python: str, order: dict[str, Any], *, threads: int, log: Path) -> None:
        self.name = name
        self._log = log
        with log.open("w") as sink:
            self._process = subprocess.Popen(
                [python, "-P", "-X", "faulthandler", str(HERE / "engine.py"), json.dumps(order)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=sink,
                env=environment(threads),
                bufsize=0,
            )
        self._buffer = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    def ready(self) -> None:
        """Wait until the engine is built."""
        self._answer(START_SECONDS)

    def ask(self, do: str, **order: Any) -> dict[str, Any]:
        """Send one order and wait for its answer.  Raises EngineFailed."""
        assert self._process.stdin
        try:
            self._process.stdin.write(json.dumps({"do": do} | order).encode() + b"\n")
        except BrokenPipeError as error:
            raise EngineFailed(self._obituary("closed its input")) from error
        return self._answer(ORDER_SECONDS)

    def _answer(self, seconds: float) -> dict[str, Any]:
        assert self._process.stdout
        while b"\n" not in self._buffer:
            readable, _, _ = select.select([self._process.stdout], [], [], seconds)
            if not readable:
                raise EngineFailed(self._obituary(f"gave no answer within {seconds:.0f} s"))
            data = self._process.stdout.read(1 << 16)
            if not data:
                raise EngineFailed(self._obituary(f"ended with {self._process.wait()}"))
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\n", 1)
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise EngineFailed(self._obituary(f"failed: {answer['error']}"))
        return answer

    def _obituary(self, what: str) -> str:
        tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-15:])
        return f"engine {self.name!r} (pid {self.pid}) {what}; the end of {self._log}:\n{tail}"

    def close(self) -> None:
        """Ask it to end, then insist."""
        if self._process.poll() is None:
            try:
                assert self._process.stdin
                self._process.stdin.write(b'{"do": "quit"}\n')
                self._process.wait(20)
            except (BrokenPipeError, subprocess.TimeoutExpired):
                self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                pipe.close()
