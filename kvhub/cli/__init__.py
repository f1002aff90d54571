"""What operators type: `kvhub check FILE`, `kvhub doctor FILE`, `kvhub bench FILE` and the others; `main` runs one.

Each module has one command, or a family of them, and adds its own parser; `output` has what they print with.

Exit status: 0 when all is well, 1 when what was looked at is not, 2 for a wrong command line.  `doctor` has its own.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Sequence

import structlog

from kvhub import __version__
from kvhub.cli import bench, chunk, config, doctor, plugins, verify
from kvhub.errors import ConfigError, KvhubError
from kvhub.pool.command import add_parser as add_pool
from kvhub.scaffold import command as scaffold

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    chosen = _parser().parse_args(arguments)
    if arguments is None and not structlog.is_configured():
        # Commands say by themselves what they find; what members log beside that is for servers.
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    try:
        status: int = chosen.run(chosen)
    except ConfigError as error:
        _complain(chosen, error.where, list(error.problems), str(error))
        return 1
    except KvhubError as error:
        _complain(chosen, "", [str(error)], str(error))
        return 1
    except BrokenPipeError:
        # The reader of our output went away (`| head`).  Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="kvhub", description="Keeps and moves the KV that serving engines compute.")
    parser.add_argument("--version", action="version", version=f"kvhub {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    plugins.add_parser(commands)
    config.add_parsers(commands)
    doctor.add_parser(commands)
    bench.add_parser(commands)
    chunk.add_parser(commands)
    add_pool(commands)
    scaffold.add_parser(commands)
    verify.add_parser(commands)
    return parser


def _complain(chosen: argparse.Namespace, where: str, problems: list[str], text: str) -> None:
    if chosen.json:
        print(json.dumps({"ok": False, "file": where, "problems": problems}, indent=1))
    else:
        print(text, file=sys.stderr)
