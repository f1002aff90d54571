"""The peer's server: LMCache's multi-process cache, set up well, and the rates that it logs about itself.

Well means: the KV crosses in shared memory (without --shm-name it is pickled through a socket, 30 times slower), the
whole L1 is allocated at start (--no-l1-use-lazy), observers off, one worker thread per core of a small machine.
"""

from __future__ import annotations

import json
import re
import socket
import subprocess
import time
import urllib.error
import urllib.request
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs
from peer.process import EngineFailed, environment

CHUNK_TOKENS = 256
START_SECONDS = 120.0
SETTLE_SECONDS = 60.0
STAMP = r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3})\]"
STORED = re.compile(STAMP + r".*Stored (\d+) tokens in ([\d.]+) seconds")
RETRIEVED = re.compile(STAMP + r".*Retrieved (\d+) tokens in ([\d.]+) seconds")
PREFETCHED = re.compile(STAMP + r".*Prefetch request completed.*\((\d+) L1, (\d+) L2\) in ([\d.]+) ms")


@attrs.frozen
class Spent:
    """Tokens that moved and the seconds that moving them took."""

    tokens: int = 0
    seconds: float = 0.0

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.tokens + other.tokens, self.seconds + other.seconds)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class LMCacheServer:
    """One `lmcache server`; with `directory`, its L1 is backed by the native file system adapter there."""

    def __init__(self, python: str, name: str, folder: Path, *, gigabytes: int, directory: bool = False) -> None:
        self.port, self._http = free_port(), free_port()
        self._name = name
        self._log = folder / f"{name}.server.log"
        self._pool = folder / f"{name}.files" if directory else None
        self._shared = f"kvhub-bench-{self.port}"
        command = [str(Path(python).with_name("lmcache")), "server"]
        command += ["--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--http-host", "127.0.0.1", "--http-port", str(self._http)]
        command += ["--chunk-size", str(CHUNK_TOKENS), "--l1-size-gb", str(gigabytes), "--no-l1-use-lazy"]
        command += ["--shm-name", self._shared, "--supported-transfer-mode", "auto"]
        command += ["--eviction-policy", "LRU", "--max-workers", "2", "--disable-observability"]
        if self._pool:
            self._pool.mkdir()
            command += ["--l2-adapter", json.dumps({"type": "fs_native", "base_path": str(self._pool)})]
        with self._log.open("w") as sink:
            self._process = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT, env=environment(1))

    @property
    def pid(self) -> int:
        return self._process.pid

    def connector(self) -> dict[str, Any]:
        """What an engine's kv_transfer_config has to say to use this server."""
        return {
            "kv_connector": "LMCacheMPConnector",
            "kv_connector_module_path": "lmcache.integration.vllm.lmcache_mp_connector",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": self.port},
        }

    def ready(self) -> None:
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end and self._process.poll() is None:
            try:
                self._call("/healthcheck")
                return
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
        tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-15:])
        raise EngineFailed(f"LMCache's server {self._name!r} did not start; the end of {self._log}:\n{tail}")

    def settle(self) -> None:
        """Wait until nothing is on its way to the second level."""
        end = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < end:
            found = json.loads(self._call("/status"))["storage_manager"]["store_controllers"]["_default"]
            if not found["pending_keys_count"] and not found["in_flight_task_count"]:
                return
            time.sleep(0.02)
        raise EngineFailed(f"LMCache's server {self._name!r} still stores after {SETTLE_SECONDS:.0f} s")

    def clear_memory(self) -> None:
        """Empty L1, so that L2 has to serve."""
        self._call("/cache/clear", {"tier": "l1"})

    def mark(self) -> int:
        """Where the log ends now; the two readers below take it from there."""
        return self._log.stat().st_size

    def stored(self, mark: int) -> Spent:
        """What was stored since `mark`.  With a directory: until the files were there, not counting the copy to L1."""
        found = [(_instant(at), int(tokens), float(seconds)) for at, tokens, seconds in self._lines(STORED, mark)]
        if self._pool is None:
            return sum((Spent(tokens, seconds) for _, tokens, seconds in found), Spent())
        files = sorted(path.stat().st_mtime for path in self._pool.iterdir())
        files = files[len(files) - sum(tokens for _, tokens, _ in found) // CHUNK_TOKENS :]
        spent = Spent()
        for instant, tokens, _ in found:
            # The store controller works in order, so the oldest files belong to the first store.
            mine, files = files[: tokens // CHUNK_TOKENS], files[tokens // CHUNK_TOKENS :]
            spent += Spent(tokens, max(mine[-1] - instant, 1e-3))
        return spent

    def retrieved(self, mark: int) -> Spent:
        """What was retrieved since `mark`; what the second level took to bring it into L1 is part of it."""
        spent = sum((Spent(int(tokens), float(s)) for _, tokens, s in self._lines(RETRIEVED, mark)), Spent())
        for _, _, from_files, milliseconds in self._lines(PREFETCHED, mark):
            if int(from_files):
                spent += Spent(0, float(milliseconds) / 1000)
        return spent

    def from_files(self, mark: int) -> int:
        """Chunks that the second level served since `mark`."""
        return sum(int(found) for _, _, found, _ in self._lines(PREFETCHED, mark))

    def _lines(self, pattern: re.Pattern[str], mark: int) -> list[tuple[str, ...]]:
        with self._log.open("rb") as log:
            log.seek(mark)
            text = log.read().decode(errors="replace")
        return [found.groups() for found in map(pattern.search, text.splitlines()) if found]

    def _call(self, path: str, body: dict[str, Any] | None = None) -> bytes:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._http}{path}", data, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            return bytes(answer.read())

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        # The server does not unlink its segment when it is told to end.
        Path(f"/dev/shm/lmcache_l1_pool_{self._shared}").unlink(missing_ok=True)


def _instant(stamp: str) -> float:
    return datetime.strptime(stamp, "%Y-%m-%d %H:%M:%S,%f").replace(tzinfo=UTC).timestamp()
