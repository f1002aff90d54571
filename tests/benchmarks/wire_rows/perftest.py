"""UCX's own `ucx_perftest`, from the libucx wheel: the wire itself, with one hot buffer and nothing to check."""

from __future__ import annotations

import importlib.util
import os
import random
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from wire_rows.process import RowFailed, die_with_parent

WINDOW = 32
"""Sends under way at once: its own default of none caps a stream at one round trip per chunk."""
TIMEOUT = 60.0
_LISTEN = "0A"  # in /proc/net/tcp


def folder() -> Path:
    """Of the libucx wheel.  Raises RowFailed."""
    spec = importlib.util.find_spec("libucx")
    if spec is None or not spec.submodule_search_locations:
        raise RowFailed("ucx_perftest: no libucx module here; pip install 'kvhub-ucx[libucx]'")
    return Path(next(iter(spec.submodule_search_locations)))


def _free_port(enter: Sequence[str]) -> int:
    """One that nobody listens on there.  Below those that the kernel gives out: a hub may be given one meanwhile."""
    taken = _listening(enter)
    return random.choice([port for port in range(20_000, 30_000) if port not in taken])


def rate(
    test: str,
    size: int,
    total: int,
    settings: Mapping[str, str],
    *,
    host: str = "127.0.0.1",
    server: Sequence[str] = (),
    client: Sequence[str] = (),
) -> float:
    """GB/s of `total` bytes in messages of `size`.  `server` and `client` are put before each command."""
    home, port = folder(), _free_port(server)
    env = {**os.environ, "LD_LIBRARY_PATH": str(home / "lib"), "UCX_WARN_UNUSED_ENV_VARS": "n", **settings}
    count = max(4, total // size)
    common = ["-t", test, "-s", str(size), "-n", str(count), "-w", str(max(2, count // 8)), "-p", str(port)]
    common += ["-O", str(WINDOW), "-f", "-v", "-q"]
    program = str(home / "bin" / "ucx_perftest")
    run: list[subprocess.Popen[str]] = []

    def start(command: list[str], output: int) -> None:
        run.append(
            subprocess.Popen(
                command, env=env, stdout=output, stderr=subprocess.STDOUT, text=True, preexec_fn=die_with_parent
            )
        )

    try:
        start([*server, program, "-c", "1", *common], subprocess.DEVNULL)
        _wait_listening(port, server)
        start([*client, program, host, "-c", "0", *common], subprocess.PIPE)
        text, _ = run[1].communicate(timeout=TIMEOUT)
        run[0].wait(TIMEOUT)
        return _parse(text, size)
    except subprocess.TimeoutExpired as error:
        raise RowFailed(f"ucx_perftest {test} {size}: no end within {TIMEOUT:g} s") from error
    finally:
        for one in run:
            if one.poll() is None:
                one.kill()
            one.wait()


def _listening(enter: Sequence[str]) -> set[int]:
    """Ports that are listened on, in the namespace that `enter` leads to."""
    command = [*enter, "cat", "/proc/net/tcp", "/proc/net/tcp6"]
    table = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    fields = [line.split() for line in table.splitlines()]
    return {int(each[1].rpartition(":")[2], 16) for each in fields if len(each) > 3 and each[3] == _LISTEN}


def _wait_listening(port: int, enter: Sequence[str]) -> None:
    """Until the server listens, without connecting: it takes the first connection for its client."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        if port in _listening(enter):
            return
        time.sleep(0.01)
    raise RowFailed("ucx_perftest: its server did not listen within 10 s")


def _parse(text: str, size: int) -> float:
    """The message rate, last column of the line of numbers; the bandwidth columns are rounded to 0.01 MiB/s."""
    for line in reversed(text.splitlines()):
        fields = line.split(",")
        try:
            return float(fields[-1]) * size / 1e9
        except ValueError:
            continue
    raise RowFailed(f"ucx_perftest: no figures in {text[-300:]!r}")
