"""Laws under faults: the fault is met, the law is still a law, and what has no meaning says why."""

from __future__ import annotations

from pathlib import Path

import pytest
from installed_members import STORE, install, run
from reference_store import ReferenceConfig, ReferenceStore

from kvhub.store import Store
from kvhub.testing import Driver, guard, laws, make_context, make_key, make_payload, under
from kvhub.testing.faults import Dropping, Raising
from kvhub.types import Op

PYTEST = ("pytest", "-q", "-p", "kvhub_pytest", "-p", "no:cacheprovider")
KINDS = ("store", "transport", "engine")


@pytest.mark.parametrize("name", under.FAULTS)
def test_a_batch_meets_the_fault_and_ends_as_if_there_were_none(name: str) -> None:
    store = ReferenceStore(ReferenceConfig({}), make_context("inner"))
    fault = under.FAULTS[name].wrap(store)
    member = under.Retried(fault)
    assert isinstance(member, Store)
    driver = Driver(member, patience=5.0)
    driver.attach()
    kept = {make_key(n): make_payload(n) for n in range(3)}
    try:
        driver.keep(kept)
        assert driver.read([*kept]) == [*kept.values()]
        assert driver.find([make_key("absent")]) == driver.find([make_key("absent too")])
    finally:
        driver.close()
    assert {batch.op for batch in fault.batches} == {Op.SAVE, Op.LOAD, Op.FIND}
    assert not isinstance(fault, Raising) or fault.raised >= 3
    assert not isinstance(fault, Dropping) or not fault.dropped


@pytest.mark.parametrize("kind", KINDS)
def test_most_laws_have_a_meaning_under_each_fault_and_the_others_say_why(kind: str) -> None:
    found = laws.laws(kind)
    for name in under.FAULTS:
        without = [law for law in found.values() if name in under.reasons(law)]
        assert len(without) < len(found) / 5, f"{name}: {len(without)} of {len(found)}"
    said = {reason for law in found.values() for reason in under.reasons(law).values()}
    assert all(len(reason) >= guard.REASON_MIN for reason in said)
    assert all(under.chosen(law, "one") for law in found.values()), "a law without meaning under any fault"


def test_one_fault_for_each_law_reaches_all_faults_and_none_without_meaning() -> None:
    every = [law for kind in KINDS for law in laws.laws(kind).values()]
    chosen = [under.chosen(law, "one")[0] for law in every]
    assert set(chosen) == set(under.FAULTS)
    assert not [name for law, name in zip(every, chosen, strict=True) if name in under.reasons(law)]
    assert under.chosen(every[0], "none") == [] and under.chosen(every[0], "all") == [*under.FAULTS]


def test_a_fault_that_is_not_known_cannot_be_excused() -> None:
    with pytest.raises(AssertionError, match=r"no such fault: \['sloow'\]"):
        under.without_meaning(sloow="it is misspelt")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    install(tmp_path, "tree", STORE)
    (tmp_path / "tree.yaml").write_text(f"root: {tmp_path}/chunks\n")
    return tmp_path


def test_the_summary_counts_by_fault_and_says_what_has_no_meaning(folder: Path) -> None:
    options = ("--kvhub-use", "tree", "--kvhub-options", "tree.yaml", "--kvhub-faults", "all")
    done = run(*PYTEST, *options, "-k", "test_round_trip or moved_counts", folder=folder)
    assert done.returncode == 0, done.stdout
    rows = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines() if line.split()[:1]}
    assert rows["slow"] == ["2", "0", "0"] and rows["dropping"] == ["1", "0", "1"]
    assert f"no meaning under 'dropping': {under.KEPT_TWICE}: moved_counts_bytes" in done.stdout


def test_a_store_that_is_wrong_only_at_a_second_try_is_caught(folder: Path) -> None:
    once = STORE.replace(
        "        data = (self.folder / name).read_bytes()",
        "        data = (self.folder / name).read_bytes()\n"
        "            (self.folder / name).write_bytes(data[:-1] + b'!')",
    )
    install(folder, "once", once)
    options = ("--kvhub-use", "once", "--kvhub-options", "tree.yaml", "-k", "test_round_trip")
    assert run(*PYTEST, *options, "--kvhub-faults", "none", folder=folder).returncode == 0
    done = run(*PYTEST, *options, "--kvhub-faults", "all", folder=folder)
    assert done.returncode == 1 and "failed: round_trip: under '" in done.stdout
