"""`kvhub plugins`: what is installed, what each plugin brings, or why it is broken."""

from __future__ import annotations

import argparse
import json
from typing import Any

from packaging.specifiers import SpecifierSet

from kvhub.allowed import allowed_by_environment
from kvhub.cli.output import quiet, table
from kvhub.engine import Engine
from kvhub.errors import PluginError
from kvhub.plugins import SLOW_IMPORT, Registry


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("plugins", help="list installed plugins and what each brings, or why it is broken")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_run)


def _run(chosen: argparse.Namespace) -> int:
    registry = Registry()
    registry.allow_only(allowed_by_environment())
    rows: list[dict[str, Any]] = []
    for info in registry.available():
        row: dict[str, Any] = {"name": info.name, "distribution": info.distribution, "version": info.version}
        try:
            with quiet():
                loaded = registry.load(info.name)
        except PluginError as error:
            row["broken"] = str(error)
        else:
            row["stores"] = sorted(loaded.stores)
            row["transports"] = sorted(loaded.transports)
            row["engines"] = [_engine(engine) for engine in loaded.engines]
            row["codecs"] = sorted(loaded.codecs)
            row["import_seconds"] = round(loaded.seconds, 3)
        rows.append(row)
    if chosen.json:
        print(json.dumps(rows, indent=1))
    elif rows:
        table(["NAME", "DISTRIBUTION", "BRINGS"], [_row(row) for row in rows])
    else:
        print("no plugin is installed")
    return 0


def _engine(engine: type[Engine]) -> dict[str, Any]:
    version = engine.installed()
    tested = None if version is None else SpecifierSet(engine.versions).contains(version, prereleases=True)
    return {"name": engine.name, "tested": engine.versions, "installed": version, "in_range": tested}


def _row(row: dict[str, Any]) -> list[str]:
    if "broken" in row:
        brings = f"BROKEN: {row['broken']}"
    else:
        parts = [f"{kind} {', '.join(row[f'{kind}s'])}" for kind in ("store", "transport", "codec") if row[f"{kind}s"]]
        for engine in row["engines"]:
            here = f"installed {engine['installed']}" if engine["installed"] else "not installed"
            outside = ", outside of that" if engine["in_range"] is False else ""
            parts.append(f"engine {engine['name']} (tested {engine['tested']}, {here}{outside})")
        if row["import_seconds"] > SLOW_IMPORT:
            parts.append(f"SLOW: its import takes {row['import_seconds']:.1f} s of every start")
        brings = "; ".join(parts) or "hooks only"
    return [row["name"], f"{row['distribution']} {row['version']}", brings]
