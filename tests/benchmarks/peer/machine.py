"""What else the machine did while we measured: figures of a busy machine are told, not hidden."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def used_by(pids: Iterable[int]) -> float:
    """CPU seconds of these processes so far."""
    total = 0.0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        total += (int(fields[11]) + int(fields[12])) / TICKS
    return total


def used_by_all() -> float:
    """CPU seconds that the whole machine has worked so far, guests and stolen time included."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    user, nice, system, _idle, _wait, irq, softirq, steal = fields[:8]
    return (user + nice + system + irq + softirq + steal) / TICKS


class Watch:
    """Cores that processes other than ours kept busy between `start` and `others`."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._pids = [*pids, os.getpid()]
        self._time, self._all, self._ours = time.monotonic(), used_by_all(), used_by(self._pids)

    def others(self) -> float:
        seconds = time.monotonic() - self._time
        return max(0.0, (used_by_all() - self._all) - (used_by(self._pids) - self._ours)) / seconds


def wait_for_quiet(pids: Iterable[int], seconds: float, *, cores: float = 0.25) -> None:
    """Wait until processes other than ours use less than `cores`, at most `seconds` long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        watch = Watch(pids)
        time.sleep(1.0)
        if watch.others() < cores:
            return


def idle_share(pids: Iterable[int], seconds: float = 2.0) -> float:
    """Part of a core that these processes use while nobody asks anything of them."""
    pids = list(pids)
    before = used_by(pids)
    time.sleep(seconds)
    return (used_by(pids) - before) / seconds
