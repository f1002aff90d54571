"""pytest with one of the `--kvhub-` options: which laws run, and what is said of them then."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest

from kvhub.errors import KvhubError
from kvhub.testing.guard import LEVELS, Guarded, laws_of, level_of
from kvhub.testing.installed import Run, choose
from kvhub.testing.under import FAULTS, NO_MEANING

COLLECTED = Path(__file__).with_name("collected.py")
"""The file that pytest is told to collect; it takes its classes from `current`."""
_ORDER = ("left out", "passed", "failed")
current: dict[str, type] = {}


def begin(config: pytest.Config) -> None:
    """Called when one of the options was given.  Raises pytest.UsageError."""
    use, file = config.getoption("kvhub_use"), config.getoption("kvhub_options")
    if file and not use:
        raise pytest.UsageError("--kvhub-options needs --kvhub-use: whose options are they?")
    run = Run()
    if use:
        try:
            for chosen in choose(use, file, config.getoption("kvhub_kind")):
                run.add(chosen)
        except KvhubError as error:
            raise pytest.UsageError(str(error)) from error
        named = config.args_source is pytest.Config.ArgsSource.ARGS
        config.args = [*(config.args if named else ()), str(COLLECTED)]
    config.pluginmanager.register(Laws(run, config.getoption("kvhub_level") or LEVELS[-1]), "kvhub-laws")


@attrs.define
class Verdict:
    """How one law ended: the worst of its cases."""

    contract: str
    law: str
    level: str
    protects: str
    outcome: str = "left out"
    said: str = ""
    """Of a failure, its last line; of what was left out, why."""

    def add(self, outcome: str, said: str) -> None:
        if not self.said or _ORDER.index(outcome) > _ORDER.index(self.outcome):
            self.said = said
        if _ORDER.index(outcome) > _ORDER.index(self.outcome):
            self.outcome = outcome


class Laws:
    """Collects the classes of a run, leaves out what is above the level, and sums up."""

    def __init__(self, run: Run, level: str) -> None:
        self.run, self.level = run, level
        self.verdicts: dict[tuple[str, str], Verdict] = {}
        self.faults: dict[str, Counter[str]] = {}
        """Fault -> how many cases ended how under it."""
        self.meaningless: dict[str, set[str]] = {}
        """Fault and reason -> laws that have no meaning under it."""
        self._items: dict[str, tuple[Verdict, str]] = {}
        current.clear()
        current.update(run.classes)

    def pytest_pycollect_makeitem(self, collector: Any, name: str, obj: object) -> Any:
        """Ours are collected whatever a project's `python_classes` says."""
        if current.get(name) is obj and collector.path == COLLECTED:
            return pytest.Class.from_parent(collector, name=name)
        return None

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        kept, above = [], []
        for item in items:
            verdict = self._verdict(item)
            if verdict is None:
                kept.append(item)
            elif LEVELS.index(verdict.level) <= LEVELS.index(self.level):
                call = getattr(item, "callspec", None)
                self._items[item.nodeid] = verdict, call.params.get("kvhub_fault", "") if call is not None else ""
                kept.append(item)
            else:
                above.append(item)
        if above:
            config.hook.pytest_deselected(items=above)
            items[:] = kept

    def _verdict(self, item: pytest.Item) -> Verdict | None:
        cls = getattr(item, "cls", None)
        if not isinstance(cls, type) or not issubclass(cls, Guarded):
            return None
        name = getattr(item, "originalname", item.name)
        law = laws_of(cls).get(name)
        if law is None:
            return None
        title = cls.__doc__ if cls.__module__ == "kvhub_installed" else cls.__name__
        return Verdict(title or "", name, level_of(law), (inspect.getdoc(law) or "").partition("\n")[0])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        found = self._items.get(report.nodeid)
        if found is None:
            return
        told, fault = found
        verdict = self.verdicts.setdefault((told.contract, told.law), told)
        outcome, said = "", ""
        if report.failed:
            outcome, said = "failed", f"under '{fault}': " * bool(fault) + _last_line(report)
        elif report.skipped:
            outcome, said = "left out", str(report.longrepr[2] if isinstance(report.longrepr, tuple) else "")
        elif report.when == "call":
            outcome = "passed"
        if outcome:
            verdict.add(outcome, said)
        if outcome and fault:
            self.faults.setdefault(fault, Counter())[outcome] += 1
            if NO_MEANING in said:
                self.meaningless.setdefault(said.removeprefix("Skipped: "), set()).add(told.law.removeprefix("test_"))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for line in summary(list(self.verdicts.values()), self.level):
            terminalreporter.write_line(line)
        for line in under_faults(self.faults, self.meaningless):
            terminalreporter.write_line(line)
        for line in self.run.left:
            terminalreporter.write_line(f"left behind: {line}")


def _last_line(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash is not None else report.longrepr).partition("\n")[0]


def summary(verdicts: list[Verdict], level: str) -> list[str]:
    """A table of laws by level for each contract, then what was left out and why."""
    lines: list[str] = []
    for contract in dict.fromkeys(verdict.contract for verdict in verdicts):
        mine = [verdict for verdict in verdicts if verdict.contract == contract]
        lines += [
            "",
            f"{contract}: {len(mine)} laws, level {level}",
            f"{'level':6} {'passed':>8} {'failed':>8} {'left out':>9}",
        ]
        for name in LEVELS[: LEVELS.index(level) + 1]:
            counts = {each: sum(v.outcome == each for v in mine if v.level == name) for each in _ORDER}
            lines.append(f"{name:6} {counts['passed']:8} {counts['failed']:8} {counts['left out']:9}")
        for verdict in mine:
            if verdict.outcome != "passed":
                lines.append(
                    f"{verdict.outcome}: {verdict.law.removeprefix('test_')}: {verdict.said.removeprefix('Skipped: ')}"
                )
    return lines


def under_faults(faults: Mapping[str, Mapping[str, int]], meaningless: Mapping[str, Collection[str]]) -> list[str]:
    """A table of cases by fault, then what has no meaning under one and why; empty where no law ran under any."""
    if not faults:
        return []
    lines = ["", f"{'under fault':12} {'passed':>8} {'failed':>8} {'left out':>9}"]
    for name in (name for name in FAULTS if name in faults):
        counts = faults[name]
        lines.append(f"{name:12} {counts.get('passed', 0):8} {counts.get('failed', 0):8} {counts.get('left out', 0):9}")
    return lines + [f"{why}: {', '.join(sorted(names))}" for why, names in sorted(meaningless.items())]
