"""How much of the machine others took while we measured: told, not hidden."""

from __future__ import annotations

import os
import time
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def _all() -> float:
    """CPU seconds that the machine has worked so far, stolen time included."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    user, nice, system, _idle, _wait, irq, softirq, steal = fields[:8]
    return (user + nice + system + irq + softirq + steal) / TICKS


def _ours() -> float:
    """CPU seconds of this process, its living children and those that it has waited for."""
    own = os.times()
    total = own.user + own.system + own.children_user + own.children_system
    for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        total += (int(fields[11]) + int(fields[12])) / TICKS
    return total


class Watch:
    """From its making until `others`."""

    def __init__(self) -> None:
        self._time, self._all, self._ours = time.monotonic(), _all(), _ours()
        self.seconds = 0.0

    def others(self) -> float:
        """Cores that other processes kept busy meanwhile."""
        self.seconds = time.monotonic() - self._time
        return max(0.0, (_all() - self._all) - (_ours() - self._ours)) / self.seconds


def wait_for_quiet(seconds: float, *, cores: float = 0.25) -> None:
    """Until others use less than `cores`, at most `seconds` long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        watch = Watch()
        time.sleep(1.0)
        if watch.others() < cores:
            return
