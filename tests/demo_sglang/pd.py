"""The main job on SGLang, shown: a conversation on a prefill and a decode engine that share KV through a pool.

The prefill engine computes each turn's prompt and stores it; the decode engine takes it from the pool, generates, and
writes prompt and generated tokens back; the next turn's prefill, whose own memory is empty, takes the history from
there.  Every turn is compared with a plain engine's.  Exits with 1 when a token differs, when a leg hits less
than the pool holds, when a logprob differs by more than the engine's own runs do, or when wrong KV goes unnoticed.
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
from harness.paths import ROOT, model
from harness.processes import NotReady
from harness.serving import HttpError
from harness.sglang import SglangEngine, backend

from demo_sglang.asking import CELLS, CHUNK, YAML, Compared, Sglang, allowed, control, plainly, written

FIRST_PROMPT, LATER_PROMPT, ANSWER = 700, 180, 100
RESTARTED_TURN = 3
HOME = ROOT / ".demo" / "sglang"


@attrs.frozen
class Turn:
    """What one turn showed."""

    number: int
    prefill: int
    """Prompt tokens that prefill took from the pool."""
    decode: int
    """And decode, beyond what its own memory had."""
    own: int
    """Prompt tokens that decode still had."""
    generated: int
    """Whole chunks' tokens of the history that decode had generated."""
    known: int
    compared: Compared

    @property
    def whole(self) -> int:
        """Tokens of the prompt in whole chunks, but for the last token, which is always computed."""
        return (len(self.compared.answer.prompt) - 1) // CHUNK * CHUNK

    def row(self) -> tuple[str, ...]:
        return (
            str(self.number), str(len(self.compared.answer.prompt)), str(self.prefill), str(self.generated),
            f"{self.own}/{self.decode}", *self.compared.cells(),
        )  # fmt: skip

    def problems(self, most: float) -> list[str]:
        found = self.compared.problems(most)
        history = (self.known - 1) // CHUNK * CHUNK if self.known else 0
        if self.prefill < history:
            found.append(f"prefill took {self.prefill} tokens from the pool; {history} of the history are whole chunks")
        if self.own + self.decode < self.whole:
            found.append(f"decode had {self.own} and took {self.decode} tokens; {self.whole} are whole chunks there")
        if self.known and not self.generated:
            found.append("no generated token came back to prefill")
        return found


@attrs.frozen
class Deployment:
    """What runs."""

    prefill: Sglang
    decode: Sglang
    plain: Sglang
    pool: Directory


@contextmanager
def deployed(model_name: str) -> Iterator[Deployment]:
    """Start everything, wait until it serves, and stop it at the end."""
    shutil.rmtree(HOME, ignore_errors=True)
    pool = Directory(HOME / "pool")
    pool.root.mkdir(parents=True)
    config = HOME / "kvhub.yaml"
    config.write_text(YAML.format(chunk=CHUNK, pool=pool.options))
    weights = model(model_name)
    # Two host memory layouts: what one writes the other converts.
    prefill = SglangEngine(
        "prefill", weights, HOME / "prefill.log", storage=backend(config, "both"), layout="page_first_direct"
    )
    decode = SglangEngine("decode", weights, HOME / "decode.log", storage=backend(config, "both"), layout="layer_first")
    plain = SglangEngine("plain", weights, HOME / "plain.log")
    say(f"starting three SGLang engines (logs and pool in {HOME.relative_to(ROOT)}/)")
    with ExitStack() as running:
        for engine in (prefill, decode, plain):
            running.enter_context(engine)
        for engine in (plain, prefill, decode):
            engine.ready()
            say(f"{engine.name} serves at {engine.url}")
        yield Deployment(Sglang(prefill), Sglang(decode), Sglang(plain), pool)
        say("stopping")


def converse(run: Deployment, turns: int) -> list[Turn]:
    """Play the turns, continued from token ids."""
    draw = random.Random(11)
    said: list[int] = []
    played: list[Turn] = []
    given = 0
    for number in range(1, turns + 1):
        known = len(said)
        if number == RESTARTED_TURN:
            run.prefill.restart()
        said += [draw.randrange(6, 350) for _ in range(LATER_PROMPT if said else FIRST_PROMPT)]
        run.prefill.forget()
        first, hit = run.prefill.ask(said, 1)
        written(run.pool, len(said) // CHUNK)
        answer, decoded = run.decode.ask(said, ANSWER)
        cold, warm = plainly(run.plain, said, ANSWER)
        own = answer.cached - decoded
        # Whole chunks of the history behind the last prompt hold generated tokens, and they came back.
        made = max(hit - given, 0) if known else 0
        turn = Turn(number, hit, decoded, own, made, known, Compared(answer, cold, warm))
        assert first.tokens == answer.tokens[:1], "the two legs disagree about the first token"
        played.append(turn)
        given = len(said)
        said += answer.tokens
        waited = written(run.pool, (len(said) - 1) // CHUNK)
        say(
            f"turn {number}: of {len(answer.prompt)} prompt tokens prefill took {hit} from the pool ({made} behind the "
            f"last prompt); decode had {own} and took {decoded}; stored after {waited:.1f} s"
        )
    return played


def report(played: list[Turn], most: float) -> str:
    """The table and what its columns mean."""
    head = ("turn", "prompt", "prefill, pool*", "generated", "decode, own/pool", *CELLS)
    return f"""
{table(head, [turn.row() for turn in played])}

* Tokens that prefill took from the pool.  Its own memory was emptied before every turn and its process restarted
  before turn {RESTARTED_TURN}.  `generated`: how many of them lie behind the prompt of the turn before.
  A logprob may differ by {most:.1e}: {FACTOR:g} times the most that the plain engine's own two runs, cold and
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
            last = played[-1].compared
            problems += control(run.prefill, last.cold, run.pool, last.answer.prompt, ANSWER)
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
