"""The harness on plain engines: forked and served ones answer alike, and wrong context shows."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="needs the engine environment: make engine")

from harness.engine import EngineError, Zygote
from harness.leash import descendants
from harness.outputs import difference, widest_gap
from harness.paths import model
from harness.serving import Engine

pytestmark = pytest.mark.vllm
draw = random.Random(5)
PROMPT = [draw.randrange(6, 350) for _ in range(300)]


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    with Zygote() as one:
        yield one


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-qwen3", "tiny-gemma3", "tiny-mla-dense"])
def test_a_models_output_depends_on_all_of_its_context(zygote: Zygote, tmp_path: Path, name: str) -> None:
    """Else no test with this model could find wrong KV."""
    with zygote.engine(model(name), tmp_path / "log") as engine:
        output = engine.complete(PROMPT, max_tokens=24)
        assert len(set(output.tokens)) > 4
        again = engine.complete(PROMPT, max_tokens=24)
        assert difference(output, again) is None
        assert widest_gap(output, again) < 1e-4
        for changed in (0, 150, 290):
            if name == "tiny-gemma3" and changed < 236:
                continue  # beyond its windows only one layer of six sees it: checked by the next lines
            other = [*PROMPT[:changed], PROMPT[changed] ^ 1, *PROMPT[changed + 1 :]]
            assert widest_gap(output, engine.complete(other, max_tokens=24)) > 1e-2
        other = engine.complete([*reversed(PROMPT[:150]), *PROMPT[150:]], max_tokens=24)
        assert difference(output, other) is not None


def test_a_served_engine_answers_like_a_forked_one(zygote: Zygote, tmp_path: Path) -> None:
    served = Engine("plain", model("tiny-llama"), tmp_path / "served")
    with served, zygote.engine(model("tiny-llama"), tmp_path / "forked") as forked:
        mine = forked.complete(PROMPT, max_tokens=24, logprobs=5)
        served.ready()
        theirs = served.complete(PROMPT, max_tokens=24)
        assert difference(mine, theirs) is None
        assert widest_gap(mine, theirs) < 1e-4
        assert theirs.cached == 0
        assert served.complete(PROMPT, max_tokens=24).cached == 256
        served.forget_prefixes()
        streamed = served.stream(PROMPT, max_tokens=24, logprobs=5)
        assert 0 < streamed.first_token_seconds < streamed.seconds
        assert streamed.cached == 0
        assert difference(mine, streamed) is None
        assert widest_gap(mine, streamed) < 1e-4
        assert served.chat([{"role": "user", "content": "Hello"}], max_tokens=4)["usage"]["completion_tokens"] == 4
        assert served.metrics().total("vllm:prompt_tokens_total") > 900
        pids = served.pids
    assert not set(pids) & set(descendants(1))


def test_requests_come_and_go_by_step(zygote: Zygote, tmp_path: Path) -> None:
    with zygote.engine(model("tiny-llama"), tmp_path / "log") as engine:
        before = engine.holdings()
        alone = engine.complete(PROMPT, max_tokens=20)
        both = engine.run(
            [
                {"prompt": PROMPT, "max_tokens": 20, "at_step": 4, "logprobs": 1},
                {"prompt": PROMPT[:200], "max_tokens": 90, "abort_at_step": 12},
            ]
        )
        assert both[0].tokens == alone.tokens
        assert both[1].finish == "abort"
        after = engine.holdings()
        assert after["blocks"] == before["blocks"] == 0
        assert after["threads"] == before["threads"]
        assert engine.metrics().total("vllm:prompt_tokens_total") > 0


def test_what_an_engine_refuses_is_told(zygote: Zygote, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="max_model_len"):
        zygote.engine(model("tiny-llama"), tmp_path / "log", max_model_len=10**7)
    with zygote.engine(model("tiny-llama"), tmp_path / "log2") as engine:
        with pytest.raises(EngineError, match="AttributeError"):
            engine.ask("no_such_thing")
        engine.kill()
        with pytest.raises(EngineError):
            engine.holdings()
