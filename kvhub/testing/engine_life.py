"""Engine laws: whatever ends when and how, everything is given back, and nobody waits for a member."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvhub.testing.engine_driver import EngineDriver, EngineSetup
from kvhub.testing.engine_stage import OFFER, EngineStage, Stand
from kvhub.testing.engine_tap import Tap
from kvhub.testing.guard import fast
from kvhub.types import Completion, Op, Outcome

STATES = (
    "new", "looked up", "loading", "load arriving", "loaded", "prefilling", "decoding", "preempted", "storing", "ended",
)  # fmt: skip


class LifeLaws(EngineStage):
    """What must be back at its baseline, and when."""

    def test_B01_lookups_that_are_never_loaded_hold_nothing(self, stand: Stand) -> None:
        """Hits that the engine covers itself are released at once, or the host tier fills up with leased chunks."""
        engine, prompt = stand.tiered(slots=10), stand.prompt(2 * stand.chunk + 1)
        for _ in range(20):
            stand.run(engine, prompt, 1)
        stand.rest(engine)
        name = engine.submit(prompt, 40)
        stand.until(lambda: engine.state(name) == "running", engine)
        assert engine.hub.counts()["searches"] == 0, "a request that runs needs nothing of what was found"
        stand.results(engine, [name])
        stand.rest(engine)
        assert stand.hits(engine)["engine"] >= 19 * 2 * stand.chunk
        fresh = stand.prompt(2 * stand.chunk, "fresh")
        stand.run(engine, fresh, 1)
        stand.rest(engine)
        engine.reset_prefix_cache()
        before = stand.loaded(engine)
        stand.run(engine, [*fresh, 1], 1)
        assert stand.loaded(engine) - before == 2 * stand.chunk, "there was no room for a new prompt"

    def test_B03_one_request_never_releases_for_another(self, stand: Stand) -> None:
        """Two requests hold the same chunks; the end of one, told twice, leaves the other's as they are."""
        stand.run(stand.pooled(), prompt := stand.prompt(4 * stand.chunk))
        stand.rest(*stand.opened)
        engine = stand.tiered(EngineSetup(prefix_cache=False))
        stand.run(engine, [*prompt[: 2 * stand.chunk], 1], 1)
        stand.rest(engine)
        tap = stand.tap(engine, "pool")
        tap.hold(Op.LOAD)
        first, second = engine.submit(prompt, 5), engine.submit([*prompt, 3], 5)
        stand.until(lambda: len(tap.held) == 2, engine, what="two loads")
        held = engine.hub.counts()["leased"]
        engine.abort(first)
        engine.abort(first)
        for _ in range(10):
            engine.step()
        assert 0 < engine.hub.counts()["leased"] <= held
        tap.release()
        stand.check(engine, second, [*prompt, 3], 5)
        engine.abort(second)
        stand.rest(engine)

    def test_B04_asking_again_holds_nothing_more(self, stand: Stand) -> None:
        """An engine asks once per step while it waits: one search, one lease per chunk."""
        engine, prompt = stand.tiered(), stand.prompt(3 * stand.chunk)
        stand.run(engine, prompt, 1)
        stand.rest(engine)
        engine.reset_prefix_cache()
        tap = stand.tap(engine, "pool")
        tap.hold(Op.FIND)
        name = engine.submit([*prompt, *stand.prompt(2 * stand.chunk, "new")], 2)
        stand.until(lambda: tap.held, engine, what="a search")
        for _ in range(40):
            engine.step()
        assert engine.state(name) == "waiting"
        assert engine.hub.counts()["leased"] == 3 and engine.hub.counts()["searches"] == 1
        assert len(tap.batches) == 1
        tap.release()
        stand.results(engine, [name])
        stand.rest(engine)

    def test_B05_what_arrives_too_late_is_given_back(self, stand: Stand) -> None:
        """A load that nobody waits for any more keeps its slots until it ends, and not one moment longer."""
        stand.run(stand.pooled(), prompt := stand.prompt(4 * stand.chunk))
        stand.rest(*stand.opened)
        engine = stand.pooled(deadline="50ms")
        tap = stand.tap(engine, "pool")
        tap.hold(Op.LOAD)
        stand.run(engine, prompt, 5)
        assert tap.held and stand.loaded(engine) == 0, "a hung load costs its deadline and nothing else"
        stand.until(lambda: engine.counts()["requests"] == 0, engine)
        assert engine.hub.counts()["leased"] >= 4, "the member may still write there"
        tap.release()
        stand.rest(engine)

    @pytest.mark.parametrize("state", STATES)
    def test_B08_an_abort_leaves_nothing_behind(self, stand: Stand, state: str) -> None:
        """In whatever state a request is aborted: blocks, leases, orders and copies are back."""
        prompt = stand.prompt(4 * stand.chunk)
        if state not in ("prefilling", "decoding", "storing"):
            stand.run(stand.pooled(), prompt)
            stand.rest(*stand.opened)
        most = -(-(4 * stand.chunk + 60) // self.block)
        engine = stand.tiered(EngineSetup(blocks=2 * most - 1, step_tokens=2 * stand.chunk))
        tap = stand.tap(engine, "pool")
        if state == "preempted":
            name = self._preempted(stand, engine, prompt)
        else:
            name = self._brought(stand, engine, tap, prompt, state)
        engine.abort(name)
        assert engine.result(name) is not None
        stand.until(lambda: engine.counts()["blocks"] == 0, engine, what="blocks given back while members hang")
        tap.release()
        stand.rest(engine)
        stand.run(engine, [*prompt, 4], 3)
        stand.rest(engine)

    def _brought(self, stand: Stand, engine: EngineDriver, tap: Tap, prompt: list[int], state: str) -> str:
        if state == "looked up":
            tap.hold(Op.FIND)
        elif state.startswith("load"):
            tap.hold(Op.LOAD)
        elif state == "storing":
            tap.hold(Op.SAVE)
        name = engine.submit(prompt, 1 if state in ("storing", "ended") else 60)
        reached: dict[str, Callable[[], object]] = {
            "new": lambda: True,
            "looked up": lambda: tap.held,
            "loading": lambda: tap.held and engine.state(name) == "loading",
            "loaded": lambda: engine.state(name) == "running",
            "load arriving": lambda: tap.held,
            "prefilling": lambda: engine.state(name) == "running",
            "decoding": lambda: engine.counts()["blocks"] > len(prompt) // stand.block + 1,
            "storing": lambda: engine.result(name) and tap.held,
            "ended": lambda: engine.result(name),
        }
        if state == "loaded":
            stand.until(lambda: tap.held, engine)
            tap.release()
        stand.until(reached[state], engine, what=state)
        if state == "load arriving":
            tap.release()
        return name

    def _preempted(self, stand: Stand, engine: EngineDriver, prompt: list[int]) -> str:
        names: list[str] = []

        def found() -> list[str]:
            return [name for name in names if engine.state(name) == "preempted"]

        for _ in range(10):
            # Lookups that end far apart let one request after the other run, and none has to make room.
            names[:] = [
                engine.submit(prompt, 60),
                *(engine.submit(stand.prompt(len(prompt), f"other {at}"), 60) for at in range(2)),
            ]
            stand.until(
                lambda: found() or all(engine.result(name) is not None for name in names), engine, what="a preemption"
            )
            if found():
                break
        assert found(), "requests that need more room than there is never preempted one another"
        victim = found()[0]
        for name in set(names) - {victim}:
            engine.abort(name)
        return victim

    def test_B08_closing_with_everything_under_way(self, stand: Stand) -> None:
        """An engine that goes down in the middle of its work takes its threads and its memory with it."""
        stand.run(stand.pooled(), prompt := stand.prompt(4 * stand.chunk))
        stand.rest(*stand.opened)
        engine = stand.tiered(EngineSetup(step_tokens=20))
        tap = stand.tap(engine, "pool")
        tap.hold(Op.LOAD)
        engine.submit(prompt, 5)
        engine.submit(stand.prompt(3 * stand.chunk, "other"), 30)
        stand.until(lambda: tap.held, engine)
        engine.step()
        engine.close()
        engine.close()

    @pytest.mark.parametrize("tokens", ["1", "block-1", "block", "block+1", "chunk-1", "chunk", "chunk+1"])
    def test_B12_prompts_around_a_block_go_through_both_legs(self, stand: Stand, tokens: str) -> None:
        """Where there is little or nothing to transfer, both sides end and release all the same."""
        word, sign, _ = tokens.partition("-") if "-" in tokens else tokens.partition("+")
        length = {"1": 1, "block": self.block, "chunk": self.chunk}[word] + {"-": -1, "+": 1, "": 0}[sign]
        pair = stand.pair()
        stand.chat(pair, stand.prompt(length), 6)
        stand.rest(pair.prefill, pair.decode)

    def test_B13_unknown_and_repeated_ends_are_ignored(self, stand: Stand) -> None:
        """A completion that comes twice, or that nobody asked for, is counted and believed by no one."""
        stand.run(stand.pooled(), prompt := stand.prompt(4 * stand.chunk))
        stand.rest(*stand.opened)
        engine = stand.pooled()
        tap = stand.tap(engine, "pool")

        def twice(batch: object, done: Completion) -> Completion:
            tap.extra += [done, Completion(10**9 + done.id, (Outcome.DONE,), (1,))]
            return done

        tap.change = twice
        stand.run(engine, prompt, 8)
        stand.run(engine, [*prompt, 1], 8)
        stand.rest(engine)
        assert engine.hub.reports.total("unknown_completions") >= 2
        assert engine.hub.reports.total("pump_errors") == 0

    def test_B14_an_idle_engine_ends_its_copies(self, stand: Stand) -> None:
        """When the last request is over, steps without work still bring every copy to its end."""
        engine, prompt = stand.pooled(), stand.prompt(4 * stand.chunk + 7)
        tokens = stand.run(engine, prompt, 3)
        steps = 0
        while engine.step():
            steps += 1
            assert steps < 100, f"still busy: {engine.counts()}"
        stand.rest(engine)
        reader = stand.pooled()
        stand.run(reader, [*prompt, *tokens], 2)
        assert stand.loaded(reader) == len(prompt) + 2

    @fast
    @pytest.mark.parametrize("op", [Op.FIND, Op.LOAD, Op.SAVE])
    def test_a_hung_pool_never_stops_the_engine(self, stand: Stand, op: Op) -> None:
        """Requests end and blocks come back while a member answers nothing at all."""
        stand.run(stand.pooled(), prompt := stand.prompt(4 * stand.chunk))
        stand.rest(*stand.opened)
        roles = {"both": {"store": ["host", "pool"], "retrieve": ["host", {"from": "pool", "deadline": "50ms"}]}}
        engine = stand.open(stand.config(roles, limits={"lookup": "50ms"}))
        tap = stand.tap(engine, "pool")
        tap.hold(op)
        for at in range(5):
            stand.run(engine, prompt if at == 0 else stand.prompt(2 * stand.chunk, at), 3)
        stand.until(lambda: engine.counts()["blocks"] == 0 and engine.counts()["requests"] == 0, engine)
        tap.release()
        stand.rest(engine)

    def test_a_full_arena_stores_less_and_breaks_nothing(self, stand: Stand) -> None:
        """With fewer slots than a prompt has chunks the engine computes on and stores what fits."""
        engine = stand.tiered(slots=3)
        for at in range(3):
            stand.run(engine, stand.prompt(6 * stand.chunk, at), 20)
            stand.rest(engine)
            engine.reset_prefix_cache()
        stand.run(engine, stand.prompt(6 * stand.chunk, 0), 20)
        stand.rest(engine)

    @fast
    def test_a_load_that_finds_no_slot_is_not_tried_for_ever(self, stand: Stand) -> None:
        """While a hung member keeps every slot, what is in the pool is computed: no request waits for room."""
        stand.run(stand.pooled(), prompt := stand.prompt(3 * stand.chunk))
        stand.rest(*stand.opened)
        engine = stand.tiered(slots=3)
        tap = stand.tap(engine, "pool")
        tap.hold(Op.SAVE)
        stand.run(engine, stand.prompt(3 * stand.chunk, "other"), 2)
        stand.until(lambda: engine.hub.arena.usage()["leased"] == 3, engine, what="a full arena")
        stand.run(engine, prompt, 5)
        tap.release()
        stand.rest(engine)

    @pytest.mark.parametrize("when", ["before it began", "while it waits"])
    def test_B06_a_promise_ends_with_the_decode_leg(self, stand: Stand, when: str) -> None:
        """What a prefill keeps for a decode leg is free again as soon as that leg is aborted, at any point."""
        pair, prompt = stand.pair(), stand.prompt(4 * stand.chunk)
        params = stand.prefilled(pair.prefill, prompt)
        stand.until(lambda: pair.prefill.counts()["blocks"] == 0, pair.prefill)
        assert pair.prefill.counts()["promises"] == 1
        wire = stand.tap(pair.decode, "wire")
        wire.hold(Op.LOAD)
        name = pair.decode.submit(prompt, 4, params=params)
        if when == "while it waits":
            stand.until(lambda: wire.held, pair.decode, what="a pull")
        pair.decode.abort(name)
        stand.until(lambda: pair.prefill.counts()["promises"] == 0, pair.decode, pair.prefill, what="the promise's end")
        wire.release()
        stand.rest(pair.decode, pair.prefill)

    def test_B13_a_promise_that_nobody_collects_runs_out(self, stand: Stand) -> None:
        """A decode leg that never comes costs its lease and not one chunk more."""
        config = stand.deployment()
        config["limits"] = {**config["limits"], "lease": "100ms"}
        prefill = stand.open(config, "prefill")
        (result,) = stand.results(prefill, [prefill.submit(prompt := stand.prompt(3 * stand.chunk), 1, params=OFFER)])
        stand.until(lambda: prefill.counts()["promises"] == 0, prefill, what="the end of the lease")
        stand.rest(prefill)
        decode = stand.open(config, "decode")
        stand.check(decode, decode.submit(prompt, 4, params=result.params), prompt, 4)
        stand.rest(prefill, decode)
