"""`kvhub check FILE`, `kvhub config show FILE` and `kvhub config schema`: what a file says, and what it may say."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from kvhub.allowed import allowed_by_environment
from kvhub.cli.output import plain, quiet, table, text
from kvhub.config import Config, find, load
from kvhub.engine import ROLES
from kvhub.plugins import Registry
from kvhub.schema import schema


def add_parsers(commands: Any) -> None:
    check = commands.add_parser("check", help="check a configuration and print its effective values")
    _reading(check)
    check.set_defaults(run=_check)

    config = commands.add_parser("config", help="show a configuration's effective values, or what a file may say")
    inner = config.add_subparsers(required=True, metavar="COMMAND")
    show = inner.add_parser("show", help="print effective values and where each comes from")
    _reading(show)
    show.set_defaults(run=_show)
    described = inner.add_parser("schema", help="print the JSON Schema of a file with the installed plugins' options")
    described.set_defaults(run=_schema, json=False)


def _reading(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="?", help="the YAML file; without it, the one that KVHUB_CONFIG names")
    parser.add_argument("--role", choices=ROLES, help="look at one role: only its members' plugins are imported")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _loaded(chosen: argparse.Namespace) -> Config:
    with quiet():
        return load(chosen.file or find(), Registry(), role=chosen.role)


def _check(chosen: argparse.Namespace) -> int:
    config = _loaded(chosen)
    if chosen.json:
        report: dict[str, Any] = {"ok": True, "file": config.path, "warnings": config.warnings}
        report |= {"values": _effective(config, chosen.role)}
        report |= {
            "codecs": {store: list(chain) for store, chain in config.encodings.by_store.items()},
            "lossy": list(config.encodings.lossy),
        }
        print(json.dumps(report, indent=1))
        return 0
    _print_values(config, chosen.role)
    for line in [*_routes(config, chosen.role), *_encodings(config)]:
        print(line)
    for warning in config.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    return 0


def _show(chosen: argparse.Namespace) -> int:
    config = _loaded(chosen)
    if chosen.json:
        print(json.dumps(_effective(config, chosen.role), indent=1))
    else:
        _print_values(config, chosen.role)
    return 0


def _schema(chosen: argparse.Namespace) -> int:
    registry = Registry()
    registry.allow_only(allowed_by_environment())
    with quiet():
        described, left_out = schema(registry)
    for sentence in left_out:
        print(f"left out: {sentence}", file=sys.stderr)
    print(json.dumps(described, indent=1))
    return 0


def _values(config: Config, role: str | None) -> list[tuple[str, Any]]:
    return [(path, value) for path, value in config.values() if _of_role(path, role)]


def _effective(config: Config, role: str | None) -> dict[str, Any]:
    return {path: {"value": plain(value), "origin": config.origin[path]} for path, value in _values(config, role)}


def _print_values(config: Config, role: str | None) -> None:
    rows = [[path, text(value), config.origin[path]] for path, value in _values(config, role)]
    table(["OPTION", "VALUE", "FROM"], rows)


def _of_role(path: str, role: str | None) -> bool:
    return role is None or not path.startswith("roles.") or path.startswith(f"roles.{role}.")


def _routes(config: Config, role: str | None) -> list[str]:
    lines = [""]
    for name, entry in config.roles.items():
        if role in (None, name):
            stores = " -> ".join(step.member for step in entry.store) or "nowhere"
            retrieves = " -> ".join(step.member for step in entry.retrieve) or "nowhere"
            lines.append(f"{name}: retrieves from {retrieves}; stores to {stores}")
    return lines


def _encodings(config: Config) -> list[str]:
    lines = []
    for store, chain in config.encodings.by_store.items():
        classes = [config.encodings.codecs[name].cls for name in chain]
        kept = ", and reads nothing else" if classes[-1].seals else ""
        each = [
            f"{name} ({cls.name}, {'lossy' if cls.lossy else 'exact'})"
            for name, cls in zip(chain, classes, strict=True)
        ]
        lines.append(f"{store}: keeps chunks encoded by {', then '.join(each)}{kept}")
    if config.encodings.lossy:
        told = "; ".join(config.encodings.lossy)
        lines.append(f"namespace: marked with lossy codec {told}; shares no chunk with a file that has no lossy codec")
    return lines
