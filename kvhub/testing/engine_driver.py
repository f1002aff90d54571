"""`EngineDriver`: what the engine laws do with an engine, fake or real, one step at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import attrs

from kvhub.errors import KvhubError
from kvhub.hub import Hub
from kvhub.keys import Context


class Unable(KvhubError):
    """Raised by a driver factory for a set-up that this engine does not have; the law is then left out, loudly."""


@attrs.frozen
class EngineSetup:
    """What a law wants of an engine beyond its role; the defaults are those of an engine with room for everything."""

    blocks: int = 512
    """KV space."""
    step_tokens: int = 64
    """Most tokens per step: longer prompts are computed in pieces."""
    prefix_cache: bool = True
    """The engine's own."""
    drafts: int = 0
    """Speculative tokens per step."""
    layout: str = ""
    """"" the usual one, "other" one with the same content in another order, "opaque" one that may not be cut."""
    revision: str = "r1"
    """Of the weights: another one computes other KV."""


@attrs.frozen
class Result:
    """How a request ended."""

    tokens: tuple[int, ...]
    """Generated tokens."""
    reason: str
    """`length` or `abort`."""
    params: Mapping[str, Any] | None = None
    """What the client is to hand to the decode leg."""


class EngineDriver(Protocol):
    """One engine with kvhub in it (or, as the plain twin, without), driven by the test's thread."""

    @property
    def hub(self) -> Hub:
        """The engine's hub.  Raises for the plain twin."""

    @property
    def preemptions(self) -> int:
        """How many times a request lost its blocks so far."""

    def submit(
        self,
        prompt: Sequence[int],
        max_tokens: int = 1,
        context: Context | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> str:
        """Queue a request; its name.  It generates exactly `max_tokens` tokens, greedily, unless it is aborted."""

    def step(self) -> bool:
        """One scheduler step, also when there is nothing to compute; whether the engine has reason for another."""

    def abort(self, name: str) -> None:
        """The client is gone.  Allowed in every state, also after the end and for unknown names."""

    def state(self, name: str) -> str:
        """`waiting`, `loading`, `running`, `preempted`, `ended` (result there, something still held) or `gone`."""

    def result(self, name: str) -> Result | None:
        """None while the request runs."""

    def kv(self, name: str) -> tuple[bytes, ...]:
        """Bytes of the blocks that a request has now, in order.  Raises Unable where they cannot be read."""

    def reset_prefix_cache(self) -> None:
        """Forget every cached block that no request uses."""

    def counts(self) -> Mapping[str, int]:
        """Everything that must be zero when no request is alive: requests, blocks, copies, leases, orders, promises."""

    def close(self) -> None:
        """Shut the engine down, with requests alive or not; idempotent."""


class DriverFactory(Protocol):
    """The fixture `driver_factory`: starts an engine.  Without a configuration it is the plain twin, with no kvhub."""

    def __call__(self, config: Mapping[str, Any] | None, role: str, setup: EngineSetup) -> EngineDriver: ...
