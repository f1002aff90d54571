"""One turn of the conversation: asked of kvhub's engines and of the plain one, measured and compared."""

from __future__ import annotations

import time

import attrs
from harness.metrics import Metrics
from harness.serving import Engine

from demo.compared import CELLS, LOGPROBS, Compared
from demo.deployment import CHUNK_TOKENS, Deployment
from demo.pool import written
from demo.progress import say

HITS, GENERATED, BYTES = "kvhub:hit_tokens_total", "kvhub:generated_hit_tokens_total", "kvhub:bytes_total"
SOURCES = ("engine", "host", "wire", "pool")
HEAD = ("turn", "prompt", "prefill hits*", "generated", "decode hits*", "wire KiB", *CELLS)


@attrs.frozen
class Turn:
    """What one turn showed."""

    number: int
    compared: Compared
    prefill: Metrics
    decode: Metrics
    known: int
    """Tokens that were in the conversation before this turn."""

    def row(self) -> tuple[str, ...]:
        hits = [
            "/".join(f"{there.by(HITS, 'source').get(source, 0):.0f}" for source in SOURCES)
            for there in (self.prefill, self.decode)
        ]
        wire = self.decode.total(BYTES, member="wire", direction="load") / 1024
        return (
            str(self.number),
            str(len(self.compared.answer.prompt)),
            hits[0],
            f"{self.prefill.total(GENERATED):.0f}",
            hits[1],
            f"{wire:.0f}",
            *self.compared.cells(),
        )

    def problems(self, allowed: float) -> list[str]:
        """Why the demo fails because of this turn."""
        found = self.compared.problems(allowed)
        if self.number > 1:
            found += self._problems_of_hits()
        return found

    def _problems_of_hits(self) -> list[str]:
        found = []
        hit = self.prefill.total(HITS, source="pool")
        whole = (self.known - 1) // CHUNK_TOKENS * CHUNK_TOKENS
        if hit < whole:
            found.append(f"prefill took {hit:.0f} tokens from the pool; {whole} of the history are whole chunks there")
        if not self.prefill.total(GENERATED):
            found.append("prefill hit no generated token")
        crossed, new = self.decode.total(HITS, source="wire"), len(self.compared.answer.prompt) - whole
        if not 0 < crossed <= new:
            found.append(f"{crossed:.0f} tokens crossed the wire; what is new are at most {new}")
        return found


def play(run: Deployment, number: int, prompt: list[int], known: int, *, max_tokens: int) -> Turn:
    """Ask all engines for one turn and wait until decode has written it back."""
    for engine in (run.prefill, run.plain):
        engine.forget_prefixes()
    before = run.prefill.metrics(), run.decode.metrics()
    answer = run.front.stream(prompt, max_tokens=max_tokens, logprobs=LOGPROBS)
    cold, warm = (run.plain.stream(prompt, max_tokens=max_tokens, logprobs=LOGPROBS) for _ in range(2))
    whole = (len(prompt) + len(answer.tokens) - 1) // CHUNK_TOKENS
    waited = written(run.pool, whole + 1)  # a tail, too
    after = settled(run.prefill, before[0]), settled(run.decode, before[1])
    turn = Turn(number, Compared(answer, cold, warm), after[0] - before[0], after[1] - before[1], known)
    pooled, generated = turn.prefill.total(HITS, source="pool"), turn.prefill.total(GENERATED)
    say(
        f"turn {number}: of {len(prompt)} prompt tokens prefill took {pooled:.0f} from the pool ({generated:.0f} of "
        f"them generated before) and {turn.decode.total(HITS, source='wire'):.0f} crossed the wire; "
        f"{whole} chunks in the pool after {waited:.1f} s"
    )
    return turn


def settled(engine: Engine, before: Metrics, *, deadline: float = 5.0) -> Metrics:
    """An engine's metrics once they count the request: an engine tells them with its next steps."""
    start = time.monotonic()
    last = engine.metrics()
    while time.monotonic() - start < deadline:
        time.sleep(0.2)
        now = engine.metrics()
        if (now - before).total(HITS) == (last - before).total(HITS) and (now - before).total(
            "kvhub:prompt_tokens_total"
        ):
            return now
        last = now
    return last
