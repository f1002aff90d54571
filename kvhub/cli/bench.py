"""`kvhub bench FILE --role R`: a table of speeds beside this machine's bounds, and what the file should say."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import attrs

from kvhub import units
from kvhub.bench import Plan, Report, plot, run
from kvhub.bench.members import Row
from kvhub.cli.output import quiet, table
from kvhub.config import find, load
from kvhub.engine import ROLES
from kvhub.errors import ConfigError, KvhubError
from kvhub.plugins import Registry
from kvhub.pool.words import Words, count, per_second

BAR = 20


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "bench",
        help="measure each member and the route of a role beside this machine's own bounds, and suggest deadlines",
        description="Writes and removes chunks of a scratch namespace; an engine's are never touched.",
    )
    parser.add_argument("file", nargs="?", help="the YAML file; without it, the one that KVHUB_CONFIG names")
    parser.add_argument("--role", choices=ROLES, help="whose members and route; may be left out where the file has one")
    parser.add_argument("--seconds", default="20s", help="how long it may take, about (20s)")
    parser.add_argument("--token-bytes", default="128KiB", help="KV of one token on one rank (128KiB)")
    parser.add_argument("--prompt", default="8192", help="tokens that a deadline is to suffice for (8192)")
    parser.add_argument("--prefill", metavar="RATE", help="prompt tokens that the engine computes per second")
    parser.add_argument("--yaml", metavar="PATH", help="write the suggestion there, too")
    parser.add_argument("--plot", metavar="FILE.svg", help="draw the speeds and their bounds there")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_run)


def _run(chosen: argparse.Namespace) -> int:
    words = Words(chosen)
    seconds = words.read("seconds", units.seconds, 20.0)
    token_bytes = words.read("token-bytes", units.size, 1)
    prompt, prefill = words.read("prompt", count, 1), words.read("prefill", per_second, 0.0)
    if not 1 <= seconds <= 3600:
        words.problems.append(f"--seconds: expected 1s to 1h, found {chosen.seconds}")
    if not 1 <= token_bytes <= 1 << 26:
        words.problems.append(f"--token-bytes: expected 1 to 64MiB, found {chosen.token_bytes}")
    if words.problems:
        raise ConfigError(words.problems, where="kvhub bench")
    with quiet():
        registry = Registry()
        config = load(chosen.file or find(), registry)
        if chosen.role is None and len(config.roles) > 1:
            raise ConfigError([f"roles: the file has {len(config.roles)}; name one with --role"], where=config.path)
        role = chosen.role or next(iter(config.roles))
        if role not in config.roles:
            known = ", ".join(config.roles)
            raise ConfigError([f"roles: has no role '{role}', which was asked for; known: {known}"], where=config.path)
        report = run(config, Plan(role, seconds, token_bytes, prompt, prefill), registry)
    if chosen.yaml and report.yaml:
        _write("--yaml", chosen.yaml, report.yaml)
    if chosen.plot:
        _write("--plot", chosen.plot, plot.svg(report.rows))
    if chosen.json:
        print(json.dumps(_facts(report), indent=1))
    else:
        _show(report)
    return 0 if any(row.rate for row in report.rows) else 1


def _write(option: str, path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise KvhubError(f"{option}: {path} cannot be written: {error.strerror}; name another") from error


def _facts(report: Report) -> dict[str, Any]:
    rows = [attrs.asdict(row) | {"part": round(row.part, 4)} for row in report.rows]
    return {"rows": rows, "lookup": report.lookup, "yaml": report.yaml}


def _show(report: Report) -> None:
    head = ["MEMBER", "WHAT", "SPEED", "ONE CHUNK", "LONGEST", "BOUND", "OF IT", "NOTE"]
    table(head, [_row(row) for row in report.rows])
    if report.lookup:
        print(f"\nlimits.lookup: at least {1000 * report.lookup:.1f} ms, twice the longest lookup of one key")
    if report.yaml:
        print("\nSuggested; `retrieve` replaces the role's whole list:\n")
        print(report.yaml, end="")


def _row(row: Row) -> list[str]:
    if not row.rate:
        return [row.member, row.what, "", "", "", "", "", row.note]
    speed = f"{row.rate:.0f} keys/s" if row.what == "find" else _speed(row.rate)
    bound = f"{_speed(row.bound)} {row.against}" if row.bound else ""
    part = f"{100 * row.part:4.0f} % {'#' * max(1, round(BAR * min(1.0, row.part)))}" if row.bound else ""
    return [row.member, row.what, speed, _time(row.first), _time(row.worst), bound, part, row.note]


def _speed(rate: float) -> str:
    return f"{rate / 1e9:.2f} GB/s" if rate >= 1e8 else f"{rate / 1e6:.2f} MB/s"


def _time(seconds: float) -> str:
    return f"{1000 * seconds:.2f} ms"
