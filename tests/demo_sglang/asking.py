"""One way to ask both engines, and what a turn showed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

import attrs
from demo.compared import LOGPROBS, verdicts
from demo.control import falsify
from demo.pool import Directory
from demo.progress import say
from harness.outputs import Output, difference
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


def laid_out(home: Path) -> tuple[Directory, Path]:
    """An empty pool below `home`, and a configuration on it."""
    shutil.rmtree(home, ignore_errors=True)
    pool = Directory(home / "pool")
    pool.root.mkdir(parents=True)
    config = home / "kvhub.yaml"
    config.write_text(YAML.format(chunk=CHUNK, pool=pool.options))
    return pool, config


@contextmanager
def started(*engines: Engine | SglangEngine) -> Iterator[None]:
    """Start all, wait until they serve, and stop them at the end."""
    with ExitStack() as running:
        for engine in engines:
            running.enter_context(engine)
        for engine in engines:
            engine.ready()
            say(f"{engine.name} serves at {engine.url}")
        yield
        say("stopping")


def plainly(plain: Asked, prompt: Sequence[int], made: int) -> tuple[Output, Output]:
    """The plain engine's answers, cold and warm."""
    plain.forget()
    return plain.ask(prompt, made)[0], plain.ask(prompt, made)[0]


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
        found += verdicts(asked.name, hit, where, falsified=falsified)
    return found
