"""A process that has imported vLLM and forks an engine for everyone who connects: `python -m harness.zygote SOCKET`.

Importing takes ten seconds and an engine's start two, so a suite pays the ten once.  Each connection carries JSON
lines, one request and one answer at a time, to an engine of its own; when it closes, the engine ends.  Nothing of
torch may run before a fork: its threads would not survive it.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1


def _import_engine() -> float:
    start = time.monotonic()
    import vllm.v1.core.sched.scheduler
    import vllm.v1.engine.llm_engine
    import vllm.v1.executor.uniproc_executor
    import vllm.v1.worker.cpu_model_runner
    import vllm.v1.worker.cpu_worker  # noqa: F401
    from vllm import LLM, SamplingParams  # noqa: F401

    return time.monotonic() - start


def _serve_one(connection: socket.socket) -> None:
    """The forked process: one engine, until the connection closes."""
    from harness.forked import Forked

    lines = connection.makefile("rb")
    first = json.loads(lines.readline())
    log = os.open(first["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(first.get("env", {}))
    engine = Forked()

    def answer(call: Any, arguments: dict[str, Any]) -> bool:
        try:
            told = {"value": call(**arguments)}
        except Exception as error:
            traceback.print_exc()
            told = {"error": f"{type(error).__name__}: {error}"}
        connection.sendall(json.dumps(told).encode() + b"\n")
        return "value" in told

    if not answer(engine.start, {"settings": first["settings"]}):
        return
    connection.setblocking(True)
    while engine.step_until_readable(connection) and (line := lines.readline()):
        asked = json.loads(line)
        answer(getattr(engine, asked.pop("do")), asked)
    engine.stop()


def main() -> None:
    path = Path(sys.argv[1])
    took = _import_engine()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        print(f"vLLM imported in {took:.1f} s", flush=True)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        while True:
            connection, _ = listener.accept()
            if os.fork() == 0:
                ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
                listener.close()
                code = 1
                try:
                    _serve_one(connection)
                    code = 0
                except BaseException:
                    traceback.print_exc()
                finally:
                    sys.stdout.flush()
                    sys.stderr.flush()
                    os._exit(code)
            connection.close()
            _reap()


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


if __name__ == "__main__":
    main()
