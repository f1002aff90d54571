"""Reading answers and metrics, and telling them apart."""

from __future__ import annotations

from harness.metrics import Metrics
from harness.outputs import Output, difference, widest_gap

TEXT = """# HELP kvhub:tokens_total tokens
# TYPE kvhub:tokens_total counter
kvhub:tokens_total{engine="0",source="wire"} 64.0
kvhub:tokens_total{engine="0",source="pool \\"a\\""} 128.0
vllm:plain 1e+03 1700000000
"""
COMPLETION = {
    "choices": [
        {
            "prompt_token_ids": [1, 2],
            "token_ids": [7, 8],
            "finish_reason": "length",
            "logprobs": {
                "tokens": ["token_id:7", "token_id:8"],
                "token_logprobs": [-0.5, -0.25],
                "top_logprobs": [{"token_id:7": -0.5, "token_id:9": -1.5}, {"token_id:3": -0.125}],
            },
        }
    ],
    "usage": {"prompt_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}},
    "kv_transfer_params": {"peer": "x"},
}


def test_metrics_are_read_with_their_labels() -> None:
    metrics = Metrics.parse(TEXT)
    assert metrics.total("kvhub:tokens_total") == 192
    assert metrics.total("kvhub:tokens_total", source="wire") == 64
    assert metrics.by("kvhub:tokens_total", "source") == {"wire": 64, 'pool \\"a\\"': 128}
    assert metrics.total("vllm:plain") == 1000
    assert metrics.total("absent") == 0
    later = Metrics.parse(TEXT.replace("64.0", "96.0"))
    assert (later - metrics).total("kvhub:tokens_total") == 32


def test_a_completion_becomes_an_output() -> None:
    output = Output.of_completion(COMPLETION)
    assert output.prompt == (1, 2)
    assert output.tokens == (7, 8)
    assert output.logprobs == ({7: -0.5, 9: -1.5}, {3: -0.125, 8: -0.25})
    assert output.cached == 1
    assert output.params == {"peer": "x"}


def test_outputs_are_held_against_each_other_up_to_where_they_part() -> None:
    one = Output((1,), (7, 8, 9), ({7: -0.5}, {8: -0.25}, {9: -0.1}))
    near = Output((1,), (7, 8, 9), ({7: -0.5}, {8: -0.3125}, {9: -0.1}))
    other = Output((1,), (7, 5, 9), ({7: -0.5}, {5: -0.25, 8: -1.25}, {9: -3.0}))
    assert difference(one, near) is None
    assert widest_gap(one, near) == 0.0625
    assert difference(one, other) == "token 1 is 8 and 5"
    assert widest_gap(one, other) == 1.0
    assert difference(one, Output((1,), (7,))) == "3 tokens and 1 tokens"[:-7]
