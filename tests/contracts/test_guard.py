"""A contract cannot be hollowed out, and says what it leaves out."""

import inspect
import subprocess
import sys
import textwrap

import pytest

from kvhub.testing import StoreContract, TransportContract
from kvhub.testing.guard import laws_of, problems

CONTRACTS = [StoreContract, TransportContract]


def test_there_are_as_many_laws_as_promised():
    assert len(laws_of(StoreContract)) >= 60 and len(laws_of(TransportContract)) >= 30


@pytest.mark.parametrize("contract", CONTRACTS)
def test_every_law_says_what_it_protects(contract):
    for name, law in laws_of(contract).items():
        text = inspect.getdoc(law) or ""
        assert text.endswith(".") and len(text) > 20 and "\n" not in text, f"{name}: {text!r}"


@pytest.mark.parametrize("contract", CONTRACTS)
def test_an_honest_class_has_no_problems(contract):
    class TestHonest(contract):
        patience = 20.0
        excuses = {"test_close_without_attach": "the SDK below needs a session to close"}  # noqa: RUF012

        def test_of_its_own(self):
            pass

    assert problems(TestHonest) == []


def test_an_overridden_law_stops_the_class():
    with pytest.raises(
        TypeError, match=r"test_round_trip: this law was overridden; remove that, or say why in excuses"
    ):

        class TestHollow(StoreContract):
            def test_round_trip(self):
                pass


def test_a_law_set_to_none_or_hidden_behind_a_mixin_stops_the_class():
    class Soft:
        def test_find_is_true(self):
            pass

    with pytest.raises(TypeError, match="test_find_is_true: this law was overridden"):

        class TestSoft(Soft, StoreContract):
            pass

    with pytest.raises(TypeError, match="test_find_is_true: this law was overridden"):

        class TestNone(StoreContract):
            test_find_is_true = None


def test_an_overridden_fixture_stops_the_class():
    with pytest.raises(TypeError, match="open_member: this part of the contract was overridden"):

        class TestOwnOpener(StoreContract):
            @pytest.fixture
            def open_member(self):
                return None


def test_a_law_changed_afterwards_is_seen_by_the_guard():
    class TestChanged(StoreContract):
        pass

    TestChanged.test_round_trip = lambda self: None
    assert len(problems(TestChanged)) == 1
    with pytest.raises(AssertionError):
        TestChanged().test_no_law_is_overridden_without_a_reason()


@pytest.mark.parametrize(
    ("excuses", "message"),
    [
        ({"test_round_tripp": "there is no such law at all"}, r"excuses\['test_round_tripp'\]: there is no such law"),
        ({"test_round_trip": "flaky"}, "'flaky' is no reason"),
    ],
)
def test_an_excuse_needs_a_law_and_a_reason(excuses, message):
    with pytest.raises(TypeError, match=message):
        type("TestExcused", (StoreContract,), {"excuses": excuses, "__module__": __name__})


def test_what_is_left_out_is_printed(tmp_path):
    """Without `-rs` too: a skip that nobody sees looks like a pass."""
    test = tmp_path / "test_excused.py"
    test.write_text(
        textwrap.dedent(
            f"""
            import sys
            sys.path.insert(0, {str(__file__).rsplit("/", 1)[0]!r})
            import pytest
            from reference_store import ReferenceConfig, ReferenceStore
            from kvhub.testing import StoreContract

            class TestExcused(StoreContract):
                excuses = {{"test_round_trip": "this store keeps nothing on Sundays"}}

                @pytest.fixture
                def member_factory(self):
                    objects = {{}}
                    return lambda context: ReferenceStore(ReferenceConfig(objects), context)
            """
        )
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "round_trip or swapped", str(test)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert done.returncode == 0, done.stdout
    line = next(line for line in done.stdout.splitlines() if line.startswith("TestExcused leaves out"))
    assert "test_round_trip: this store keeps nothing on Sundays" in line
    assert "laws of damage: the test class offers no medium" in line


def test_a_class_without_a_factory_says_what_to_define(tmp_path):
    test = tmp_path / "test_empty.py"
    test.write_text("from kvhub.testing import StoreContract\nclass TestEmpty(StoreContract):\n    pass\n")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-k", "round_trip", str(test)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert done.returncode == 1
    assert "TestEmpty: define the fixture member_factory, a callable (context) -> new member" in done.stdout


def test_without_pytest_the_contract_names_what_to_install():
    code = (
        "import sys; sys.modules['pytest'] = None\n"
        "import kvhub.testing as t\n"
        "t.Slow, t.make_region\n"
        "try:\n    t.StoreContract\nexcept ImportError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "kvhub.testing.StoreContract needs pytest: pip install 'kvhub[testing]'"
