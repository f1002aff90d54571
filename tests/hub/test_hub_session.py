"""A session over a hub whose pool fails: what the engine is told, block by block."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hub.rig import BLOCK, CHUNK, Rig, chain_of, flushed, forget_all, prompt, store, wait
from kvhub.hub import Hub
from kvhub.keys import Context
from kvhub.plan import Load, Report
from kvhub.session import INLINE_TOKENS, Session
from kvhub.testing.faults import Dropping
from kvhub.types import Op

PROMPT = [*prompt(4), 1]
BLOCKS = list(range(10, 10 + 17))
"""Sixteen blocks of full chunks, and one for the last token, which every engine computes itself."""


def stocked(rig: Rig) -> Hub:
    hub = rig.open()
    store(hub, chain_of(PROMPT))
    flushed(hub)
    forget_all(hub)
    return hub


def begin(session: Session, *requests: str) -> None:
    """Look up and allocate; all of the requests count on four chunks."""
    for name in requests:
        session.begin(name, PROMPT, Context())
    for name in requests:
        assert wait(lambda name=name: session.lookup(name, 0), "lookup") == 4 * CHUNK
    for name in requests:  # after all lookups: what one load finds out is known to the next lookup
        session.allocated(name, BLOCKS, 4 * CHUNK)


def loads(session: Session, count: int) -> dict[str, Load]:
    found: dict[str, Load] = {}

    def step() -> bool:
        found.update({load.copy.request: load for load in session.plan().loads})
        return len(found) == count

    wait(step, "loads")
    return found


def end(session: Session, found: dict[str, Load]) -> None:
    session.done(Report(done=tuple(load.copy.id for load in found.values())))
    for name in found:
        session.finish(name, 0, [], aborted=True)


def damage(rig: Rig, key: bytes) -> None:
    path: Path = next((rig.root / "pool").rglob(f"{key.hex()}.kv"))
    data = bytearray(path.read_bytes())
    data[5000 % len(data)] ^= 1
    path.write_bytes(data)


def test_A31_A13_exactly_the_blocks_that_failed_are_named_to_everyone_who_shares_them(rig: Rig) -> None:
    """Chunk 2 is damaged: chunk 3 came, but behind a gap it is of no use, and its blocks are named too."""
    hub = stocked(rig)
    session = Session(hub)
    damage(rig, chain_of(PROMPT).keys[2])
    begin(session, "a", "b")
    found = loads(session, 2)
    for load in found.values():
        assert load.failed == tuple(BLOCKS[8:16])
        assert load.copy.blocks == (tuple(BLOCKS[0:4]), tuple(BLOCKS[4:8]))
        assert (load.copy.first, load.copy.last) == ((0, 0), (CHUNK, CHUNK))
    end(session, found)
    assert not any(session.counts().values())


@pytest.mark.parametrize("local", [BLOCK, CHUNK + BLOCK])
def test_A31_blocks_that_the_engine_had_are_never_named(rig: Rig, local: int) -> None:
    hub = stocked(rig)
    session = Session(hub)
    damage(rig, chain_of(PROMPT).keys[local // CHUNK])
    session.begin("a", PROMPT, Context())
    extra = wait(lambda: session.lookup("a", local))
    assert extra == 4 * CHUNK - local
    session.allocated("a", BLOCKS, extra)
    found = loads(session, 1)
    assert found["a"].failed == tuple(BLOCKS[local // BLOCK : 16])
    assert found["a"].copy.slots == ()
    end(session, found)


def test_A31_a_load_that_never_ends_names_all_of_it_after_its_deadline(rig: Rig) -> None:
    rig.checks_baseline = False
    rig.wraps["pool"] = lambda inner: Dropping(inner, ops=(Op.LOAD,))
    roles = {"both": {"store": ["host", "pool"], "retrieve": ["host", {"from": "pool", "deadline": "50ms"}]}}
    hub = rig.open(roles)
    store(hub, chain_of(PROMPT))
    flushed(hub)
    forget_all(hub)
    session = Session(hub)
    begin(session, "a")
    found = loads(session, 1)
    assert found["a"].failed == tuple(BLOCKS[:16])
    end(session, found)
    assert not any(session.counts().values())


def test_D01_a_long_prompt_that_is_asked_for_anew_is_keyed_once(rig: Rig) -> None:
    """The engine loses its blocks while the pump is busy: the prompt's keys are those of its tokens, once."""
    hub = rig.open()
    session = Session(hub)
    tokens: Any = list(range(INLINE_TOKENS + 100))
    with hub.lock:
        session.begin("a", tokens, Context())
        assert session.lookup("a", 64) is None
        assert session.lookup("a", 0) is None
        assert session.lookup("a", 0) is None
    wait(lambda: session.lookup("a", 0) is not None)
    chain = session._requests["a"].chain
    assert chain.tokens == len(tokens)
    assert chain.keys == chain_of(tokens).keys
    session.finish("a", 0, [], aborted=True)
