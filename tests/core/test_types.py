"""The plain data: frozen, cheap to send between processes, conservative where nothing is said."""

from __future__ import annotations

import attrs
import pytest

from kvhub import types
from kvhub.types import Batch, Capabilities, Completion, Found, Held, Op, Outcome, Peer, Region

PLAIN = [
    Peer("h:1", "i"), Batch(1, Op.FIND, (b"k" * 32,)), Completion(1, (Outcome.DONE,)), Capabilities(),
    Held(1, 2), Found(0, 0),
]  # fmt: skip


@pytest.mark.parametrize("thing", PLAIN, ids=lambda thing: type(thing).__name__)
def test_nothing_that_crosses_can_be_changed(thing: object) -> None:
    field = attrs.fields(type(thing))[0].name
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        setattr(thing, field, None)
    assert attrs.evolve(thing) == thing  # type: ignore[type-var]
    assert hash(thing) == hash(attrs.evolve(thing))  # type: ignore[type-var]


def test_a_capability_that_is_not_claimed_is_not_there() -> None:
    claims = attrs.asdict(Capabilities())
    assert claims.pop("max_chunk_bytes") is None
    assert set(claims.values()) == {False}


def test_good_outcomes_are_those_after_which_the_chunk_is_there() -> None:
    assert [outcome for outcome in Outcome if outcome.good] == [Outcome.DONE, Outcome.KEPT]


def test_numbers_of_operations_and_outcomes_are_frozen() -> None:
    """They go through pipes and into native code: a new one is added at the end."""
    assert {op.name: int(op) for op in Op} == {"FIND": 1, "LOAD": 2, "SAVE": 3, "REMOVE": 4}
    names = ["DONE", "KEPT", "MISS", "CORRUPT", "FAILED", "LATE", "FULL"]
    assert {outcome.name: int(outcome) for outcome in Outcome} == {name: at for at, name in enumerate(names)}


def test_a_slot_is_a_view_and_never_a_copy() -> None:
    memory = bytearray(64)
    region = Region(memoryview(memory), 0, 16, 4)
    region.slot(1, 3)[:] = b"abc"
    assert memory[16:19] == b"abc"
    assert region.slot(3).nbytes == 16


def test_every_plain_type_says_what_its_fields_mean() -> None:
    undocumented = [name for name, thing in vars(types).items() if attrs.has(thing) and not thing.__doc__]
    assert undocumented == []
