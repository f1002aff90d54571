"""`kvhub doctor FILE`: what is right, what is doubtful and what is wrong on this machine, before an engine starts.

Exit status: 0 when everything passes, 1 when the worst is a warning, 2 when something fails.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from typing import Any

from kvhub.cli.output import quiet
from kvhub.config import find
from kvhub.doctor import examine, status
from kvhub.engine import ROLES
from kvhub.findings import Finding, Grade
from kvhub.plugins import Registry


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "doctor",
        help="examine this machine, the plugins and every member of a configuration",
        description="Exit status: 0 all passes, 1 the worst is a warning, 2 something fails.",
    )
    parser.add_argument("file", nargs="?", help="the YAML file; without it, the one that KVHUB_CONFIG names")
    parser.add_argument("--role", choices=ROLES, help="this machine's role: only its members are looked at")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_run)


def _run(chosen: argparse.Namespace) -> int:
    findings: list[Finding] = []
    with quiet():
        for finding in examine(chosen.file or find(), Registry(), role=chosen.role):
            findings.append(finding)
    found = status(findings)
    if chosen.json:
        told = [
            {
                "grade": each.grade.value,
                "where": each.where,
                "what": each.what,
                "found": each.found,
                "next": each.step,
            }
            for each in findings
        ]
        print(json.dumps({"status": found, "findings": told}, indent=1))
        return found
    for line in lines(findings):
        print(line)
    return found


def lines(findings: list[Finding]) -> list[str]:
    """What a terminal is shown: by place, the next step below what is no pass."""
    told: list[str] = []
    where = None
    for each in findings:
        if each.where != where:
            where = each.where
            told.append(f"{where}:")
        told.append(f"  {each.grade.value:4}  {each.what}: {each.found}")
        if each.step:
            told.append(f"        -> {each.step}")
    count = Counter(each.grade for each in findings)
    told.append("")
    told.append(", ".join(f"{count[grade]} {grade.value}" for grade in Grade))
    return told
