"""One end of a row in a process of its own: pinned to a core, does what it is told by lines of JSON on its stdin."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

_ANSWERS = os.fdopen(os.dup(1), "w", buffering=1)


def say(**facts: Any) -> None:
    _ANSWERS.write(json.dumps(facts) + "\n")


def run(commands: dict[str, Callable[..., dict[str, Any]]]) -> None:
    """Answer `{"do": NAME, ...}` until stdin ends.  Leaves without tidying: some libraries crash while they are."""
    os.sched_setaffinity(0, {int(sys.argv[2])})
    # What libraries print, and the hub's log, is not an answer.
    os.dup2(2, 1)
    say(ready=True)
    for line in sys.stdin:
        order = json.loads(line)
        try:
            say(**commands[order.pop("do")](**order))
        except Exception as error:
            traceback.print_exc()
            say(error=f"{type(error).__name__}: {error}")
    os._exit(0)
