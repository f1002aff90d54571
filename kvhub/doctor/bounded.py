"""Work that may hang in a dead server, given up after a while; and errors as findings."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from kvhub.errors import KvhubError
from kvhub.findings import Finding, failed

PATIENCE = 30.0
"""Seconds for one member: opening may take 10, each of a few calls and closing some more."""


def bounded(what: str, work: Callable[[], Iterable[Finding]], patience: float = PATIENCE) -> list[Finding]:
    """The findings of `work`, of which what it found before it hung or failed."""
    found: list[Finding] = []
    ended = threading.Event()

    def run() -> None:
        try:
            for finding in work():
                found.append(finding)
        except KvhubError as error:
            found.append(of_error(what, error))
        except Exception as error:
            found.append(of_fault(what, error))
        finally:
            ended.set()

    threading.Thread(target=run, name="kvhub-doctor", daemon=True).start()
    if not ended.wait(patience):
        said = f"it did not answer within {patience:g} s"
        return [
            *found,
            failed(what, said, "check that its server is up; a hung mount is best unmounted with `umount -f`"),
        ]
    return found


def of_error(what: str, error: KvhubError) -> Finding:
    """A refusal: our sentences end with the next step."""
    found, _, step = str(error).rpartition("; ")
    return failed(what, found, step) if found else failed(what, step, "do as it says, then run `kvhub doctor` again")


def of_fault(what: str, error: Exception) -> Finding:
    return failed(what, f"it raised {type(error).__name__}: {error}", "this is a fault of the plugin, tell its authors")
