"""Engine laws: decode pulls a prompt while prefill still computes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import pytest

from kvhub.testing.engine_driver import EngineSetup
from kvhub.testing.engine_stage import OFFER, EngineStage, Pair, Stand
from kvhub.testing.guard import fast
from kvhub.types import Batch, Completion, Op, Outcome


class StreamLaws(EngineStage):
    """Order is what they hold to, never time: what decode has while prefill has not answered yet.

    Prefill computes a chunk per step; a piece is two chunks.
    """

    @property
    def long(self) -> int:
        """Tokens of a prompt that takes so many steps that the first copies end long before the last step."""
        return 40 * self.chunk + 5

    def _pair(self, stand: Stand, **limits: Any) -> Pair:
        config = stand.deployment()
        config["limits"] = {**config["limits"], "stream_chunks": 2, "stream_grace": "10s", **limits}
        slow = EngineSetup(step_tokens=self.chunk)
        return Pair(stand.open(config, "prefill", slow), stand.open(config, "decode"))

    def _streamed(self, stand: Stand, pair: Pair, name: str = "promised before") -> Mapping[str, Any]:
        """Parameters for a decode leg that does not wait for its prefill leg."""
        known = stand.prefilled(pair.prefill, stand.prompt(self.chunk, "to learn the address"))
        assert known is not None
        pair.prefill.hub.offers.fulfilled(known["kvhub"]["promise"])
        address, incarnation = known["kvhub"]["address"], known["kvhub"]["incarnation"]
        return {"kvhub": {"address": address, "incarnation": incarnation, "promise": name, "streaming": True}}

    @staticmethod
    def _offer(name: str = "promised before") -> Mapping[str, Any]:
        return {**OFFER, "kvhub": {"promise": name}}

    def _half_way(self, stand: Stand, pair: Pair, prompt: list[int]) -> tuple[str, str]:
        """Both legs, prefill standing still in mid-prompt, decode with a piece of it; their names."""
        params = self._streamed(stand, pair)
        leg = pair.prefill.submit(prompt, 1, params=self._offer())
        name = pair.decode.submit(prompt, 4, params=params)
        prefill, decode = pair.prefill.hub, pair.decode.hub
        stand.until(lambda: prefill.counts()["tickets"], pair.decode, what="a pull of what is not there yet")
        assert not prefill.reports.total("streamed_chunks")
        stand.until(lambda: prefill.reports.total("streamed_chunks") >= 2, pair.prefill, what="an answer to it")
        assert pair.prefill.result(leg) is None, "the answer came with the last chunk"
        stand.until(lambda: len(decode.arena.keys()) >= 2, pair.decode, what="a piece at decode")
        assert pair.decode.state(name) == "loading"
        return leg, name

    @fast
    def test_stream_early_chunks_come_before_the_last_is_computed(self, stand: Stand) -> None:
        """The first piece is at decode while prefill has steps to go; the answer is the plain engine's."""
        pair, prompt = self._pair(stand), stand.prompt(self.long)
        _, name = self._half_way(stand, pair, prompt)
        stand.until(lambda: pair.decode.result(name), pair.prefill, pair.decode, what="the decode leg")
        stand.check(pair.decode, name, prompt, 4)
        assert stand.hits(pair.decode) == {"wire": len(prompt)}
        stand.rest(pair.prefill, pair.decode)

    def test_stream_prefill_that_hears_of_it_late_is_waited_for(self, stand: Stand) -> None:
        """The decode leg may be there first."""
        pair, prompt = self._pair(stand), stand.prompt(5 * self.chunk + 3)
        params = self._streamed(stand, pair)
        wire = stand.tap(pair.decode, "wire")
        name = pair.decode.submit(prompt, 4, params=params)
        stand.until(lambda: len(wire.batches) > 2, pair.decode, what="a second question")
        pair.prefill.submit(prompt, 1, params=self._offer())
        stand.until(lambda: pair.decode.result(name), pair.prefill, pair.decode, what="the decode leg")
        stand.check(pair.decode, name, prompt, 4)
        assert stand.hits(pair.decode) == {"wire": len(prompt)}
        stand.rest(pair.prefill, pair.decode)

    def test_stream_that_was_never_promised_costs_a_recompute(self, stand: Stand) -> None:
        """A prefill that never hears of the request costs its grace."""
        pair, prompt = self._pair(stand, stream_grace="50ms"), stand.prompt(3 * self.chunk + 3)
        name = pair.decode.submit(prompt, 4, params=self._streamed(stand, pair))
        stand.check(pair.decode, name, prompt, 4)
        assert stand.loaded(pair.decode) == 0
        stand.rest(pair.prefill, pair.decode)

    def test_stream_whose_prefill_is_aborted_gives_what_came(self, stand: Stand) -> None:
        """Decode computes what prefill will not bring; nobody waits for it."""
        pair, prompt = self._pair(stand), stand.prompt(self.long)
        leg, name = self._half_way(stand, pair, prompt)
        pair.prefill.abort(leg)
        # Its copies end as it goes on stepping.
        stand.until(lambda: pair.decode.result(name), pair.decode, pair.prefill, what="the decode leg")
        stand.check(pair.decode, name, prompt, 4)
        assert 2 * self.chunk <= stand.loaded(pair.decode) < len(prompt)
        stand.rest(pair.prefill, pair.decode)

    def test_stream_whose_prefill_dies_gives_what_came(self, stand: Stand) -> None:
        """A prefill that is gone in mid-prompt costs computing the rest."""
        pair, prompt = self._pair(stand), stand.prompt(self.long)
        _, name = self._half_way(stand, pair, prompt)
        pair.prefill.close()
        stand.check(pair.decode, name, prompt, 4)
        assert 2 * self.chunk <= stand.loaded(pair.decode) < len(prompt)
        stand.rest(pair.decode)

    def test_stream_a_piece_that_breaks_ends_it(self, stand: Stand) -> None:
        """What came before is used, what comes behind a hole is not."""
        pair, prompt = self._pair(stand), stand.prompt(9 * self.chunk + 5)
        params = self._streamed(stand, pair)
        wire = stand.tap(pair.decode, "wire")
        pair.prefill.submit(prompt, 1, params=self._offer())
        name = pair.decode.submit(prompt, 4, params=params)

        def breaks(batch: Batch, completion: Completion) -> Completion:
            count = len(batch.keys)
            if batch.keys == wire.batches[0].keys:
                return completion
            return attrs.evolve(completion, outcomes=(Outcome.CORRUPT,) * count, lengths=(0,) * count)

        wire.change = breaks
        stand.until(lambda: pair.decode.result(name), pair.decode, pair.prefill, what="the decode leg")
        stand.check(pair.decode, name, prompt, 4)
        assert stand.loaded(pair.decode) == 2 * self.chunk
        stand.rest(pair.prefill, pair.decode)

    @pytest.mark.parametrize("when", ["before it began", "while it loads"])
    def test_stream_whose_decode_is_aborted_holds_nothing(self, stand: Stand, when: str) -> None:
        """The client is gone: both legs end, in any order."""
        pair, prompt = self._pair(stand), stand.prompt(9 * self.chunk + 5)
        params = self._streamed(stand, pair)
        leg = pair.prefill.submit(prompt, 1, params=self._offer())
        name = pair.decode.submit(prompt, 4, params=params)
        if when == "while it loads":
            for _ in range(4):
                pair.prefill.step()
            stand.until(lambda: pair.decode.state(name) == "loading", pair.decode, what="a load")
        pair.decode.abort(name)
        for _ in range(3):
            pair.decode.step()
        pair.prefill.abort(leg)
        stand.rest(pair.prefill, pair.decode)

    def test_stream_of_what_decode_has_leaves_nothing_at_prefill(self, stand: Stand) -> None:
        """Decode needs nothing and says so before prefill has done anything: nothing is kept for it."""
        pair, prompt = self._pair(stand), stand.prompt(4 * self.chunk)
        stand.chat(pair, prompt, 4)
        stand.rest(pair.prefill, pair.decode)
        wire = stand.tap(pair.decode, "wire")
        params = self._streamed(stand, pair, "again")
        stand.check(pair.decode, pair.decode.submit(prompt, 4, params=params), prompt, 4)
        assert not wire.keys(Op.LOAD)
        pair.prefill.submit(prompt, 1, params=self._offer("again"))
        stand.rest(pair.prefill, pair.decode)

    def test_stream_pulls_only_what_decode_lacks(self, stand: Stand) -> None:
        """In a second turn only the new part is waited for and crosses."""
        pair, prompt = self._pair(stand), stand.prompt(3 * self.chunk)
        stand.chat(pair, prompt, 4)
        stand.rest(pair.prefill, pair.decode)
        wire = stand.tap(pair.decode, "wire")
        longer = [*prompt, *stand.prompt(5 * self.chunk + 2, "more")]
        params = self._streamed(stand, pair)
        pair.prefill.submit(longer, 1, params=self._offer())
        name = pair.decode.submit(longer, 4, params=params)
        stand.until(lambda: pair.decode.result(name), pair.prefill, pair.decode, what="the decode leg")
        stand.check(pair.decode, name, longer, 4)
        assert len(set(wire.keys(Op.LOAD))) == 6
        stand.rest(pair.prefill, pair.decode)

    def test_stream_pairs_any_prefill_with_any_decode(self, stand: Stand) -> None:
        """Each request says whom it is with; no pair knows of another."""
        config = stand.deployment()
        config["limits"] = {**config["limits"], "stream_chunks": 2, "stream_grace": "10s"}
        slow = EngineSetup(step_tokens=2 * self.chunk)
        prefills = [stand.open(config, "prefill", slow) for _ in range(2)]
        decodes = [stand.open(config, "decode") for _ in range(2)]
        asked = []
        for at in range(8):
            pair = Pair(prefills[at % 2], decodes[at // 2 % 2])
            prompt = [*stand.prompt(2 * self.chunk), *stand.prompt(3 * self.chunk + at, at)]
            params = self._streamed(stand, pair, f"r{at}")
            pair.prefill.submit(prompt, 1, params=self._offer(f"r{at}"))
            asked.append((pair.decode, pair.decode.submit(prompt, 4, params=params), prompt))
        for decode, name, prompt in asked:
            stand.until(lambda decode=decode, name=name: decode.result(name), *prefills, *decodes)  # type: ignore[misc]
            stand.check(decode, name, prompt, 4)
        for decode in decodes:
            assert stand.hits(decode).get("wire", 0) > 0
        stand.rest(*prefills, *decodes)

    def test_stream_names_that_are_taken_or_make_no_sense_count_as_none(self, stand: Stand) -> None:
        """What stands in a request's parameters can cost it the stream, and nothing else."""
        pair, prompt = self._pair(stand), stand.prompt(3 * self.chunk)
        for name in ("twice", "twice", "", "x" * 1000, 7, None):
            pair.prefill.submit(prompt, 1, params={**OFFER, "kvhub": {"promise": name}})
        names = [pair.prefill.submit(prompt, 1, params={**OFFER, "kvhub": [1]})]
        for result in stand.results(pair.prefill, names):
            assert result.params is not None
            pair.prefill.hub.offers.fulfilled(result.params["kvhub"]["promise"])
        assert pair.prefill.hub.reports.total("streams_refused") == 1
