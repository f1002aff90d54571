"""What an engine answered, in one form for every way of asking, and how two answers differ."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class Output:
    """One finished request."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    logprobs: tuple[Mapping[int, float], ...] = ()
    """Per generated token, the logprob of each token id that was asked for: the chosen one is among them."""
    finish: str | None = None
    cached: int = 0
    """Prompt tokens that the engine says it did not compute."""
    params: Mapping[str, Any] | None = None
    """`kv_transfer_params` of the answer."""
    seconds: float = 0.0
    first_token_seconds: float = 0.0

    @classmethod
    def of_json(cls, told: Mapping[str, Any]) -> Output:
        """From a forked engine's answer."""
        logprobs = tuple({int(token): value for token, value in one.items()} for one in told.get("logprobs") or ())
        return cls(
            prompt=tuple(told["prompt"]),
            tokens=tuple(told["tokens"]),
            logprobs=logprobs,
            finish=told.get("finish"),
            cached=told.get("cached") or 0,
            params=told.get("params"),
            seconds=told.get("seconds", 0.0),
            first_token_seconds=told.get("first_token_seconds", 0.0),
        )

    @classmethod
    def of_completion(cls, told: Mapping[str, Any], prompt: Sequence[int] = ()) -> Output:
        """From an answer to `/v1/completions` asked with `return_token_ids` and, for logprobs,
        `return_tokens_as_token_ids`."""
        choice = told["choices"][0]
        return dataclasses.replace(
            cls(tuple(choice.get("prompt_token_ids") or prompt), ()).extended(told),
            params=told.get("kv_transfer_params"),
        )

    def extended(self, event: Mapping[str, Any]) -> Output:
        """With what one event of a completion's stream adds (a whole answer is one event)."""
        usage = event.get("usage") or {}
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or self.cached
        if not event["choices"]:
            return dataclasses.replace(self, cached=cached)
        choice = event["choices"][0]
        given = choice.get("logprobs") or {}
        chosen = list(zip(given.get("tokens") or (), given.get("token_logprobs") or (), strict=True))
        top = given.get("top_logprobs") or [None] * len(chosen)
        logprobs = tuple(
            {_token(text): value for text, value in {**(more or {}), token: logprob}.items()}
            for (token, logprob), more in zip(chosen, top, strict=True)
        )
        return dataclasses.replace(
            self,
            tokens=self.tokens + tuple(choice.get("token_ids") or ()),
            logprobs=self.logprobs + logprobs,
            finish=choice.get("finish_reason") or self.finish,
            cached=cached,
        )


def _token(text: str) -> int:
    return int(text.removeprefix("token_id:"))


def widest_gap(one: Output, other: Output) -> float:
    """Largest difference of a logprob that both have, up to the first token that differs (that one included)."""
    widest = 0.0
    for at, (mine, theirs) in enumerate(zip(one.logprobs, other.logprobs, strict=False)):
        widest = max([widest, *(abs(mine[token] - theirs[token]) for token in mine.keys() & theirs.keys())])
        if one.tokens[at] != other.tokens[at]:
            break
    return widest


def difference(one: Output, other: Output) -> str | None:
    """Where the generated tokens of two outputs part, as a sentence; None when they are equal."""
    if one.tokens == other.tokens:
        return None
    for at, (mine, theirs) in enumerate(zip(one.tokens, other.tokens, strict=False)):
        if mine != theirs:
            return f"token {at} is {mine} and {theirs}"
    return f"{len(one.tokens)} tokens and {len(other.tokens)}"
