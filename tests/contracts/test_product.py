"""`pytest --kvhub-use`: the contract of what is installed, with no test file; and no trace where it is not used."""

from __future__ import annotations

import textwrap
import zlib
from pathlib import Path

import pytest
from installed_members import STORE, install, run

from kvhub.testing import StoreContract, guard, laws, region

PAGE = Path(__file__).parents[2] / "docs" / "contracts.md"
PYTEST = ("pytest", "-q", "-p", "kvhub_pytest", "-p", "no:cacheprovider")
FLIPS = STORE.replace("payload[: len(body)] = body", "payload[: len(body)] = body[:0:-1] + body[:1]")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    install(tmp_path, "tree", STORE)
    (tmp_path / "tree.yaml").write_text(f"root: {tmp_path}/chunks\n")
    return tmp_path


def test_a_run_of_others_neither_imports_kvhub_nor_changes(tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text(
        "import sys\ndef test_other():\n    assert not {'kvhub', 'kvhub.testing'} & set(sys.modules)\n"
    )
    done = run(*PYTEST, "-W", "error", folder=tmp_path)
    assert done.returncode == 0 and "1 passed" in done.stdout and "kvhub" not in done.stdout, done.stdout


def test_the_contract_of_an_installed_store(folder: Path) -> None:
    done = run(*PYTEST, "--kvhub-use", "tree", "--kvhub-options", "tree.yaml", "--kvhub-level", "works", folder=folder)
    assert done.returncode == 0, done.stdout
    lines = done.stdout.splitlines()
    at = next(at for at, line in enumerate(lines) if line.startswith("store tree: "))
    count = sum(guard.level_of(law) == "works" for law in laws.laws("store").values())
    assert lines[at] == f"store tree: {count} laws, level works"
    assert lines[at + 2].split() == ["works", str(count), "0", "0"]
    assert [path for path in (folder / "chunks").rglob("*") if path.is_file()] == [], "chunks of laws stay"


def test_a_wrong_store_fails_and_the_law_is_named(folder: Path) -> None:
    install(folder, "flips", FLIPS)
    options = ("--kvhub-use", "flips", "--kvhub-options", "tree.yaml", "--kvhub-level", "works")
    done = run(*PYTEST, *options, "-k", "round_trip or find_is_true", folder=folder)
    assert done.returncode == 1
    assert "failed: round_trip: " in done.stdout and "failed: find_is_true" not in done.stdout


def test_a_projects_settings_do_not_hide_the_laws(folder: Path) -> None:
    (folder / "pytest.ini").write_text("[pytest]\npython_classes = Case\ntestpaths = nowhere\n")
    done = run(*PYTEST, "--kvhub-use", "tree", "--kvhub-options", "tree.yaml", "-k", "round_trip", folder=folder)
    assert done.returncode == 0 and "2 passed" in done.stdout, done.stdout


def test_levels_sort_the_laws_of_test_files_too(folder: Path) -> None:
    (folder / "test_own.py").write_text(
        textwrap.dedent("""
        import pytest
        from kvhub.testing import MemoryConfig, MemoryStore, StoreContract

        class TestOwn(StoreContract):
            @pytest.fixture
            def member_factory(self):
                return lambda context: MemoryStore(MemoryConfig("own"), context)

        def test_beside():
            pass
        """)
    )
    chosen = "beside or round_trip or namespace_never_hits or poll_never"
    done = run(*PYTEST, "--kvhub-level", "safe", "-k", chosen, folder=folder)
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout and "TestOwn: 2 laws, level safe" in done.stdout


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--kvhub-options", "tree.yaml"], "--kvhub-options needs --kvhub-use: whose options are they?"),
        (["--kvhub-use", "treee"], "unknown plugin 'treee'; did you mean 'tree'?"),
        (["--kvhub-use", "tree"], "root: required; say --kvhub-options FILE"),
        (["--kvhub-use", "tree", "--kvhub-options", "no.yaml"], "no.yaml: 1 problem"),
        (["--kvhub-use", "tree", "--kvhub-options", "bad.yaml"], "rooot: unknown option; did you mean 'root'?"),
        (["--kvhub-use", "tree", "--kvhub-options", "use.yaml"], "use: leave it out here; --kvhub-use says it"),
        (["--kvhub-use", "tree", "--kvhub-options", "list.yaml"], "expected a mapping of options, found a list"),
        (["--kvhub-use", "tree", "--kvhub-kind", "codec"], "plugin 'tree' has no codec 'tree'; it has store tree"),
    ],
)
def test_what_cannot_be_run_is_a_wrong_command_line(options: list[str], said: str, folder: Path) -> None:
    (folder / "bad.yaml").write_text("rooot: /tmp\n")
    (folder / "use.yaml").write_text("use: tree\n")
    (folder / "list.yaml").write_text("- root\n")
    done = run(*PYTEST, *options, folder=folder)
    assert done.returncode == 4 and said in done.stderr, done.stdout + done.stderr


def test_payloads_like_floats_get_smaller_and_noise_does_not() -> None:
    noise = region.make_payload("a")
    with region.like_floats():
        floats = region.make_payload("a")
        assert floats == region.make_payload("a") != region.make_payload("b")
    assert region.make_payload("a") == noise
    assert len(zlib.compress(noise)) >= len(noise) > len(zlib.compress(floats, 1)) * 1.2


def test_the_page_is_the_code() -> None:
    assert PAGE.read_text() == laws.page(), "python -m kvhub.testing.laws > docs/contracts.md"


@pytest.mark.parametrize(("kind", "least"), [("store", 60), ("transport", 30), ("engine", 40)])
def test_there_are_as_many_laws_as_promised(kind: str, least: int) -> None:
    found = laws.laws(kind)
    assert len(found) >= least
    assert {guard.level_of(law) for law in found.values()} == set(guard.LEVELS)
    assert all(laws.sentence(law).endswith(".") for law in found.values())


def test_marks_survive_decorators() -> None:
    assert guard.level_of(StoreContract.test_wake_is_called) == "fast"
    assert guard.level_of(StoreContract.test_round_trip) == "works"
    assert guard.level_of(StoreContract.test_late_is_not_lost) == "safe"
