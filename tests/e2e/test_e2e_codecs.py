"""Chunks that went through a codec: exact ones change nothing, lossy ones change logprobs by a measured amount."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness.outputs import Output, widest_gap

from e2e.asking import NOISE, at_rest, flushed, hits, inside, prompt, same
from e2e.conftest import Start
from kvhub.chunkfile import parse

pytestmark = pytest.mark.vllm
FIRST = prompt(300)
ANSWER = 24
ENCODED = """\
kvhub: 1
chunk_tokens: 64
limits: {{lookup: 5s}}
codecs:
  secret: {{use: aes, key: {{env: KV_KEY}}}}
stores:
  pool: {{use: nfs, root: "{pool}/CODE"}}
roles:
  both: {{store: [{{to: pool, codec: CODEC}}], retrieve: [{{from: pool, deadline: 10s}}]}}
"""


def through(start: Start, codec: str, pool: Path, code: int) -> Output:
    """What an engine answers whose prompt came out of a pool with this codec; full chunks there have its code."""
    root = pool / str(code)
    root.mkdir()
    yaml = ENCODED.replace("CODEC", codec).replace("CODE", str(code))
    engine = start("both", yaml, env={"KV_KEY": "2b" * 32})
    assert engine.complete(FIRST, max_tokens=1).cached == 0
    flushed(engine)
    codes = {parse(path.read_bytes()).codec for path in root.rglob("*.kv")}
    assert code in codes and codes <= {0, code}
    engine.forget_prefixes()
    output = engine.complete(FIRST, max_tokens=ANSWER)
    assert output.cached >= 256 and set(hits(engine)) == {"pool"}
    assert inside(engine, "reports").get("integrity_errors pool", 0) == 0
    at_rest(engine)
    engine.stop()
    return output


def test_exact_codecs_change_neither_tokens_nor_logprobs(start: Start, pool: Path) -> None:
    expected = start().complete(FIRST, max_tokens=ANSWER)
    for codec, code in (("zstd", 1), ("secret", 4)):
        same(expected, through(start, codec, pool, code))


def test_lossy_codecs_change_logprobs_within_a_bound(
    start: Start, pool: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Over the whole vocabulary, up to the first token that differs; and they do change them, or nothing was tested.

    The model's random weights are drawn so that what attention reads decides the next token: it is more sensitive than
    a trained one.  The bounds are three times what was measured, 0.079 and 0.25.
    """
    expected = start().complete(FIRST, max_tokens=ANSWER)
    for codec, code, bound in (("quant/int8", 3, 0.25), ("quant/fp8", 2, 0.75)):
        gap = widest_gap(expected, through(start, codec, pool, code))
        with capsys.disabled():
            print(f"\n{codec}: largest difference of a logprob {gap:.2g}")
        assert 10 * NOISE < gap < bound
