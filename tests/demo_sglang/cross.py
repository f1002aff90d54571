"""One pool for two engines, shown: a conversation whose turns go to vLLM and SGLang by turns.

Each turn's engine, whose own caches are empty, takes the history from the pool, where the other engine put it.  Every
turn is compared with a plain engine of the same kind.  Exits with 1 when a token differs, when a turn hits less than
the pool holds, when a logprob differs by more than the engines' own runs do, or when wrong KV goes unnoticed.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import attrs
from demo.pool import Directory
from demo.progress import say, table
from demo.turns import FACTOR, NOISE
from harness.outputs import Output, widest_gap
from harness.paths import ROOT, model
from harness.processes import NotReady
from harness.serving import Engine, HttpError, connector
from harness.sglang import SglangEngine, backend

from demo_sglang.asking import CELLS, CHUNK, YAML, Asked, Compared, Sglang, Vllm, allowed, control, plainly, written

FIRST_PROMPT, LATER_PROMPT, ANSWER = 700, 180, 100
RESTARTED_TURN = 3
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


@contextmanager
def deployed(model_name: str) -> Iterator[Both]:
    """Start everything, wait until it serves, and stop it at the end."""
    shutil.rmtree(HOME, ignore_errors=True)
    pool = Directory(HOME / "pool")
    pool.root.mkdir(parents=True)
    config = HOME / "kvhub.yaml"
    config.write_text(YAML.format(chunk=CHUNK, pool=pool.options))
    weights = model(model_name)

    def vllm(name: str, *, shared: bool) -> Engine:
        transfer = connector(config, "both") if shared else None
        return Engine(
            name, weights, HOME / f"{name}.log", transfer=transfer, block_size=BLOCK_TOKENS, kv_bytes=128 << 20
        )

    def sglang(name: str, *, shared: bool) -> SglangEngine:
        storage = backend(config, "both") if shared else None
        return SglangEngine(name, weights, HOME / f"{name}.log", storage=storage)

    engines = (
        vllm("vllm", shared=True),
        sglang("sglang", shared=True),
        vllm("vllm-plain", shared=False),
        sglang("sglang-plain", shared=False),
    )
    say(f"starting two vLLM and two SGLang engines (logs and pool in {HOME.relative_to(ROOT)}/)")
    with ExitStack() as running:
        for engine in engines:
            running.enter_context(engine)
        for engine in engines:
            engine.ready()
            say(f"{engine.name} serves at {engine.url}")
        one, other, plain, plain_other = engines
        assert isinstance(one, Engine) and isinstance(plain, Engine)
        assert isinstance(other, SglangEngine) and isinstance(plain_other, SglangEngine)
        yield Both((Vllm(one), Sglang(other)), (Vllm(plain), Sglang(plain_other)), pool)
        say("stopping")


def converse(run: Both, turns: int) -> list[Turn]:
    """Play the turns, continued from token ids."""
    draw = random.Random(11)
    said: list[int] = []
    played: list[Turn] = []
    for number in range(1, turns + 1):
        known = len(said)
        asked = run.shared[(number - 1) % 2]
        if number == RESTARTED_TURN:
            asked.restart()
        said += [draw.randrange(6, 350) for _ in range(LATER_PROMPT if said else FIRST_PROMPT)]
        asked.forget()
        answer, hit = asked.ask(said, ANSWER)
        pairs = [plainly(plain, said, ANSWER) for plain in run.plain]
        cold, warm = pairs[(number - 1) % 2]
        between = widest_gap(pairs[0][0], pairs[1][0])
        played.append(Turn(number, asked.name, hit, known, Compared(answer, cold, warm), between))
        said += answer.tokens
        waited = written(run.pool, (len(said) - 1) // CHUNK)
        say(
            f"turn {number}: of {len(answer.prompt)} prompt tokens {asked.name} took {hit} from the pool; the history "
            f"had {known}; stored after {waited:.1f} s"
        )
    return played


def report(played: list[Turn], most: float) -> str:
    """The table and what its columns mean."""
    head = ("turn", "engine", "prompt", "from the pool*", "history", *CELLS, "vLLM to SGLang")
    return f"""
{table(head, [turn.row() for turn in played])}

* Tokens.  The engine's own caches were emptied before its turn; vLLM was started again before turn
  {RESTARTED_TURN}.  The turn before was stored by the other engine.
  A logprob may differ by {most:.1e}: {FACTOR:g} times the most that the plain engines' own two runs, cold and
  prefix-cached, differ, and at least {NOISE:.0e}.
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="tiny-llama", help="one of the tiny models (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=4, help="at least 2 (default: %(default)s)")
    given = parser.parse_args()
    start = time.monotonic()
    try:
        with deployed(given.model) as run:
            played = converse(run, max(given.turns, 2))
            most = allowed([turn.compared for turn in played])
            problems = [f"turn {turn.number}: {why}" for turn in played for why in turn.problems(most)]
            last = played[-1].compared.answer
            for asked, plain in zip(run.shared, run.plain, strict=True):
                expected: Output = plainly(plain, last.prompt, ANSWER)[0]
                problems += control(asked, expected, run.pool, last.prompt, ANSWER)
                for name in run.pool.chunks():
                    (run.pool.root / name).unlink()
                # The next control needs right chunks again.
                asked.forget()
                asked.ask(last.prompt, 1)
                written(run.pool, (len(last.prompt) - 1) // CHUNK)
    except (NotReady, HttpError, OSError) as why:
        print(f"FAILED {why}\nThe engines' logs are in {HOME}/", file=sys.stderr)
        return 1
    print(report(played, most))
    for problem in problems:
        print(f"FAILED {problem}")
    print(f"{'FAILED' if problems else 'OK'} in {time.monotonic() - start:.0f} s", flush=True)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
