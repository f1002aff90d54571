"""What operators type: `kvhub plugins`, `kvhub check FILE`, `kvhub inspect CHUNK`, `kvhub pool COMMAND FILE`,
`kvhub new-plugin KIND NAME`.

Exit status: 0 when all is well, 1 when what was looked at is not, 2 for a wrong command line.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Sequence
from typing import Any, TextIO

from packaging.specifiers import SpecifierSet

from kvhub import __version__
from kvhub.config import Config, find, load
from kvhub.engine import ROLES, Engine
from kvhub.errors import ConfigError, KvhubError, PluginError
from kvhub.plugins import Registry
from kvhub.pool.command import add_parser
from kvhub.pool.examine import examine
from kvhub.scaffold import command as scaffold


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    chosen = _parser().parse_args(arguments)
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

    plugins = commands.add_parser("plugins", help="list installed plugins and what each brings, or why it is broken")
    plugins.add_argument("--json", action="store_true", help="print JSON")
    plugins.set_defaults(run=_plugins)

    check = commands.add_parser("check", help="check a configuration and print its effective values")
    check.add_argument("file", nargs="?", help="the YAML file; without it, the one that KVHUB_CONFIG names")
    check.add_argument("--role", choices=ROLES, help="look at one role: only its members' plugins are imported")
    check.add_argument("--json", action="store_true", help="print JSON")
    check.set_defaults(run=_check)

    inspect = commands.add_parser("inspect", help="print the header of a chunk file and verify its payload")
    inspect.add_argument(
        "file", help="a chunk file as a store keeps it, or a URL of a plugin that opens them (s3://...)"
    )
    inspect.add_argument("--header", action="store_true", help="read the header only, not the payload")
    inspect.add_argument("--config", metavar="FILE", help="a configuration: tell whether its codecs can read the chunk")
    inspect.add_argument("--json", action="store_true", help="print JSON")
    inspect.set_defaults(run=_inspect)

    add_parser(commands)
    scaffold.add_parser(commands)
    return parser


def _complain(chosen: argparse.Namespace, where: str, problems: list[str], text: str) -> None:
    if chosen.json:
        print(json.dumps({"ok": False, "file": where, "problems": problems}, indent=1))
    else:
        print(text, file=sys.stderr)


def _quiet() -> contextlib.redirect_stdout[TextIO]:
    """What plugins print while they are imported goes to stderr: stdout is ours, and may be JSON."""
    return contextlib.redirect_stdout(sys.stderr)


# -- plugins ---------------------------------------------------------------------------------------------------------


def _plugins(chosen: argparse.Namespace) -> int:
    registry = Registry()
    rows: list[dict[str, Any]] = []
    for info in registry.available():
        row: dict[str, Any] = {"name": info.name, "distribution": info.distribution, "version": info.version}
        try:
            with _quiet():
                loaded = registry.load(info.name)
        except PluginError as error:
            row["broken"] = str(error)
        else:
            row["stores"] = sorted(loaded.stores)
            row["transports"] = sorted(loaded.transports)
            row["engines"] = [_engine(engine) for engine in loaded.engines]
            row["codecs"] = sorted(loaded.codecs)
        rows.append(row)
    if chosen.json:
        print(json.dumps(rows, indent=1))
    elif rows:
        _table(["NAME", "DISTRIBUTION", "BRINGS"], [_plugin_row(row) for row in rows])
    else:
        print("no plugin is installed")
    return 0


def _engine(engine: type[Engine]) -> dict[str, Any]:
    version = engine.installed()
    tested = None if version is None else SpecifierSet(engine.versions).contains(version, prereleases=True)
    return {"name": engine.name, "tested": engine.versions, "installed": version, "in_range": tested}


def _plugin_row(row: dict[str, Any]) -> list[str]:
    if "broken" in row:
        brings = f"BROKEN: {row['broken']}"
    else:
        parts = [f"{kind} {', '.join(row[f'{kind}s'])}" for kind in ("store", "transport", "codec") if row[f"{kind}s"]]
        for engine in row["engines"]:
            here = f"installed {engine['installed']}" if engine["installed"] else "not installed"
            outside = ", outside of that" if engine["in_range"] is False else ""
            parts.append(f"engine {engine['name']} (tested {engine['tested']}, {here}{outside})")
        brings = "; ".join(parts) or "hooks only"
    return [row["name"], f"{row['distribution']} {row['version']}", brings]


# -- check -----------------------------------------------------------------------------------------------------------


def _check(chosen: argparse.Namespace) -> int:
    with _quiet():
        config = load(chosen.file or find(), Registry(), role=chosen.role)
    values = [(path, value) for path, value in config.values() if _of_role(path, chosen.role)]
    if chosen.json:
        effective = {path: {"value": _plain(value), "origin": config.origin[path]} for path, value in values}
        report = {"ok": True, "file": config.path, "warnings": config.warnings, "values": effective}
        report |= {"codecs": dict(config.encodings.by_store), "lossy": list(config.encodings.lossy)}
        print(json.dumps(report, indent=1))
        return 0
    _table(["OPTION", "VALUE", "FROM"], [[path, _text(value), config.origin[path]] for path, value in values])
    for line in [*_routes(config, chosen.role), *_encodings(config)]:
        print(line)
    for warning in config.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    return 0


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
    for store, name in config.encodings.by_store.items():
        cls = config.encodings.codecs[name].cls
        kept = ", and reads nothing else" if cls.seals else ""
        lines.append(f"{store}: keeps chunks encoded by {name} ({cls.name}, {'lossy' if cls.lossy else 'exact'}){kept}")
    if config.encodings.lossy:
        told = "; ".join(config.encodings.lossy)
        lines.append(f"namespace: marked with lossy codec {told}; shares no chunk with a file that has no lossy codec")
    return lines


def _plain(value: Any) -> Any:
    if isinstance(value, tuple | list | set | frozenset):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _text(value: Any) -> str:
    plain = _plain(value)
    if isinstance(plain, str):
        return plain or '""'
    if isinstance(plain, list) and all(isinstance(item, str) for item in plain):
        return f"[{', '.join(plain)}]"
    return json.dumps(plain)


# -- inspect ---------------------------------------------------------------------------------------------------------


def _inspect(chosen: argparse.Namespace) -> int:
    registry = Registry()
    with _quiet():
        config = load(chosen.config, registry) if chosen.config else None
        facts = examine(chosen.file, registry, config, header_only=chosen.header)
    if chosen.json:
        print(json.dumps(facts, indent=1))
    else:
        _table(["FIELD", "VALUE"], [[name, str(value)] for name, value in facts.items()])
    return 0 if facts["payload"] in ("whole", "not read") else 1


def _table(head: list[str], rows: list[list[str]]) -> None:
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head) - 1)]
    for row in [head, *rows]:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        print("  ".join([*cells, row[-1]]).rstrip())


if __name__ == "__main__":
    sys.exit(main())
