"""What kvhub raises.  Each message says the thing, the place, what was found and the next step.

Raising is for the programmer and for the start of a process.  What the world does while chunks move (misses,
time-outs, full disks) comes back as an `Outcome` in a `Completion` and is never raised.
"""

from __future__ import annotations

from collections.abc import Iterable


class KvhubError(Exception):
    """Base of everything that kvhub raises on purpose."""


class ConfigError(KvhubError):
    """A configuration that cannot start; carries every problem that was found, not only the first."""

    def __init__(self, problems: Iterable[str], *, where: str = "") -> None:
        self.problems = tuple(problems)
        self.where = where
        head = f"{where}: " if where else ""
        count = len(self.problems)
        title = f"{head}{count} problem{'' if count == 1 else 's'}"
        super().__init__("\n".join([title, *(f"  - {problem}" for problem in self.problems)]))


class PluginError(KvhubError):
    """A plugin that was asked for cannot be used: unknown, broken, ambiguous, too old, or wrongly built."""


class LayoutError(KvhubError):
    """KV bytes whose meaning is unknown, or that differ from what was declared."""


class MisuseError(KvhubError):
    """A caller broke a contract that is documented at the call; always a bug in the calling code."""


class Damaged(Exception):
    """An object that is not the chunk that was asked for; `reason` is one word, fit for a metric label.

    Raised inside stores and codecs only; the hub sees an outcome.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Foreign(Damaged):
    """An object of another format version, codec or key: not damaged, never read, never removed."""
