"""One pool for two engines, shown: a conversation whose turns go to vLLM and SGLang by turns.

Each turn's engine, whose own caches are empty, takes the history from the pool, where the other engine put it.  Every
turn is compared with a plain engine of the same kind.  Exits with 1 when a token differs, when a turn hits less than
the pool holds, when a logprob differs by more than the engines' own runs do, or when wrong KV goes unnoticed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
from demo.compared import CELLS, Compared, allowed, footnote
from demo.frame import parser, shown
from demo.pool import Directory, written
from demo.progress import say, table
from demo.talk import ANSWER, RESTARTED_TURN, prompts
from harness.outputs import widest_gap
from harness.paths import ROOT, model
from harness.serving import Engine, connector
from harness.sglang import SglangEngine, backend

from demo_sglang.asking import CHUNK, Asked, Sglang, Vllm, control, laid_out, plainly, started

BLOCK_TOKENS = 32
HOME = ROOT / ".demo" / "cross"


@attrs.frozen
class Turn:
    """What one turn showed."""

    number: int
    engine: str
    hit: int
    known: int
    compared: Compared
    between: float
    """The widest gap between the two plain engines on this turn's prompt."""

    def row(self) -> tuple[str, ...]:
        return (
            str(self.number), self.engine, str(len(self.compared.answer.prompt)), str(self.hit), str(self.known),
            *self.compared.cells(), f"{self.between:.1e}",
        )  # fmt: skip

    def problems(self, most: float) -> list[str]:
        found = self.compared.problems(most)
        whole = (self.known - 1) // CHUNK * CHUNK if self.known else 0
        if self.hit < whole:
            found.append(f"{self.hit} tokens came from the pool; {whole} of the history are whole chunks there")
        return found


@attrs.frozen
class Both:
    """The engines that run: with kvhub, and plain ones, in the order of the turns."""

    shared: tuple[Asked, Asked]
    plain: tuple[Asked, Asked]
    pool: Directory


def vllm_engines(home: Path, config: Path, weights: Path) -> tuple[Engine, Engine]:
    """vLLM with kvhub, and a plain one."""
    shared, plain = (
        Engine(name, weights, home / f"{name}.log", transfer=transfer, block_size=BLOCK_TOKENS, kv_bytes=128 << 20)
        for name, transfer in (("vllm", connector(config, "both")), ("vllm-plain", None))
    )
    return shared, plain


@contextmanager
def deployed(model_name: str) -> Iterator[Both]:
    """Start everything, wait until it serves, and stop it at the end."""
    pool, config = laid_out(HOME)
    weights = model(model_name)
    one, plain = vllm_engines(HOME, config, weights)
    other = SglangEngine("sglang", weights, HOME / "sglang.log", storage=backend(config, "both"))
    plain_other = SglangEngine("sglang-plain", weights, HOME / "sglang-plain.log")
    say(f"starting two vLLM and two SGLang engines (logs and pool in {HOME.relative_to(ROOT)}/)")
    with started(one, other, plain, plain_other):
        yield Both((Vllm(one), Sglang(other)), (Vllm(plain), Sglang(plain_other)), pool)


def converse(run: Both, turns: int, restarted: int) -> list[Turn]:
    """Play the turns; before turn `restarted` its engine is started again."""
    said: list[int] = []
    played: list[Turn] = []
    for number, prompt, known in prompts(turns, said):
        asked = run.shared[(number - 1) % 2]
        if number == restarted:
            asked.restart()
        asked.forget()
        answer, hit = asked.ask(prompt, ANSWER)
        pairs = [plainly(plain, prompt, ANSWER) for plain in run.plain]
        cold, warm = pairs[(number - 1) % 2]
        between = widest_gap(pairs[0][0], pairs[1][0])
        played.append(Turn(number, asked.name, hit, known, Compared(answer, cold, warm), between))
        said += answer.tokens
        waited = written(run.pool, (len(said) - 1) // CHUNK)
        say(
            f"turn {number}: of {len(prompt)} prompt tokens {asked.name} took {hit} from the pool; the history had "
            f"{known}; stored after {waited:.1f} s"
        )
    return played


def judged(run: Both, turns: int, restarted: int = RESTARTED_TURN) -> tuple[str, list[str]]:
    """The conversation and a control of each engine: a table, and every problem."""
    played = converse(run, turns, restarted)
    most = allowed([turn.compared for turn in played])
    problems = [f"turn {turn.number}: {why}" for turn in played for why in turn.problems(most)]
    last = played[-1].compared.answer
    for asked, plain in zip(run.shared, run.plain, strict=True):
        problems += control(asked, plainly(plain, last.prompt, ANSWER)[0], run.pool, last.prompt, ANSWER)
        run.pool.empty()
        # The next control needs right chunks again.
        asked.forget()
        asked.ask(last.prompt, 1)
        written(run.pool, (len(last.prompt) - 1) // CHUNK)
    return report(played, most), problems


def report(played: list[Turn], most: float) -> str:
    """The table and what its columns mean."""
    head = ("turn", "engine", "prompt", "from the pool*", "history", *CELLS, "vLLM to SGLang")
    return f"""
{table(head, [turn.row() for turn in played])}

* Tokens.  The engine's own caches were emptied before its turn; vLLM was started again before turn
  {RESTARTED_TURN}, if there was one.  The turn before was stored by the other engine.
{footnote(most)}
"""


def main() -> int:
    given = parser(__doc__, 2).parse_args()

    def playing() -> tuple[str, list[str]]:
        with deployed(given.model) as run:
            return judged(run, max(given.turns, 2))

    return shown(playing, HOME)


if __name__ == "__main__":
    sys.exit(main())
