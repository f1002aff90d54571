"""Two network namespaces joined by a veth pair, so that bytes take the kernel's network path and not loopback's."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import attrs

PREFIX = "kvhub-bench"
MTU = 9000
SERVER_HOST, PULLER_HOST = "10.77.0.1", "10.77.0.2"


class NoNamespaces(Exception):
    """They cannot be made here; the sentence says why."""


def _ip(*words: str) -> None:
    run = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if run.returncode:
        raise NoNamespaces(f"ip {' '.join(words)}: {run.stderr.strip() or run.returncode}")


@attrs.define
class Namespaces:
    """A context manager; the names carry the process id, so that a later run removes what a killed one left."""

    number: int = attrs.field(factory=os.getpid)

    @property
    def server(self) -> str:
        return f"{PREFIX}-{self.number}-s"

    @property
    def puller(self) -> str:
        return f"{PREFIX}-{self.number}-p"

    def enter(self, name: str) -> tuple[str, ...]:
        """What to put before a command that is to run in there."""
        return ("ip", "netns", "exec", name)

    def __enter__(self) -> Namespaces:
        if not shutil.which("ip"):
            raise NoNamespaces("no `ip` command (Debian: apt-get install iproute2)")
        if os.geteuid():
            raise NoNamespaces("network namespaces need root")
        _sweep()
        ends = ((self.server, "s", SERVER_HOST), (self.puller, "p", PULLER_HOST))
        try:
            for name, _, _ in ends:
                _ip("netns", "add", name)
            # Straight into the namespaces: the host's own interfaces never see the pair.
            devices = [f"kvb{end}{self.number}" for _, end, _ in ends]
            _ip(*("link", "add", devices[0], "netns", self.server),
                *("type", "veth", "peer", "name", devices[1], "netns", self.puller))  # fmt: skip
            for (name, _, host), device in zip(ends, devices, strict=True):
                _ip("-n", name, "addr", "add", f"{host}/24", "dev", device)
                _ip("-n", name, "link", "set", device, "mtu", str(MTU), "up")
                _ip("-n", name, "link", "set", "lo", "up")
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Idempotent; a namespace takes its end of the pair with it."""
        for name in (self.server, self.puller):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def _sweep() -> None:
    folder = Path("/run/netns")
    for path in folder.glob(f"{PREFIX}-*") if folder.is_dir() else ():
        found = re.fullmatch(rf"{PREFIX}-(\d+)-[sp]", path.name)
        if found and not Path(f"/proc/{found[1]}").exists():
            Namespaces(int(found[1])).remove()
