"""The fake engine by itself: its tokens follow from its KV, and from nothing else."""

from __future__ import annotations

import random
from itertools import chain

import pytest

from kvhub.errors import LayoutError
from kvhub.keys import Context, Item
from kvhub.testing.engine_driver import EngineSetup, Unable
from kvhub.testing.fake_engine import LAYOUT, OPAQUE_LAYOUT, OTHER_LAYOUT, FakeEngine
from kvhub.testing.fake_engine_blocks import BlockPool
from kvhub.testing.fake_engine_memory import token_offsets


def prompts(count: int, seed: int = 0) -> list[list[int]]:
    dice = random.Random(seed)
    return [[dice.randrange(60_000) for _ in range(dice.randrange(1, 50))] for _ in range(count)]


def answers(engine: FakeEngine, asked: list[list[int]], wanted: int = 12) -> list[tuple[int, ...]]:
    names = [engine.submit(prompt, wanted) for prompt in asked]
    for _ in range(5000):
        if not engine.step():
            break
    found = [engine.result(name) for name in names]
    return [result.tokens for result in found if result is not None]


EXPECTED = answers(FakeEngine(None), prompts(6))


@pytest.mark.parametrize(
    "setup",
    [
        EngineSetup(blocks=24),
        EngineSetup(blocks=24, prefix_cache=False, step_tokens=5),
        EngineSetup(drafts=4),
        EngineSetup(blocks=18, drafts=3, step_tokens=24),
        EngineSetup(layout="other"),
        EngineSetup(layout="opaque", blocks=30),
    ],
)
def test_no_setting_changes_the_tokens(setup: EngineSetup) -> None:
    engine = FakeEngine(None, setup=setup)
    assert answers(engine, prompts(6)) == EXPECTED
    assert engine.preemptions > 0 or setup.blocks > 100
    assert engine.counts() == {"jobs": 0, "blocks": 0, "copies": 0}


def test_drafts_save_steps_and_some_are_rejected() -> None:
    def steps(drafts: int) -> int:
        engine, count = FakeEngine(None, setup=EngineSetup(drafts=drafts)), 0
        engine.submit([1, 2, 3], 30)
        while engine.step():
            count += 1
        return count

    assert 30 / 5 < steps(4) < steps(0)


@pytest.mark.parametrize("damage", ["one bit", "two blocks swapped", "one position shifted", "stale block"])
def test_any_damage_to_kv_changes_what_follows(damage: str) -> None:
    engine, dice = FakeEngine(None), random.Random(damage)
    prompt = [dice.randrange(60_000) for _ in range(40)]
    name = engine.submit(prompt, 12)
    for _ in range(3):
        engine.step()
    blocks = engine.queue.jobs[name].blocks
    first, second = (engine.memory.block(blocks[at]) for at in (2, 7))
    if damage == "one bit":
        first[5] ^= 1
    elif damage == "two blocks swapped":
        first[:], second[:] = bytes(second), bytes(first)
    elif damage == "one position shifted":
        vectors = engine.memory.read(blocks, 13)
        size = len(vectors) // 13
        engine.memory.write(blocks, 12, vectors[11 * size : 12 * size])
    else:
        first[:] = bytes([0xEE]) * len(first)
    while engine.step():
        pass
    result, right = engine.result(name), answers(FakeEngine(None), [prompt])[0]
    assert result is not None and result.tokens[:3] == right[:3] and result.tokens[3:] != right[3:]


def test_adapters_items_and_weights_change_the_tokens_and_tenants_do_not() -> None:
    prompt = list(range(40))

    def answer(context: Context, revision: str = "r1") -> tuple[int, ...]:
        engine = FakeEngine(None, setup=EngineSetup(revision=revision))
        name = engine.submit(prompt, 3, context)
        while engine.step():
            pass
        result = engine.result(name)
        assert result is not None
        return result.tokens

    base = answer(Context())
    assert answer(Context(salt="t1")) == base
    others = [
        answer(Context(adapter="leg")), answer(Context(items=[Item(5, 4, "aa")])),
        answer(Context(items=[Item(5, 4, "ab")])), answer(Context(), "r2"),
    ]  # fmt: skip
    assert len({base, *others}) == 5


@pytest.mark.parametrize("layout", [LAYOUT, OTHER_LAYOUT])
def test_every_byte_of_a_block_belongs_to_one_token(layout: object) -> None:
    offsets = token_offsets(layout)  # type: ignore[arg-type]
    assert sorted(chain.from_iterable(offsets)) == list(range(LAYOUT.block_bytes))


def test_what_it_cannot_read_is_refused() -> None:
    with pytest.raises(LayoutError, match="attention layouts of one-byte items"):
        token_offsets(OPAQUE_LAYOUT)
    with pytest.raises(Unable, match="no layout 'mla'"):
        FakeEngine(None, setup=EngineSetup(layout="mla"))
    with pytest.raises(ValueError, match="do not fit 4 blocks"):
        FakeEngine(None, setup=EngineSetup(blocks=4)).submit(list(range(14)), 5)


def test_a_cached_block_is_found_until_it_is_needed() -> None:
    pool = BlockPool(3, caching=True)
    taken = pool.take(2)
    assert taken == [0, 1]
    pool.cache(taken, [b"a", b"b"])
    pool.free(taken)
    assert pool.used == 0 and pool.find([b"a", b"b", b"c"]) == [0, 1]
    assert pool.take(2, [0]) == [2, 1] and pool.find([b"a", b"b"]) == [0]
    assert pool.take(1) is None and pool.used == 3
    with pytest.raises(AssertionError, match="freed twice"):
        pool.free([0, 0])
