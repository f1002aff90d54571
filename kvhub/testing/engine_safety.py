"""Engine laws: wrong KV never reaches a block, and unfinished KV never reaches a store."""

from __future__ import annotations

import attrs
import pytest

from kvhub.testing.engine_driver import EngineDriver, EngineSetup
from kvhub.testing.engine_stage import OFFER, EngineStage, Stand
from kvhub.types import Batch, Completion, Op, Outcome


def generated(stand: Stand) -> int:
    """Tokens that each request of a crowd generates: enough to fill a chunk of their own."""
    return 2 * stand.chunk - 2


def small(stand: Stand) -> EngineSetup:
    """A KV space for one and a half of the requests of a crowd, so that the newer ones are preempted."""
    most = -(-(2 * stand.chunk + 8 + generated(stand)) // stand.block)
    return EngineSetup(blocks=most * 3 // 2, prefix_cache=False)


def crowd(stand: Stand, engine: EngineDriver) -> list[list[int]]:
    """Requests that together need more blocks than there are; returns their prompts, all of them answered right."""
    prompts = [stand.prompt(2 * stand.chunk + 5 + at, f"crowd {at}") for at in range(4)]
    names = [engine.submit(prompt, generated(stand)) for prompt in prompts]
    for name, prompt in zip(names, prompts, strict=True):
        stand.check(engine, name, prompt, generated(stand))
    return prompts


class SafetyLaws(EngineStage):
    """What must hold when blocks change owners and loads go wrong."""

    def test_wrong_kv_gives_wrong_tokens(self, stand: Stand) -> None:
        """The negative control: if damaged KV went unnoticed, no other law here would mean anything."""
        engine, prompt = stand.tiered(), stand.prompt(3 * stand.chunk + 1)
        stand.run(engine, prompt, 8)
        stand.rest(engine)
        engine.reset_prefix_cache()
        arena = engine.hub.arena
        for key in list(arena.keys()):
            slot = arena.lease(key)
            assert slot is not None
            view = arena.region.slot(slot, engine.hub.measure.chunk_bytes)
            view[:] = bytes(byte ^ 0x5A for byte in view)
            arena.release((slot,))
        (result,) = stand.results(engine, [engine.submit(prompt, 8)])
        assert stand.loaded(engine) >= 3 * stand.chunk, "the damaged KV has to be used for this"
        assert result.tokens != stand.expected(prompt, 8)

    def test_A09_what_vanished_since_the_lookup_is_a_shorter_prefix(self, stand: Stand) -> None:
        """A promise is a hint until it is kept: what is gone is computed, and what came before it is still used."""
        writer, prompt = stand.pooled(), stand.prompt(5 * stand.chunk)
        stand.run(writer, prompt)
        stand.rest(writer)
        reader = stand.pooled()
        tap = stand.tap(reader, "pool")
        tap.hold(Op.LOAD)
        name = reader.submit(prompt, 6)
        stand.until(lambda: tap.held, reader, what="a load")
        assert reader.state(name) == "loading"
        tap.spoil(Outcome.MISS, tap.keys(Op.LOAD)[2:3])
        tap.release()
        stand.check(reader, name, prompt, 6)
        assert stand.loaded(reader) == 2 * stand.chunk, "exactly the chunks before the gap"
        stand.rest(reader)

    def test_A09_what_the_engine_lost_since_the_search_is_searched_for(self, stand: Stand) -> None:
        """An engine may lose cached blocks while it waits for the answer: then their tokens are to be loaded, too."""
        stand.run(stand.pooled(), prompt := stand.prompt(5 * stand.chunk))
        stand.rest(*stand.opened)
        engine = stand.pooled()
        stand.run(engine, prompt[: 2 * stand.chunk + 1], 1)
        stand.rest(engine)
        tap, before = stand.tap(engine, "pool"), stand.loaded(engine)
        tap.hold(Op.FIND)
        name = engine.submit([*prompt, 8], 5)
        stand.until(lambda: tap.held, engine, what="a search")
        engine.reset_prefix_cache()
        engine.step()
        tap.release()
        stand.check(engine, name, [*prompt, 8], 5)
        assert stand.loaded(engine) - before == 5 * stand.chunk
        stand.rest(engine)

    @pytest.mark.parametrize("at", [0, 1, 4])
    @pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.CORRUPT, Outcome.LATE, Outcome.FULL])
    def test_A13_a_failed_part_is_never_counted_as_loaded(self, stand: Stand, outcome: Outcome, at: int) -> None:
        """The first k tokens are valid and nothing behind them, whatever else arrived; who shares them is unharmed."""
        prompt = stand.prompt(5 * stand.chunk)
        stand.run(stand.pooled(), prompt)
        stand.rest(*stand.opened)
        reader = stand.pooled()
        tap, spoiled = stand.tap(reader, "pool"), reader.submit(prompt, 5)
        tap.hold(Op.LOAD)
        stand.until(lambda: tap.held, reader, what="a load")
        tap.spoil(outcome, tap.keys(Op.LOAD)[at : at + 1])
        tap.release()
        sharers = [reader.submit([*prompt, 9], 5), reader.submit(prompt, 7)]
        stand.check(reader, spoiled, prompt, 5)
        stand.check(reader, sharers[0], [*prompt, 9], 5)
        stand.check(reader, sharers[1], prompt, 7)
        stand.rest(reader)

    def test_A13_a_short_payload_is_a_miss(self, stand: Stand) -> None:
        """A chunk of the wrong length is not KV, whatever its member says."""
        prompt = stand.prompt(4 * stand.chunk)
        stand.run(stand.pooled(), prompt)
        stand.rest(*stand.opened)
        reader = stand.pooled()
        tap = stand.tap(reader, "pool")
        tap.change = lambda batch, done: (
            attrs.evolve(done, lengths=tuple(length // 2 for length in done.lengths)) if batch.op is Op.LOAD else done
        )
        stand.run(reader, prompt, 6)
        assert stand.loaded(reader) == 0 and reader.hub.reports.total("faults", reason="length") >= 1
        stand.rest(reader)

    def test_A10_live_blocks_stay_as_they_are(self, stand: Stand) -> None:
        """A load that begins inside a chunk writes only tokens behind the engine's own, which others are reading."""
        prompt = stand.prompt(3 * stand.chunk)
        stand.run(stand.pooled(), prompt, 1)
        stand.rest(*stand.opened)
        engine, local = stand.pooled(), 2 * stand.block
        size = engine.hub.measure.own.block_bytes

        def scribble(batch: Batch, done: Completion) -> Completion:
            # Equal bytes over equal bytes would not be seen.
            for slot in batch.slots[:1] if batch.op is Op.LOAD else ():
                engine.hub.arena.region.slot(slot, 2 * size)[:] = b"\x5a" * (2 * size)
            return done

        stand.tap(engine, "pool").change = scribble
        short = prompt[: local + 1]
        owner = engine.submit(short, 90 * stand.chunk)
        stand.until(lambda: engine.state(owner) == "running", engine)
        before = engine.kv(owner)[:2]
        longer = engine.submit([*prompt, 5], 3)
        stand.check(engine, longer, [*prompt, 5], 3)
        assert engine.result(owner) is None, "the law needs the owner alive"
        assert engine.kv(owner)[:2] == before, "blocks of a running request were written"
        assert stand.loaded(engine) == 3 * stand.chunk - local, "tokens beyond the engine's own, not whole chunks"
        engine.abort(owner)
        result = engine.result(owner)
        assert result is not None and result.tokens == stand.expected(short, len(result.tokens))
        stand.rest(engine)

    def test_A10_less_than_a_block_is_not_loaded(self, stand: Stand) -> None:
        """A load costs a step; one that brings less than a block is not worth it, and its leases go at once."""
        engine, prompt = stand.pooled(), stand.prompt(stand.chunk + stand.block - 1)
        stand.run(engine, prompt, 1)
        stand.rest(engine)
        before = stand.loaded(engine)
        stand.run(engine, [*prompt, 3], 2)
        assert stand.loaded(engine) == before and stand.hits(engine)["engine"] == stand.chunk
        stand.rest(engine)

    def test_A12_blocks_of_the_preempted_are_read_before_they_change(self, stand: Stand) -> None:
        """What a preempted request was storing is whole or not stored; a reader of the pool gets the right tokens."""
        engine = stand.pooled(small(stand))
        prompts = crowd(stand, engine)
        assert engine.preemptions > 0, "the law needs preemptions"
        stand.rest(engine)
        reader = stand.pooled()
        for prompt in prompts:
            turn = [*prompt, *stand.expected(prompt, generated(stand))]
            stand.run(reader, turn, 4)
        assert (
            stand.loaded(reader)
            >= sum(len(prompt) + generated(stand) - 1 for prompt in prompts) // stand.chunk * stand.chunk // 2
        )
        stand.rest(reader)

    def test_A12_what_is_being_read_is_not_given_away(self, stand: Stand) -> None:
        """A prompt is being stored when its blocks are taken for an older request: its KV stays what it was."""
        seen = 0
        for at in range(4):
            # The older one fills its last block exactly, and the newer one all that is left.
            older, newer = stand.prompt(13 * self.block, f"older {at}"), stand.prompt(3 * stand.chunk, f"newer {at}")
            engine = stand.pooled(
                EngineSetup(
                    blocks=13 + len(newer) // self.block, step_tokens=len(older) + len(newer), prefix_cache=False
                )
            )
            names = [engine.submit(older, 6), engine.submit(newer, 4)]
            stand.until(lambda: engine.result(names[0]) is not None, engine)  # noqa: B023 - called at once
            seen += engine.preemptions
            stand.check(engine, names[1], newer, 4)
            stand.rest(engine)
            stand.run(stand.reader(), [*newer, *stand.expected(newer, 4)], 4)
        assert seen > 0, "the law needs preemptions"

    def test_A29_a_resumed_request_is_looked_up_with_all_its_tokens(self, stand: Stand) -> None:
        """After a preemption the generated tokens are part of the prompt: their KV is looked for and loaded."""
        engine = stand.pooled(small(stand))
        tap = stand.tap(engine, "pool")
        asked = most = 0
        for _ in range(6):  # whether a request that was preempted had generated a chunk depends on the threads
            prompts = crowd(stand, engine)
            assert engine.preemptions > 0, "the law needs preemptions"
            most = max(most, *(len(prompt) // stand.chunk for prompt in prompts))
            asked = max(len(batch.keys) for batch in list(tap.batches) if batch.op is Op.FIND)
            if asked > most:
                break
        assert asked > most, f"at most {asked} chunks were asked for, which the prompts alone have"
        stand.rest(engine)

    def test_A24_drafts_are_not_stored(self, stand: Stand) -> None:
        """Only accepted tokens' KV is kept: what a speculating engine stored gives others the right tokens."""
        engine, prompt = stand.pooled(EngineSetup(drafts=3)), stand.prompt(2 * stand.chunk - 2)
        tokens = stand.run(engine, prompt, 3 * stand.chunk)
        stand.rest(engine)
        tap = stand.tap(reader := stand.pooled(), "pool")
        turn = [*prompt, *tokens]
        stand.run(reader, turn, 12)
        assert stand.loaded(reader) == len(turn) - 1, f"{len(tap.keys(Op.LOAD))} chunks were read"
        stand.rest(reader)

    def test_A15_no_chunk_is_stored_before_it_is_full(self, stand: Stand) -> None:
        """While a request decodes, a chunk goes out each time one is full, and one tail at the end."""
        engine, size = stand.pooled(), stand.chunk
        tap = stand.tap(engine, "pool")
        prompt = stand.prompt(size)
        stand.run(engine, prompt, 2 * size + 5)
        stand.rest(engine)
        saves = [batch for batch in tap.batches if batch.op is Op.SAVE]
        full = [length for batch in saves if not batch.replace for length in batch.lengths]
        assert full == [engine.hub.measure.chunk_bytes] * 3
        assert sum(batch.replace for batch in saves) == 1

    def test_A16_nothing_is_promised_for_an_aborted_prefill(self, stand: Stand) -> None:
        """A decode leg must not start from a prefill that never ended."""
        pair = stand.pair(prefill=EngineSetup(step_tokens=8))
        name = pair.prefill.submit(stand.prompt(4 * stand.chunk), 1, params=OFFER)
        stand.until(lambda: pair.prefill.state(name) == "running", pair.prefill)
        pair.prefill.step()
        pair.prefill.abort(name)
        result = pair.prefill.result(name)
        assert result is not None and result.reason == "abort" and not result.params
        stand.rest(pair.prefill)
        assert len(pair.prefill.hub.arena.keys()) < 4, "only what was computed may be kept"

    def test_B16_nothing_is_promised_without_blocks(self, stand: Stand) -> None:
        """A prefill that lost its blocks has nothing to deliver, and says so by promising nothing."""
        pair = stand.pair(prefill=small(stand))
        prompts = [stand.prompt(2 * stand.chunk + 5, at) for at in range(4)]
        names = [pair.prefill.submit(prompt, generated(stand), params=OFFER) for prompt in prompts]
        stand.until(
            lambda: any(pair.prefill.state(name) == "preempted" for name in names), pair.prefill, what="a preemption"
        )
        victim = next(name for name in names if pair.prefill.state(name) == "preempted")
        pair.prefill.abort(victim)
        result = pair.prefill.result(victim)
        assert result is not None and not result.params
        for name in names:
            pair.prefill.abort(name)
        stand.rest(pair.prefill)

    def test_A17_decode_stores_only_what_it_has(self, stand: Stand) -> None:
        """While the prompt's KV is on its way nothing of it is written back; what failed is stored once computed."""
        pair, prompt = stand.pair(), stand.prompt(3 * stand.chunk)
        params = stand.prefilled(pair.prefill, prompt)
        wire, pool = stand.tap(pair.decode, "wire"), stand.tap(pair.decode, "pool")
        wire.hold(Op.LOAD)
        name = pair.decode.submit(prompt, 4, params=params)
        stand.until(lambda: wire.held, pair.decode, what="a pull")
        for _ in range(20):
            pair.decode.step()
        assert pair.decode.state(name) == "loading"
        assert Op.SAVE not in pool.ops() and not pair.decode.hub.arena.keys(), "KV that never came was stored"
        wire.spoil(Outcome.FAILED, wire.keys(Op.LOAD)[1:2])
        wire.release()
        stand.check(pair.decode, name, prompt, 4)
        assert stand.loaded(pair.decode) == stand.chunk
        stand.rest(pair.decode, pair.prefill)
        reader = stand.pooled()
        stand.run(reader, [*prompt, *stand.expected(prompt, 4)], 4)
        assert stand.loaded(reader) == 3 * stand.chunk + 3

    def test_another_layout_is_converted_or_missed(self, stand: Stand) -> None:
        """Engines that pack the same KV differently may share a pool; wrong tokens they may not get."""
        one, other = stand.pooled(), stand.pooled(EngineSetup(layout="other"))
        for at, (writer, reader) in enumerate([(one, other), (other, one)]):
            prompt = stand.prompt(3 * stand.chunk + 6, at)
            tokens = stand.run(writer, prompt, 5)
            stand.rest(writer)
            before = stand.loaded(reader)
            stand.run(reader, [*prompt, *tokens], 5)
            assert stand.loaded(reader) - before in (0, len(prompt) + 4)
            stand.rest(reader)

    def test_opaque_blocks_move_whole_or_not_at_all(self, stand: Stand) -> None:
        """KV that nobody may cut is stored and loaded in whole chunks, and other engines have no use for it."""
        prompt = stand.prompt(3 * stand.chunk + 6)
        opaque = stand.pooled(EngineSetup(layout="opaque"))
        tokens = stand.run(opaque, prompt, 5)
        stand.rest(opaque)
        opaque.reset_prefix_cache()
        stand.run(opaque, prompt[: stand.chunk + 2 * stand.block + 1], 2)
        stand.run(opaque, [*prompt, *tokens], 5)
        assert stand.loaded(opaque) == stand.chunk + 2 * stand.chunk - 2 * stand.block
        other = stand.pooled()
        stand.run(other, [*prompt, *tokens], 5)
        assert stand.loaded(other) == 0
        stand.rest(opaque, other)
