"""Breaks the reference store and transport in many ways and proves that the contracts catch each.

    python tests/contracts/mutants.py            every fault against the whole contract, a process each (minutes)
    python tests/contracts/mutants.py --short    every fault against the one law that is meant for it (seconds)

A contract that passes a broken member is worth nothing, so a fault that survives is an error here, and so is a
correct member that fails.  Prints one line for each fault with the laws that caught it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import attrs
from store_mutants import STORE_FAULTS
from transport_mutants import TRANSPORT_FAULTS

HERE = Path(__file__).parent
HEAD = """
import sys
sys.path.insert(0, {here!r})
import pytest
from kvhub.testing import StoreContract, TransportContract
from test_reference_store import DictMedium
"""
STORE_CLASS = """
import {module}
class Test_{module}(StoreContract):
    patience = {patience}
    @pytest.fixture
    def medium(self):
        return DictMedium()
    @pytest.fixture
    def member_factory(self, medium):
        return lambda context: {module}.ReferenceStore({module}.ReferenceConfig(medium.objects), context)
"""
TRANSPORT_CLASS = """
import {module}
class Test_{module}(TransportContract):
    patience = {patience}
    @pytest.fixture
    def member_factory(self):
        return lambda context: {module}.ReferenceTransport({module}.ReferenceConfig(), context)
"""


@attrs.frozen
class Mutant:
    """A reference with one fault in it, as a module."""

    module: str
    what: str
    law: str
    """The law that is meant to catch it; empty for the correct one."""
    source: str
    test: str


def mutants() -> list[Mutant]:
    """The correct store and transport first, then every fault."""
    found = []
    kinds = (("store", STORE_CLASS, STORE_FAULTS), ("transport", TRANSPORT_CLASS, TRANSPORT_FAULTS))
    for kind, test, faults in kinds:
        source = (HERE / f"reference_{kind}.py").read_text()
        found.append(Mutant(f"right_{kind}", f"a correct {kind}", "", source, test))
        for number, (what, law, changes) in enumerate(faults):
            broken = source
            for old, new in changes:
                if old not in broken:
                    raise SystemExit(f"{what}: the reference no longer contains {old!r}; mend the fault's recipe")
                broken = broken.replace(old, new)
            compile(broken, what, "exec")
            found.append(Mutant(f"{kind}_{number:02}", what, law, broken, test))
    return found


def run(folder: Path, chosen: list[Mutant], *, select: bool, stop: bool) -> dict[str, list[str]]:
    """Run the contract on mutants in one process: module → names of the laws that failed."""
    test = folder / "test_them.py"
    text = HEAD.format(here=str(HERE))
    for mutant in chosen:
        (folder / f"{mutant.module}.py").write_text(mutant.source)
        text += mutant.test.format(module=mutant.module, patience=0.5 if mutant.law and select else 5.0)
    test.write_text(text)
    report = folder / "report.xml"
    names = [str(test)]
    if select:
        laws = {mutant.law for mutant in chosen if mutant.law}
        names = [f"{test}::Test_{m.module}::{law}" for m in chosen for law in ([m.law] if m.law else sorted(laws))]
        names = [name for name in names if _exists(name)]
    options = ["-q", "-p", "no:cacheprovider", "--tb=no", f"--junitxml={report}", f"--rootdir={folder}"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *(["-x"] if stop else []), *names],
        cwd=folder, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    if not report.exists():
        raise SystemExit(f"pytest made no report:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    failed: dict[str, list[str]] = {mutant.module: [] for mutant in chosen}
    for case in ElementTree.parse(report).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            module = case.get("classname", "").rpartition("Test_")[2]
            if module not in failed:
                raise SystemExit(f"pytest could not collect the mutants:\n{done.stdout[-3000:]}")
            law = case.get("name", "").partition("[")[0]
            if law not in failed[module]:
                failed[module].append(law)
    report.unlink()
    return failed


def _exists(name: str) -> bool:
    """Whether the correct store or transport has this law: the two contracts have different ones."""
    from kvhub.testing import StoreContract, TransportContract

    _, cls, law = name.split("::")
    return hasattr(TransportContract if "transport" in cls else StoreContract, law)


def survivors(*, short: bool) -> list[str]:
    """Run all; the faults that no law caught, and the laws that failed a correct member."""
    chosen = mutants()
    if short:
        # One process for each contract: most of the time goes in waiting for what a broken member never does.
        groups = [[m for m in chosen if m.test is test] for test in (STORE_CLASS, TRANSPORT_CLASS)]
    else:
        groups = [[mutant] for mutant in chosen]
    with ThreadPoolExecutor(2) as pool:
        return [problem for problems in pool.map(lambda group: _judge(group, short), groups) for problem in problems]


RACES = 4
"""How often a fault that was not caught is tried again in the short form."""


def _judge(group: list[Mutant], short: bool) -> list[str]:
    problems = []
    with tempfile.TemporaryDirectory() as folder:
        failed = run(Path(folder), group, select=short, stop=not short and bool(group[0].law))
    for mutant in group:
        laws = failed[mutant.module]
        if mutant.law:
            for _ in range(RACES if short and not laws else 0):
                # A law about a race meets it most of the time, not always.
                with tempfile.TemporaryDirectory() as folder:
                    laws = laws or run(Path(folder), [mutant], select=True, stop=False)[mutant.module]
            right, verdict = bool(laws), "caught" if laws else "SURVIVES"
        else:
            right, verdict = not laws, "FAILS" if laws else "passes"
        print(f"{verdict:8} {mutant.what:58} {', '.join(laws)}", flush=True)
        if not right:
            problems.append(f"{mutant.what}: {', '.join(laws) or 'no law failed'}")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--short", action="store_true", help="only the law that is meant for each fault")
    problems = survivors(short=parser.parse_args().short)
    count = len(STORE_FAULTS) + len(TRANSPORT_FAULTS)
    print(f"{count} faults ({len(STORE_FAULTS)} store, {len(TRANSPORT_FAULTS)} transport), {len(problems)} problems")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
