"""What every demo does around its conversation: arguments, a failure's sentence, and the last line."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

from harness.processes import NotReady
from harness.serving import HttpError


def parser(description: str, least: int) -> argparse.ArgumentParser:
    """The arguments that all demos have."""
    made = argparse.ArgumentParser(description=description.splitlines()[0])
    made.add_argument("--model", default="tiny-llama", help="one of the tiny models (default: %(default)s)")
    made.add_argument("--turns", type=int, default=4, help=f"at least {least} (default: %(default)s)")
    return made


def shown(play: Callable[[], tuple[str, list[str]]], home: Path) -> int:
    """Play, and print the report and every problem; 1 when there was any.  `home` has the engines' logs."""
    start = time.monotonic()
    try:
        report, problems = play()
    except (NotReady, HttpError, OSError) as why:
        print(f"FAILED {why}\nThe engines' logs are in {home}/", file=sys.stderr)
        return 1
    print(report)
    for problem in problems:
        print(f"FAILED {problem}")
    print(f"{'FAILED' if problems else 'OK'} in {time.monotonic() - start:.0f} s", flush=True)
    return 1 if problems else 0
