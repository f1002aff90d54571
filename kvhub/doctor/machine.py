"""The machine as members need it: Python, memory, limits, RDMA devices."""

from __future__ import annotations

import os
import platform
import resource
from collections.abc import Iterator
from pathlib import Path

import attrs

from kvhub import __version__
from kvhub.config import Config
from kvhub.findings import Finding, failed, passed, warned
from kvhub.pages import available_bytes
from kvhub.roles import HOST

INFINIBAND = Path("/sys/class/infiniband")
DEVICES = Path("/dev/infiniband")
FILES_BESIDE = 256
"""Open files that an engine and its libraries take beside kvhub's; a guess on the safe side."""
_EVER = resource.RLIM_INFINITY
_TIGHT = 0.9
GIB = 1 << 30


@attrs.frozen
class Machine:
    """What was found; sizes in bytes, -1 for no limit."""

    available: int | None
    """Memory that a process may still take, the cgroup's limit included."""
    locked: int
    """RLIMIT_MEMLOCK."""
    files: int
    """RLIMIT_NOFILE."""
    anonymous: str
    """Why no anonymous shared memory can be had; empty when it can."""
    ports: tuple[tuple[str, str], ...]
    """(`mlx5_0:1`, state as the kernel says it: `ACTIVE`) of every RDMA port."""
    reachable: bool
    """Whether this process may open the RDMA devices."""


def look(infiniband: Path | None = None, devices: Path | None = None) -> Machine:
    """Look at this machine."""
    sys_ports, dev = infiniband or INFINIBAND, devices or DEVICES
    ports = []
    for port in sorted(sys_ports.glob("*/ports/*")):
        try:
            state = (port / "state").read_text().strip().rpartition(" ")[2]
        except OSError:
            state = "unknown"
        ports.append((f"{port.parent.parent.name}:{port.name}", state))
    verbs = [path for path in dev.glob("uverbs*") if os.access(path, os.R_OK | os.W_OK)]
    return Machine(
        available_bytes(),
        resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        _anonymous(),
        tuple(ports),
        bool(verbs),
    )


def _anonymous() -> str:
    try:
        os.close(os.memfd_create("kvhub-doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
    except OSError as error:
        return error.strerror or str(error)
    return ""


def findings(machine: Machine, config: Config | None, members: tuple[str, ...]) -> Iterator[Finding]:
    """What this machine is for the members of a role; without a configuration only what needs none."""
    yield passed("environment", f"kvhub {__version__}, Python {platform.python_version()}, {platform.machine()}")
    yield _shared(machine)
    if config is None:
        return
    chosen = [config.members[name] for name in members if name in config.members]
    arena = sum(entry.options.capacity for entry in chosen if entry.use == HOST) or config.limits.staging
    yield _memory(machine, arena)
    yield _open_files(machine, sum(2 * int(getattr(entry.options, "workers", 0)) for entry in chosen))
    if any(entry.kind == "transport" for entry in chosen):
        yield from _rdma(machine, arena)


def _shared(machine: Machine) -> Finding:
    if machine.anonymous:
        return failed(
            "shared memory",
            f"memfd_create is refused: {machine.anonymous}; the arena is such memory",
            "permit the system call in the container's seccomp profile",
        )
    return passed("shared memory", "memfd works; it counts as memory of the process and does not need /dev/shm")


def _memory(machine: Machine, arena: int) -> Finding:
    what, needs = "memory", f"one engine process takes {_size(arena)} for its arena"
    if machine.available is None:
        return warned(what, f"{needs}; how much there is cannot be told", "compare it with the machine's memory")
    found = f"{needs} and {_size(machine.available)} are available here"
    if arena > machine.available:
        return failed(what, found, "lower capacity (or limits.staging), or raise the memory of machine or cgroup")
    if arena > _TIGHT * machine.available:
        return warned(what, found, "leave room for the engine itself: lower capacity, or raise the cgroup's limit")
    return passed(what, found)


def _open_files(machine: Machine, workers: int) -> Finding:
    what, needs = "open files", workers + FILES_BESIDE
    if machine.files != _EVER and machine.files < needs:
        return warned(
            what,
            f"the limit is {machine.files}, and members and engine may need {needs}",
            f"raise it, as `ulimit -n {max(needs, 4096)}`, or LimitNOFILE of the service",
        )
    return passed(what, f"the limit is {'none' if machine.files == _EVER else machine.files}")


def _rdma(machine: Machine, arena: int) -> Iterator[Finding]:
    if not machine.ports:
        yield passed("RDMA devices", "none; transports use shared memory and TCP")
        return
    up = [name for name, state in machine.ports if state == "ACTIVE"]
    told = ", ".join(f"{name} {state}" for name, state in machine.ports)
    if not up:
        yield failed("RDMA devices", f"{told}: none is up", "check cable, switch and subnet manager with `ibstat`")
    elif len(up) < len(machine.ports):
        yield warned("RDMA devices", told, "name the ports to use in the transport's options, or bring all up")
    else:
        yield passed("RDMA devices", told)
    if not machine.reachable:
        yield failed(
            "RDMA access",
            f"{len(machine.ports)} ports, and this process may not open {DEVICES}/uverbs*",
            "hand the devices to the container, and check their group and mode",
        )
    if machine.locked != _EVER and machine.locked < arena:
        yield failed(
            "locked memory",
            f"the limit is {_size(machine.locked)}, and RDMA locks the arena of {_size(arena)}",
            "raise it, as `ulimit -l unlimited`, LimitMEMLOCK of the service or CAP_IPC_LOCK",
        )
    else:
        yield passed("locked memory", f"the limit is {'none' if machine.locked == _EVER else _size(machine.locked)}")


def _size(count: int) -> str:
    return f"{count / GIB:.1f} GiB" if count >= GIB // 10 else f"{count / (1 << 20):.1f} MiB"
