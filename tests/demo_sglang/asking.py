"""One way to ask both engines, and what a turn showed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

import attrs
from demo.control import falsify
from demo.pool import Directory
from demo.progress import say
from demo.turns import FACTOR, LOGPROBS, NOISE
from harness.outputs import Output, difference, widest_gap
from harness.serving import Engine
from harness.sglang import PAGE, Answer, SglangEngine

YAML = """\
kvhub: 1
chunk_tokens: {chunk}
limits: {{lookup: 5s, staging: 128MiB}}   # a busy laptop must not turn hits into misses here
stores:
  pool: {pool}
roles:
  both: {{store: [pool], retrieve: [{{from: pool, deadline: 10s}}]}}
"""
CHUNK = PAGE


class Asked(Protocol):
    """An engine as the demos see it."""

    name: str

    def forget(self) -> None:
        """Empty the engine's own caches."""

    def ask(self, prompt: Sequence[int], made: int) -> tuple[Output, int]:
        """An answer, and how many of its prompt tokens came from the pool."""

    def restart(self) -> None:
        """Stop it and start it again."""


@attrs.frozen
class Vllm:
    """vLLM with or without kvhub."""

    engine: Engine

    @property
    def name(self) -> str:
        return self.engine.name

    def forget(self) -> None:
        self.engine.forget_prefixes()

    def ask(self, prompt: Sequence[int], made: int) -> tuple[Output, int]:
        # Tokens that vLLM did not compute: its own cache was emptied, so that they are the pool's.
        answer = self.engine.stream(prompt, max_tokens=made, logprobs=LOGPROBS)
        return answer, answer.cached

    def restart(self) -> None:
        _restart(self.engine)


@attrs.frozen
class Sglang:
    """SGLang with or without kvhub."""

    engine: SglangEngine

    @property
    def name(self) -> str:
        return self.engine.name

    def forget(self) -> None:
        self.engine.forget_prefixes()

    def ask(self, prompt: Sequence[int], made: int) -> tuple[Answer, int]:
        answer = self.engine.generate(prompt, max_tokens=made, logprobs=LOGPROBS, stream=True)
        return answer, answer.storage

    def restart(self) -> None:
        _restart(self.engine)


def _restart(engine: Engine | SglangEngine) -> None:
    say(f"stopping {engine.name} and starting it again: its memory is empty now")
    engine.stop()
    engine.start()
    say(f"{engine.name} serves again after {engine.ready():.0f} s")


@attrs.frozen
class Compared:
    """An engine's answer beside the plain engine's two, computed and from its own prefix cache."""

    answer: Output
    cold: Output
    warm: Output

    @property
    def gap(self) -> float:
        return widest_gap(self.cold, self.answer)

    @property
    def own(self) -> float:
        return widest_gap(self.cold, self.warm)

    def problems(self, allowed: float) -> list[str]:
        """Why this answer is not the plain engine's."""
        found = []
        if (where := difference(self.cold, self.answer)) is not None:
            found.append(f"tokens differ from the plain engine's: {where}")
        if not all(len(one.logprobs) == len(one.tokens) > 0 for one in (self.answer, self.cold, self.warm)):
            found.append("an answer has no logprobs: nothing was compared")
        if self.gap > allowed:
            found.append(f"a logprob differs by {self.gap:.1e}; the engines' own runs allow {allowed:.1e}")
        return found

    def cells(self) -> tuple[str, ...]:
        milliseconds = [one.first_token_seconds * 1e3 for one in (self.answer, self.cold, self.warm)]
        return (
            *(f"{one:.0f}" for one in milliseconds),
            "equal" if difference(self.cold, self.answer) is None else "DIFFER",
            f"{self.gap:.1e}",
            f"{self.own:.1e}",
        )


CELLS = ("TTFT ms", "plain", "plain, cached", "tokens", "max |dlogprob|", "plain's own")


def allowed(compared: Sequence[Compared]) -> float:
    """The most that a logprob may differ by."""
    return max(NOISE, FACTOR * max(one.own for one in compared))


def plainly(plain: Asked, prompt: Sequence[int], made: int) -> tuple[Output, Output]:
    """The plain engine's answers, cold and warm."""
    plain.forget()
    return plain.ask(prompt, made)[0], plain.ask(prompt, made)[0]


def written(pool: Directory, whole: int, *, deadline: float = 30.0) -> float:
    """Wait until the pool holds so many whole chunks; seconds that took."""
    start = time.monotonic()
    while len(pool.chunks()) < whole:
        if time.monotonic() - start > deadline:
            say(f"after {deadline:g} s the pool holds {len(pool.chunks())} objects; {whole} chunks were due")
            break
        time.sleep(0.05)
    return time.monotonic() - start


def control(asked: Asked, expected: Output, pool: Directory, prompt: Sequence[int], made: int) -> list[str]:
    """Ask with right and with falsified chunks in the pool: the comparison must tell them apart."""
    found = []
    for falsified in (False, True):
        if falsified:
            for name in pool.chunks():
                falsify(pool, name)
        asked.forget()
        answer, hit = asked.ask(prompt, made)
        where = difference(expected, answer)
        state = "falsified" if falsified else "right"
        say(f"control, {asked.name}: {hit} tokens of {state} KV from the pool, {where or 'tokens are equal'}")
        if not hit:
            found.append(f"the control of {asked.name} with {state} chunks took nothing from the pool")
        if falsified and where is None:
            found.append(f"falsified KV gave {asked.name} the plain engine's tokens: this run proves nothing")
        if not falsified and where is not None:
            found.append(f"the control of {asked.name} with right chunks differs: {where}")
    return found
