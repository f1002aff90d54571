"""A soak: many requests on a prefill and a decode engine, with everything that goes wrong in a day, in seconds."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from kvhub.testing.engine_driver import EngineDriver

Expected = Callable[[Sequence[int], int], tuple[int, ...]]


@attrs.define
class _Asked:
    """One request of the workload, on its way through the engines."""

    prompt: list[int]
    wanted: int
    legs: list[EngineDriver]
    """Engines that it still has to visit; the last one generates."""
    patience: float
    """Chance per round that the client hangs up."""
    params: Mapping[str, Any] | None = None
    name: str = ""
    at: EngineDriver | None = None


@attrs.frozen
class Soak:
    """A seeded workload: what is asked for is equal for equal seeds; what meets what depends on threads.

    A few long conversations are the stock: a request begins like one of them, of any length, and goes somewhere of its
    own or ends there.  It is sent through prefill and decode, or to one of them alone, and perhaps given up.
    """

    prefill: EngineDriver
    decode: EngineDriver
    expected: Expected
    """The plain twin."""
    requests: int = 500
    seed: int = 0
    vocabulary: int = 60_000
    longest: int = 60
    """Tokens of a prompt."""
    wanted: int = 24
    at_once: int = 12
    chance_of_abort: float = 0.2
    patience: float = 60.0

    def run(self) -> Counter[str]:
        """Play it; AssertionError for a wrong token or an engine that is stuck.  What happened, by name."""
        dice = random.Random(self.seed)
        stock = [[dice.randrange(self.vocabulary) for _ in range(self.longest)] for _ in range(6)]
        told: Counter[str] = Counter()
        left, alive = self.requests, list[_Asked]()
        end = time.monotonic() + self.patience
        while left or alive:
            assert time.monotonic() < end, f"stuck with {left} to come and {[each.name for each in alive]}: {told}"
            while left and len(alive) < self.at_once and dice.random() < 0.7:
                alive.append(self._ask(dice, stock))
                left -= 1
            if dice.random() < 0.02:
                dice.choice((self.prefill, self.decode)).reset_prefix_cache()
            self.prefill.step()
            self.decode.step()
            alive = [each for each in alive if self._goes_on(each, dice, told)]
        return told

    def _ask(self, dice: random.Random, stock: list[list[int]]) -> _Asked:
        base = dice.choice(stock)
        prompt = base[: dice.randrange(1, len(base))]
        prompt += [dice.randrange(self.vocabulary) for _ in range(dice.choice((0, 0, 1, 5, 12)))]
        prompt = prompt[: self.longest]
        legs = dice.choice(([self.prefill, self.decode], [self.prefill, self.decode], [self.decode], [self.prefill]))
        gives_up = dice.random() < self.chance_of_abort
        asked = _Asked(prompt, dice.randrange(1, self.wanted + 1), list(legs), dice.random() ** 3 if gives_up else 0.0)
        self._send(asked)
        return asked

    @staticmethod
    def _send(asked: _Asked) -> None:
        asked.at = asked.legs.pop(0)
        if asked.legs:
            asked.name = asked.at.submit(asked.prompt, 1, params={"do_remote_decode": True})
        else:
            asked.name = asked.at.submit(asked.prompt, asked.wanted, params=asked.params)

    def _goes_on(self, asked: _Asked, dice: random.Random, told: Counter[str]) -> bool:
        assert asked.at is not None
        if dice.random() < asked.patience:
            told[f"aborted while {asked.at.state(asked.name)}"] += 1
            asked.at.abort(asked.name)
            return False
        result = asked.at.result(asked.name)
        if result is None:
            return True
        right = self.expected(asked.prompt, asked.wanted)
        assert result.reason == "length" and result.tokens == right[: len(result.tokens)], (
            f"{asked.name}: {len(asked.prompt)} tokens were answered with {result.tokens}, not {right}"
        )
        if asked.legs:
            told["promised" if result.params else "not promised"] += 1
            asked.params = result.params
            self._send(asked)
            return True
        assert result.tokens == right
        told["answered"] += 1
        return False
