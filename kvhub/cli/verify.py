"""`kvhub verify FILE`: the command line; the laws are in `kvhub.testing` and are imported when they are wanted."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from typing import Any

import attrs

from kvhub.cli.output import quiet
from kvhub.errors import KvhubError


def add_parser(commands: Any) -> None:
    """Add `verify` to the parser of `kvhub`."""
    parser = commands.add_parser(
        "verify", help="hold a store to its contract on its real medium, in a scratch namespace"
    )
    parser.add_argument("file", help="the YAML file that names the store")
    parser.add_argument("--member", default="", metavar="M", help="the store; may be left out where there is one only")
    parser.add_argument("--level", choices=("works", "safe", "fast"), default="safe", help="laws up to it (safe)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_run)


def _run(chosen: argparse.Namespace) -> int:
    if importlib.util.find_spec("pytest") is None:
        raise KvhubError("kvhub verify runs laws, which are pytest's: pip install 'kvhub[testing]'")
    # Not above: importing pytest takes longer than most commands run.
    from kvhub.testing.pytest_plugin import summary
    from kvhub.testing.verify import verify

    def told(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    with quiet():
        found = verify(chosen.file, chosen.member, chosen.level, told=told)
    if chosen.json:
        print(json.dumps({"ok": found.good} | attrs.asdict(found), indent=1))
        return 0 if found.good else 1
    for line in summary(list(found.verdicts), found.level):
        print(line)
    for verdict in found.verdicts:
        if verdict.outcome == "failed":
            print(f"\n{verdict.law.removeprefix('test_')} protects: {verdict.protects}")
    for note in found.notes:
        print(f"note: {note}")
    for left in found.left:
        print(f"left behind: {left}")
    print("\nverified" if found.good else f"\nNOT verified{f': {found.problem}' if found.problem else ''}")
    return 0 if found.good else 1
