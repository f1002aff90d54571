"""`kvhub inspect CHUNK`: what a chunk file says of itself, and whether it is whole."""

from __future__ import annotations

import argparse
import json
from typing import Any

from kvhub.allowed import allowed_by_environment
from kvhub.cli.output import quiet, table
from kvhub.config import load
from kvhub.plugins import Registry
from kvhub.pool.examine import examine


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("inspect", help="print the header of a chunk file and verify its payload")
    parser.add_argument(
        "file", help="a chunk file as a store keeps it, or a URL of a plugin that opens them (s3://...)"
    )
    parser.add_argument("--header", action="store_true", help="read the header only, not the payload")
    parser.add_argument("--config", metavar="FILE", help="a configuration: tell whether its codecs can read the chunk")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_run)


def _run(chosen: argparse.Namespace) -> int:
    registry = Registry()
    registry.allow_only(allowed_by_environment())
    with quiet():
        config = load(chosen.config, registry) if chosen.config else None
        facts = examine(chosen.file, registry, config, header_only=chosen.header)
    if chosen.json:
        print(json.dumps(facts, indent=1))
    else:
        table(["FIELD", "VALUE"], [[name, str(value)] for name, value in facts.items()])
    return 0 if facts["payload"] in ("whole", "not read") else 1
