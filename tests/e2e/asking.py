"""What the end-to-end tests share: prompts, questions to engines, and comparisons."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from harness.engine import ForkedEngine
from harness.outputs import Output, difference, widest_gap

NOISE = 2e-5
"""What two runs of one fp32 engine differ by when a prompt is cut into other pieces."""


def prompt(tokens: int, seed: int = 1) -> list[int]:
    """Random token ids of the tiny models' vocabulary."""
    draw = random.Random(seed)
    return [draw.randrange(6, 350) for _ in range(tokens)]


def inside(engine: ForkedEngine, function: str, **arguments: Any) -> Any:
    """Call a function of `e2e.inside` in the engine's process."""
    return engine.ask("call", path=f"e2e.inside:{function}", arguments=arguments)


def flushed(engine: ForkedEngine) -> None:
    """Wait for background stores."""
    assert inside(engine, "flush")


def at_rest(engine: ForkedEngine) -> None:
    """Nothing is leased, promised, under way or held when no request is alive."""
    counts = inside(engine, "baseline")
    assert not any(counts.values()), counts
    assert engine.holdings()["blocks"] == 0


def same(one: Output, other: Output, *, noise: float = NOISE) -> None:
    """Equal tokens, and logprobs within the engine's own noise."""
    assert difference(one, other) is None
    assert widest_gap(one, other) <= noise


def hits(engine: ForkedEngine) -> dict[str, int]:
    """Hit tokens by source so far."""
    told = inside(engine, "reports")
    return {name.split()[1]: n for name, n in told.items() if name.startswith("hit_tokens ") and n}


def gained(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    """What was added between two `hits`."""
    return {name: n - before.get(name, 0) for name, n in after.items() if n != before.get(name, 0)}


def turn(prefill: ForkedEngine, decode: ForkedEngine, tokens: Sequence[int], *, max_tokens: int = 40) -> Output:
    """One request through both legs, as the front sends it."""
    first = prefill.complete(tokens, max_tokens=1, params={"do_remote_decode": True})
    return decode.complete(tokens, max_tokens=max_tokens, params=dict(first.params or {}) or None)
