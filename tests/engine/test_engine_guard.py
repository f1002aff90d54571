"""The engine contract itself: how many laws, what each protects, and that none can be dropped in silence."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

from kvhub.testing import EngineContract
from kvhub.testing.guard import laws_of, problems

ENTRIES = (
    "A01 A02 A03 A05 A06 A08 A09 A10 A12 A13 A15 A16 A17 A24 A29 B01 B03 B04 B05 B06 B08 B12 B13 B14 B16 B24 D13 E18 "
    "F01 F11"
)
"""Field reports that have a law here."""


def test_there_are_as_many_laws_as_promised() -> None:
    assert len(laws_of(EngineContract)) >= 45


def test_every_field_report_has_its_law() -> None:
    names = {word for law in laws_of(EngineContract) for word in law.split("_")}
    assert set(ENTRIES.split()) - names == set()


def test_every_law_says_what_it_protects() -> None:
    for name, law in laws_of(EngineContract).items():
        text = inspect.getdoc(law) or ""
        assert text.endswith(".") and len(text) > 20 and "\n" not in text, f"{name}: {text!r}"


def test_an_overridden_law_stops_the_class() -> None:
    with pytest.raises(TypeError, match="test_wrong_kv_gives_wrong_tokens: this law was overridden"):

        class TestHollow(EngineContract):
            def test_wrong_kv_gives_wrong_tokens(self) -> None:
                pass


def test_an_honest_class_may_set_its_sizes() -> None:
    class TestHonest(EngineContract):
        block, chunk, vocabulary, patience = 16, 64, 512, 60.0

    assert problems(TestHonest) == []


def test_the_fake_engine_runs_without_torch_and_numpy() -> None:
    script = (
        "import sys\nfrom kvhub.testing.fake_engine import FakeEngine\n"
        "engine = FakeEngine(None)\nname = engine.submit([1, 2, 3], 4)\n"
        "while engine.step(): pass\nprint(len(engine.result(name).tokens), {'torch', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["4", "set()"]
