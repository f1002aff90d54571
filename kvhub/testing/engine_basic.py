"""Engine laws: tokens, hits, keys, and who shares KV with whom."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from kvhub.keys import Context, Item
from kvhub.testing.engine_driver import EngineSetup
from kvhub.testing.engine_stage import EngineStage, Stand
from kvhub.types import Op

KEYS_SCRIPT = """
import json, sys
from kvhub.keys import Chain, Context
asked = json.loads(sys.argv[1])
context = Context(adapter=asked["adapter"], salt=asked["salt"])
chain = Chain(context.root(bytes.fromhex(asked["namespace"])), asked["chunk"])
chain.extend(asked["tokens"])
print(*(key.hex() for key in chain.keys))
"""


class BasicLaws(EngineStage):
    """What an engine with kvhub must do when nothing goes wrong."""

    def test_tokens_equal_the_plain_engines(self, stand: Stand) -> None:
        """The whole point: with kvhub the answers are the same, with several requests at once."""
        engine = stand.tiered()
        prompts = [stand.prompt(length, length) for length in (1, 7, 16, 33, 64, 90)]
        names = [engine.submit(prompt, 9) for prompt in prompts]
        for name, prompt in zip(names, prompts, strict=True):
            stand.check(engine, name, prompt, 9)
        stand.rest(engine)

    def test_what_was_computed_once_is_loaded(self, stand: Stand) -> None:
        """A prompt that was seen before is not computed again, here and on another engine of the pool."""
        first, other = stand.tiered(), stand.tiered()
        prompt = stand.prompt(5 * stand.chunk + 3)
        stand.run(first, prompt)
        stand.rest(first)
        first.reset_prefix_cache()
        for engine in (first, other):
            before = stand.loaded(engine)
            stand.run(engine, prompt)
            assert stand.loaded(engine) - before >= 5 * stand.chunk

    def test_the_engines_own_cache_comes_first(self, stand: Stand) -> None:
        """What the engine holds itself is not loaded over it."""
        engine = stand.tiered()
        prompt = stand.prompt(4 * stand.chunk + 1)
        stand.run(engine, prompt)
        stand.rest(engine)
        before = stand.loaded(engine)
        stand.run(engine, prompt)
        assert stand.loaded(engine) == before and stand.hits(engine)["engine"] == 4 * stand.chunk

    @pytest.mark.parametrize("seed", ["0", "1", "random"])
    def test_A01_keys_are_equal_in_every_process(self, stand: Stand, seed: str) -> None:
        """Keys must not depend on a process: engines that disagree never share."""
        engine, prompt = stand.tiered(), stand.prompt(3 * stand.chunk)
        stand.run(engine, prompt, 1, Context(adapter="leg", salt="t1"))
        stand.rest(engine)
        namespace = engine.hub.facts.namespace.digest.hex()
        asked = {"namespace": namespace, "chunk": stand.chunk, "tokens": prompt, "adapter": "leg", "salt": "t1"}
        done = subprocess.run(
            [sys.executable, "-c", KEYS_SCRIPT, json.dumps(asked)],
            capture_output=True, text=True, check=True, env=os.environ | {"PYTHONHASHSEED": seed},
        )  # fmt: skip
        theirs = {bytes.fromhex(word) for word in done.stdout.split()}
        assert len(theirs) == 3 and theirs <= set(engine.hub.arena.keys())

    @pytest.mark.parametrize(
        ("stored", "others"),
        [
            pytest.param(Context(adapter="leg"), [Context(adapter="civ"), Context()], id="A03-adapter"),
            pytest.param(Context(adapter="leg@d1"), [Context(adapter="leg@d2")], id="A08-adapter-digest"),
            pytest.param(Context(salt="t1"), [Context(salt="t2"), Context(), Context(salt="")], id="A05-salt"),
            pytest.param(
                Context(items=[Item(3, 8, "aa" * 32)]), [Context(items=[Item(3, 8, "aa" * 31 + "ab")]), Context()],
                id="A02-item",
            ),
        ],
    )  # fmt: skip
    def test_A02_A03_A05_A08_contexts_do_not_share(self, stand: Stand, stored: Context, others: list[Context]) -> None:
        """KV made in one context is never used in another, and always in an equal one."""
        writer, reader = stand.tiered(), stand.tiered()
        for at, engine in enumerate((writer, reader)):
            prompt = stand.prompt(4 * stand.chunk + 5, at)
            stand.run(writer, prompt, 4, stored)
            stand.rest(writer)
            for context in others:
                before = stand.loaded(engine)
                stand.run(engine, prompt, 4, context)
                assert stand.loaded(engine) == before, f"{context} was served KV of {stored}"
                stand.rest(engine)
            engine.reset_prefix_cache()
            stand.run(engine, prompt, 4, stored)
            assert stand.loaded(engine) - before >= 4 * stand.chunk, "an equal context shares"
            stand.rest(engine)

    def test_A06_another_revision_does_not_share(self, stand: Stand) -> None:
        """New weights on the same pool never meet KV of the old ones, which stays for the old."""
        prompt = stand.prompt(4 * stand.chunk + 2)
        old, new = stand.tiered(), stand.tiered(EngineSetup(revision="r2"))
        stand.run(old, prompt)
        stand.rest(old)
        stand.check(new, new.submit(prompt, 4), prompt, 4, revision="r2")
        assert stand.loaded(new) == 0
        assert stand.expected(prompt, 4) != stand.expected(prompt, 4, revision="r2"), "the law needs another model"
        again = stand.tiered()
        stand.run(again, prompt)
        assert stand.loaded(again) >= 4 * stand.chunk

    def test_D13_only_chunks_beyond_the_engines_own_are_read(self, stand: Stand) -> None:
        """With L tokens in the engine and H in the pool exactly the chunks that overlap [L, H) are read."""
        stand.run(stand.pooled(), prompt := stand.prompt(6 * stand.chunk), 1)
        stand.rest(*stand.opened)
        engine = stand.pooled()
        stand.run(engine, prompt[: 2 * stand.chunk + 1], 1)
        stand.rest(engine)
        tap = stand.tap(engine, "pool")
        stand.run(engine, prompt + stand.prompt(5, "new"), 1)
        assert len(tap.keys(Op.LOAD)) == 4 and len(set(tap.keys(Op.LOAD))) == 4

    def test_F01_each_prompt_token_is_counted_once(self, stand: Stand) -> None:
        """Tokens by origin: engine, host, pool and computed add up to the prompt, whatever was promoted meanwhile."""
        size, prompt = stand.chunk, stand.prompt(4 * stand.chunk)
        stand.run(stand.tiered(), prompt, 1)
        stand.rest(*stand.opened)
        engine = stand.tiered()
        stand.run(engine, prompt[: 2 * size + 1], 1)
        stand.rest(engine)
        engine.reset_prefix_cache()
        stand.run(engine, prompt[: size + 1], 1)
        stand.rest(engine)
        before, prompts = stand.hits(engine), engine.hub.reports.total("prompt_tokens")
        stand.run(engine, prompt + stand.prompt(10, "new"), 1)
        gained = {name: count - before.get(name, 0) for name, count in stand.hits(engine).items()}
        assert gained == {"engine": size, "host": size, "pool": 2 * size}
        assert engine.hub.reports.total("prompt_tokens") - prompts == 4 * size + 10
        stand.rest(engine)
        engine.reset_prefix_cache()
        before = stand.hits(engine)
        stand.run(engine, [*prompt, 1], 1)
        gained = {name: count - before.get(name, 0) for name, count in stand.hits(engine).items()}
        assert gained == {"engine": 0, "host": 4 * size, "pool": 0}, "what was promoted is the host's from now on"

    def test_F01_generated_tokens_are_told_from_given_ones(self, stand: Stand) -> None:
        """A hit counts as generated only for tokens that a decode wrote, wherever in a chunk or tail they lie."""
        engine, size = stand.tiered(), stand.chunk
        given = size + 5
        for at, (made, kept, generated) in enumerate(
            [(6, given, 0), (6, given + 2, 2), (6, given + 5, 5), (2 * size - 4, 3 * size, 2 * size - 5)]
        ):
            prompt = stand.prompt(given, at)
            turn = [*prompt, *stand.run(engine, prompt, made)][:kept]
            stand.rest(engine)
            engine.reset_prefix_cache()
            before, loaded = engine.hub.reports.total("generated_hit_tokens"), stand.loaded(engine)
            stand.run(engine, [*turn, 1], 1)
            assert stand.loaded(engine) - loaded == kept
            assert engine.hub.reports.total("generated_hit_tokens") - before == generated, f"{kept} tokens loaded"
            stand.rest(engine)

    def test_B24_many_short_requests_share_a_step(self, stand: Stand) -> None:
        """Requests shorter than anything that kvhub counts in must neither break nor leak anything."""
        engine = stand.tiered(EngineSetup(step_tokens=512))
        prompts = [stand.prompt(5, seed % 7) for seed in range(40)]
        names = [engine.submit(prompt, 1 + seed % 3) for seed, prompt in enumerate(prompts)]
        for seed, (name, prompt) in enumerate(zip(names, prompts, strict=True)):
            stand.check(engine, name, prompt, 1 + seed % 3)
        stand.rest(engine)

    def test_chunked_prefill_is_stored_as_it_goes(self, stand: Stand) -> None:
        """A prompt that takes several steps is stored whole, chunk borders anywhere in a step."""
        engine, prompt = stand.tiered(EngineSetup(step_tokens=7)), stand.prompt(5 * stand.chunk + 2)
        stand.run(engine, prompt, 2)
        stand.rest(engine)
        engine.reset_prefix_cache()
        stand.run(engine, prompt, 2)
        assert stand.loaded(engine) >= 5 * stand.chunk

    def test_without_a_prefix_cache_kvhub_is_the_cache(self, stand: Stand) -> None:
        """An engine that keeps nothing itself still hits, also twice at once."""
        engine, prompt = stand.tiered(EngineSetup(prefix_cache=False)), stand.prompt(3 * stand.chunk + 1)
        for _ in range(2):
            names = [engine.submit(prompt, 5), engine.submit([*prompt, 7], 5)]
            stand.check(engine, names[0], prompt, 5)
            stand.check(engine, names[1], [*prompt, 7], 5)
            stand.rest(engine)
        assert stand.loaded(engine) >= 2 * 3 * stand.chunk
