"""pytest's side of `kvhub.testing`: options, and nothing else until one of them is used.

pytest imports this in every run where kvhub is installed, most of which have nothing to do with kvhub.  It therefore
stands outside of the package: importing `kvhub.testing` takes 30 ms, importing this takes none.
"""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("kvhub", "contracts of kvhub plugins")
    group.addoption("--kvhub-use", metavar="NAME", help="run the contract of an installed member: what 'use:' says")
    group.addoption("--kvhub-options", metavar="FILE", help="YAML with the member's options, without 'use:'")
    group.addoption(
        "--kvhub-kind", choices=("store", "transport", "codec"), help="for plugins that bring several kinds of members"
    )
    group.addoption(
        "--kvhub-level",
        choices=("works", "safe", "fast"),
        help="run laws of contracts up to this level only, and sum up by level (default: all laws)",
    )
    group.addoption(
        "--kvhub-faults",
        choices=("none", "one", "all"),
        help="run each law under so many fault wrappers, too (default: one with --kvhub-use, else what the class says)",
    )


def pytest_configure(config: pytest.Config) -> None:
    if any(config.getoption(f"kvhub_{name}") for name in ("use", "options", "level", "faults")):
        from kvhub.testing.pytest_plugin import begin

        begin(config)
