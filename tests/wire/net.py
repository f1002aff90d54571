"""Network namespaces around a bridge: machines with links of their own, some of them slow."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PREFIX = "kvhub-net"
HUB = "hub"


def problem() -> str:
    """Why no namespaces can be made here; empty when they can."""
    if missing := [tool for tool in ("ip", "tc") if not shutil.which(tool)]:
        return f"no {' and no '.join(missing)} here (Debian: apt-get install iproute2)"
    return "network namespaces need root" if os.geteuid() else ""


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(words)}: {done.stderr.strip()}")


class Net:
    """`host(name)` is a machine's address, `enter(name)` what to put before a command that runs on it."""

    def __init__(self, names: list[str]) -> None:
        self.names = names
        self._id = f"{PREFIX}-{os.getpid()}"

    def space(self, name: str) -> str:
        return f"{self._id}-{name}"

    def host(self, name: str) -> str:
        return f"10.78.0.{self.names.index(name) + 1}"

    def enter(self, name: str) -> list[str]:
        return ["ip", "netns", "exec", self.space(name)]

    def make(self) -> None:
        hub = self.space(HUB)
        _run("ip", "netns", "add", hub)
        _run("ip", "-n", hub, "link", "add", "br0", "type", "bridge")
        _run("ip", "-n", hub, "link", "set", "br0", "up")
        for name in self.names:
            space = self.space(name)
            _run("ip", "netns", "add", space)
            _run("ip", "link", "add", name, "netns", hub, "type", "veth", "peer", "name", "net0", "netns", space)
            _run("ip", "-n", hub, "link", "set", name, "master", "br0", "up")
            _run("ip", "-n", space, "addr", "add", f"{self.host(name)}/24", "dev", "net0")
            _run("ip", "-n", space, "link", "set", "net0", "up")
            _run("ip", "-n", space, "link", "set", "lo", "up")

    def slow(self, name: str, rate: str = "20mbit") -> str:
        """Limit what reaches a machine: with netem, and delay, where the kernel has it, else with a token bucket."""
        way = ["tc", "-n", self.space(HUB), "qdisc", "add", "dev", name, "root"]
        try:
            _run(*way, "netem", "rate", rate, "delay", "5ms")
        except OSError:
            _run(*way, "tbf", "rate", rate, "burst", "64kb", "latency", "50ms")
            return "tbf"
        return "netem"

    def remove(self) -> None:
        for name in (*self.names, HUB):
            subprocess.run(["ip", "netns", "del", self.space(name)], capture_output=True, check=False)


def sweep() -> None:
    """Remove what killed runs have left."""
    folder = Path("/run/netns")
    for path in folder.glob(f"{PREFIX}-*") if folder.is_dir() else ():
        found = re.fullmatch(rf"{PREFIX}-(\d+)-\w+", path.name)
        if found and not Path(f"/proc/{found[1]}").exists():
            subprocess.run(["ip", "netns", "del", path.name], capture_output=True, check=False)


@contextmanager
def network(*names: str) -> Iterator[Net]:
    """Made, and removed at the end."""
    sweep()
    net = Net(list(names))
    try:
        net.make()
        yield net
    finally:
        net.remove()
