"""The main job on SGLang, shown: a conversation on a prefill and a decode engine that share KV through a pool.

The prefill engine computes each turn's prompt and stores it; the decode engine takes it from the pool, generates, and
writes prompt and generated tokens back; the next turn's prefill, whose own memory is empty, takes the history from
there.  Every turn is compared with a plain engine's.  Exits with 1 when a token differs, when a leg hits less
than the pool holds, when a logprob differs by more than the engine's own runs do, or when wrong KV goes unnoticed.
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
from harness.paths import ROOT, model
from harness.sglang import SglangEngine, backend

from demo_sglang.asking import CHUNK, Sglang, control, laid_out, plainly, started

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


def engines(home: Path, config: Path, weights: Path) -> tuple[SglangEngine, SglangEngine, SglangEngine]:
    """Prefill, decode and a plain engine.  Two host memory layouts: what one writes the other converts."""
    return (
        SglangEngine(
            "prefill", weights, home / "prefill.log", storage=backend(config, "both"), layout="page_first_direct"
        ),
        SglangEngine("decode", weights, home / "decode.log", storage=backend(config, "both"), layout="layer_first"),
        SglangEngine("plain", weights, home / "plain.log"),
    )


@contextmanager
def deployed(model_name: str) -> Iterator[Deployment]:
    """Start everything, wait until it serves, and stop it at the end."""
    pool, config = laid_out(HOME)
    prefill, decode, plain = engines(HOME, config, model(model_name))
    say(f"starting three SGLang engines (logs and pool in {HOME.relative_to(ROOT)}/)")
    with started(plain, prefill, decode):
        yield Deployment(Sglang(prefill), Sglang(decode), Sglang(plain), pool)


def converse(run: Deployment, turns: int) -> list[Turn]:
    """Play the turns."""
    said: list[int] = []
    played: list[Turn] = []
    given = 0
    for number, prompt, known in prompts(turns, said):
        if number == RESTARTED_TURN:
            run.prefill.restart()
        run.prefill.forget()
        first, hit = run.prefill.ask(prompt, 1)
        written(run.pool, len(prompt) // CHUNK)
        answer, decoded = run.decode.ask(prompt, ANSWER)
        cold, warm = plainly(run.plain, prompt, ANSWER)
        own = answer.cached - decoded
        # Whole chunks of the history behind the last prompt hold generated tokens, and they came back.
        made = max(hit - given, 0) if known else 0
        assert first.tokens == answer.tokens[:1], "the two legs disagree about the first token"
        played.append(Turn(number, hit, decoded, own, made, known, Compared(answer, cold, warm)))
        given = len(prompt)
        said += answer.tokens
        waited = written(run.pool, (len(said) - 1) // CHUNK)
        say(
            f"turn {number}: of {len(prompt)} prompt tokens prefill took {hit} from the pool ({made} behind the last "
            f"prompt); decode had {own} and took {decoded}; stored after {waited:.1f} s"
        )
    return played


def judged(run: Deployment, turns: int) -> tuple[str, list[str]]:
    """The conversation and its control: a table, and every problem."""
    played = converse(run, turns)
    most = allowed([turn.compared for turn in played])
    problems = [f"turn {turn.number}: {why}" for turn in played for why in turn.problems(most)]
    last = played[-1].compared
    return report(played, most), problems + control(run.prefill, last.cold, run.pool, last.answer.prompt, ANSWER)


def report(played: list[Turn], most: float) -> str:
    """The table and what its columns mean."""
    head = ("turn", "prompt", "prefill, pool*", "generated", "decode, own/pool", *CELLS)
    return f"""
{table(head, [turn.row() for turn in played])}

* Tokens that prefill took from the pool.  Its own memory was emptied before every turn and its process restarted
  before turn {RESTARTED_TURN}.  `generated`: how many of them lie behind the prompt of the turn before.
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
