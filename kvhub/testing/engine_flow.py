"""Engine laws: the whole flow; prefill to decode, decode to pool, pool to the next prefill."""

from __future__ import annotations

import pytest

from kvhub.testing.engine_driver import EngineDriver
from kvhub.testing.engine_stage import EngineStage, Pair, Stand
from kvhub.testing.engine_tap import Tap
from kvhub.testing.guard import fast
from kvhub.types import Op, Outcome


class FlowLaws(EngineStage):
    """What makes several engines one system.

    The first turn of a conversation leaves KV for three chunks and a tail of five tokens.
    """

    @property
    def given(self) -> int:
        """Tokens of the first prompt."""
        return self.chunk + 5

    @property
    def wanted(self) -> int:
        """Tokens that are generated; the last one has no KV yet."""
        return 2 * self.chunk + 1

    def test_the_prompt_crosses_the_wire_and_nothing_else_is_computed(self, stand: Stand) -> None:
        """Decode gets every token of the prompt from prefill, the part behind the last full chunk included."""
        pair, prompt = stand.pair(), stand.prompt(3 * stand.chunk + 7)
        stand.chat(pair, prompt, 5)
        assert stand.hits(pair.decode) == {"wire": len(prompt)}
        stand.rest(pair.prefill, pair.decode)

    def test_a_pull_waits_for_what_is_being_stored(self, stand: Stand) -> None:
        """A decode leg may ask before the prefill's copies have ended: it gets all that was promised, a bit later."""
        pair, prompt = stand.pair(), stand.prompt(3 * stand.chunk + 7)
        params = stand.prefilled(pair.prefill, prompt, settled=False)
        wire = stand.tap(pair.decode, "wire")
        name = pair.decode.submit(prompt, 4, params=params)
        stand.until(lambda: wire.batches, pair.decode, what="a pull")
        for _ in range(20):
            pair.decode.step()
        stand.until(lambda: pair.decode.result(name), pair.decode, pair.prefill, what="the decode leg")
        stand.check(pair.decode, name, prompt, 4)
        assert stand.hits(pair.decode) == {"wire": len(prompt)}
        stand.rest(pair.prefill, pair.decode)

    def test_decode_pulls_only_what_it_lacks(self, stand: Stand) -> None:
        """In a second turn only the new part crosses the wire."""
        pair, prompt = stand.pair(), stand.prompt(self.given)
        turn = [*prompt, *stand.chat(pair, prompt, self.wanted), *stand.prompt(9, "new")]
        stand.rest(pair.prefill, pair.decode)
        wire = stand.tap(pair.decode, "wire")
        stand.chat(pair, turn, 5)
        known = (self.given + self.wanted - 1) // stand.chunk
        assert len(wire.keys(Op.LOAD)) == -(-len(turn) // stand.chunk) - known
        stand.rest(pair.prefill, pair.decode)

    def test_F11_the_next_turn_finds_all_but_the_last_token(self, stand: Stand) -> None:
        """Turn n + 1 on a fresh prefill loads prompt and generated tokens of turn n from the pool, tail included."""
        pair, prompt = stand.pair(), stand.prompt(self.given)
        turn = [*prompt, *stand.chat(pair, prompt, self.wanted)]
        stand.rest(pair.prefill, pair.decode)
        for _ in range(3):
            fresh = self._fresh(stand)
            turn += stand.prompt(7, len(turn))
            before = len(turn)
            turn += stand.chat(Pair(fresh, pair.decode), turn, self.wanted)
            # The sampled token that ended the turn before has no KV.
            assert stand.hits(fresh) == {"pool": before - 8}
            stand.rest(fresh, pair.decode)

    @staticmethod
    def _fresh(stand: Stand) -> EngineDriver:
        return stand.open(stand.deployment(), "prefill")

    def test_F11_a_tail_is_used_as_far_as_it_agrees(self, stand: Stand) -> None:
        """A next turn that departs within the tail takes the common part, token by token."""
        pair, prompt = stand.pair(), stand.prompt(self.given)
        turn = [*prompt, *stand.chat(pair, prompt, self.wanted)]
        stand.rest(pair.prefill, pair.decode)
        fresh = self._fresh(stand)
        shared = 3 * stand.chunk + 4
        stand.run(fresh, [*turn[:shared], turn[shared] + 1, 5, 6], 4)
        assert stand.hits(fresh) == {"pool": shared}
        stand.rest(fresh)

    def test_F11_a_new_tail_replaces_the_old_one(self, stand: Stand) -> None:
        """The latest end of a conversation is what the next turn looks for."""
        engine, prompt = stand.pooled(), stand.prompt(stand.chunk)
        longer = [*prompt, *stand.prompt(5, "a")]
        other = [*prompt, *stand.prompt(9, "b")]
        for turn in (longer, other):
            stand.run(engine, turn, 1)
            stand.rest(engine)
        for turn, found in ((other, len(other)), (longer, stand.chunk)):
            # This one stores nothing, or its own end would replace the tail again.
            reader = stand.reader()
            stand.run(reader, [*turn, 1], 1)
            assert stand.loaded(reader) == found

    def test_F11_an_unfinished_write_back_gives_a_shorter_hit(self, stand: Stand) -> None:
        """What decode has not written yet is computed by the next prefill: slower, never wrong."""
        pair, prompt = stand.pair(), stand.prompt(self.given)
        pool = stand.tap(pair.decode, "pool")
        params = stand.prefilled(pair.prefill, prompt)
        name = pair.decode.submit(prompt, self.wanted, params=params)
        stand.until(lambda: len(pool.keys(Op.SAVE)) == 2, pair.decode, pair.prefill, what="two chunks written back")
        pool.hold(Op.SAVE)
        turn = [*prompt, *stand.check(pair.decode, name, prompt, self.wanted)]
        stand.until(lambda: pool.held, pair.decode)
        fresh = self._fresh(stand)
        stand.run(fresh, [*turn, *stand.prompt(5, "new")], 5)
        assert stand.hits(fresh) == {"pool": 2 * stand.chunk}
        pool.release()
        stand.rest(pair.prefill, pair.decode, fresh)

    def test_E18_every_member_is_used_as_the_roles_say(self, stand: Stand) -> None:
        """The table of the file is what happens: no role writes or reads anywhere else, on any path."""
        pair = stand.pair()
        taps = {
            (role, member): Tap(driver.hub, member)
            for role, driver in (("prefill", pair.prefill), ("decode", pair.decode))
            for member in driver.hub.members
        }
        prompt = stand.prompt(self.given)
        turn = [*prompt, *stand.chat(pair, prompt, self.wanted)]
        stand.rest(pair.prefill, pair.decode)
        pair.prefill.reset_prefix_cache()
        stand.chat(pair, [*turn, *stand.prompt(8, "new")], 6)
        name = pair.decode.submit(stand.prompt(40, "aborted"), 30)
        stand.until(lambda: pair.decode.state(name) == "running", pair.decode)
        pair.decode.abort(name)
        stand.rest(pair.prefill, pair.decode)
        assert {place: tap.ops() for place, tap in taps.items()} == {
            ("prefill", "host"): set(), ("prefill", "pool"): {Op.FIND, Op.LOAD}, ("prefill", "wire"): set(),
            ("decode", "host"): set(), ("decode", "pool"): {Op.FIND, Op.LOAD, Op.SAVE} - self._unneeded(taps),
            ("decode", "wire"): {Op.LOAD},
        }  # fmt: skip
        asked = [tap for (role, _), tap in taps.items() if role == "prefill"]
        assert not any(Op.SAVE in tap.ops() or Op.REMOVE in tap.ops() for tap in asked)

    @staticmethod
    def _unneeded(taps: dict[tuple[str, str], Tap]) -> set[Op]:
        """Decode may load from the pool and has no need to here."""
        return {Op.LOAD} - taps["decode", "pool"].ops()

    def test_E18_a_role_that_stores_nothing_keeps_nothing(self, stand: Stand) -> None:
        """An empty store list means none: not the pool, not the host's memory."""
        prompt = stand.prompt(3 * stand.chunk + 5)
        stand.run(writer := stand.pooled(), prompt)
        stand.rest(writer)
        engine = stand.reader()
        tap = stand.tap(engine, "pool")
        stand.run(engine, [*prompt, *stand.prompt(40, "new")], 9)
        stand.rest(engine)
        assert tap.ops() == {Op.FIND, Op.LOAD} and engine.hub.arena.keys() == []

    @pytest.mark.parametrize("when", ["before the pull", "during the pull"])
    def test_a_dead_prefill_costs_a_recompute(self, stand: Stand, when: str) -> None:
        """A decode leg whose prefill is gone answers all the same."""
        pair, prompt = stand.pair(), stand.prompt(4 * stand.chunk + 3)
        params = stand.prefilled(pair.prefill, prompt)
        stand.until(lambda: not pair.prefill.step(), what="an idle prefill")
        wire = stand.tap(pair.decode, "wire")
        if when == "during the pull":
            wire.hold(Op.LOAD)
            name = pair.decode.submit(prompt, 6, params=params)
            stand.until(lambda: wire.held, pair.decode)
            pair.prefill.close()
            wire.release()
        else:
            pair.prefill.close()
            name = pair.decode.submit(prompt, 6, params=params)
        stand.check(pair.decode, name, prompt, 6)
        stand.rest(pair.decode)

    @pytest.mark.parametrize(
        "params",
        [
            {"kvhub": {"address": "", "incarnation": "", "promise": "", "tokens": 40}},
            {"kvhub": {"address": "127.0.0.1:1", "incarnation": "x", "promise": "y", "tokens": 10**9}},
            {"kvhub": {"address": "a", "incarnation": "b", "tokens": float("inf")}}, {"kvhub": {"address": 5}},
            {"kvhub": {"address": "a:1", "incarnation": "b", "tokens": -5}},
            {"kvhub": {"address": "a", "incarnation": "b", "tokens": "many"}},
            {"kvhub": "nonsense"}, {"kvhub": None}, {"do_remote_decode": None, "other": [1]},
        ],
    )  # fmt: skip
    def test_parameters_that_make_no_sense_count_as_none(self, stand: Stand, params: dict[str, object]) -> None:
        """What a client sends can cost a recompute, and nothing else."""
        pair, prompt = stand.pair(), stand.prompt(3 * stand.chunk)
        stand.check(pair.decode, pair.decode.submit(prompt, 4, params=params), prompt, 4)
        stand.rest(pair.decode)

    @fast
    def test_a_lying_peer_is_no_reason_to_wait_for_ever(self, stand: Stand) -> None:
        """A peer that promises more than it has gives what it has, and the rest is computed."""
        pair, prompt = stand.pair(), stand.prompt(4 * stand.chunk + 3)
        params = stand.prefilled(pair.prefill, prompt[: 2 * stand.chunk])
        assert params is not None
        more = {"kvhub": {**params["kvhub"], "tokens": len(prompt)}}
        stand.check(pair.decode, pair.decode.submit(prompt, 5, params=more), prompt, 5)
        assert stand.loaded(pair.decode) == 2 * stand.chunk
        stand.rest(pair.decode, pair.prefill)

    def test_A13_a_pull_that_breaks_is_not_tried_for_ever(self, stand: Stand) -> None:
        """A wire that fails every time costs each request one try."""
        pair = stand.pair()
        wire = stand.tap(pair.decode, "wire")
        wire.spoil(Outcome.FAILED)
        for at in range(3):
            prompt = stand.prompt(2 * stand.chunk + 3, at)
            params = stand.prefilled(pair.prefill, prompt)
            stand.check(pair.decode, pair.decode.submit(prompt, 4, params=params), prompt, 4)
        assert len([batch for batch in wire.batches if batch.op is Op.LOAD]) <= 3
        stand.rest(pair.decode, pair.prefill)
