"""The main job, shown: a conversation on a prefill and a decode engine that share KV through kvhub.

Prefill sends each turn's KV over UCX to decode; decode writes what it received and what it generated to a pool, a
directory or an S3 bucket; the next turn's prefill, whose own memory is empty, takes the history from there.  Every
turn is compared with a plain engine's.  Exits with 1 when a token differs, when a later turn hits less than the pool
holds, when a logprob differs by more than the engine's own runs do, or when wrong KV goes unnoticed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from harness.paths import ROOT

from demo.compared import allowed, footnote
from demo.control import control
from demo.deployment import Deployment, deployed
from demo.frame import parser, shown
from demo.progress import say, table
from demo.talk import ANSWER, RESTARTED_TURN, prompts
from demo.turns import HEAD, SOURCES, Turn, play

CHAT = [
    {"role": "user", "content": "How does a prefill engine share what it computed?"},
    {"role": "assistant", "content": "It offers the keys and values to the decode engine."},
    {"role": "user", "content": "And the next turn?"},
]


def converse(run: Deployment, turns: int) -> list[Turn]:
    """Play the turns."""
    said: list[int] = []
    played: list[Turn] = []
    for number, prompt, known in prompts(turns, said):
        if number == RESTARTED_TURN:
            run.restart_prefill()
        played.append(play(run, number, prompt, known, max_tokens=ANSWER))
        said += played[-1].compared.answer.tokens
    return played


def check_chat(run: Deployment) -> list[str]:
    """The chat endpoint once, through both legs."""
    mine, theirs = (served.chat(CHAT, max_tokens=24) for served in (run.front, run.plain))
    texts = [one["choices"][0]["message"]["content"] for one in (mine, theirs)]
    say(f"chat endpoint: {'equal' if texts[0] == texts[1] else 'DIFFERENT'} answers, {mine['usage']}")
    return [] if texts[0] == texts[1] else [f"the chat answers differ: {texts[0]!r} and {texts[1]!r}"]


def report(played: Sequence[Turn], most: float) -> str:
    """The table and what its columns mean."""
    return f"""
{table(HEAD, [turn.row() for turn in played])}

* Prompt tokens by where they came from: {"/".join(SOURCES)}.  Prefill's own prefix cache was emptied before every
  turn and its process restarted before turn {RESTARTED_TURN}; it retrieves from the pool only.  `generated`: how many
  of its hits decode had generated.
{footnote(most)}
"""


def main() -> int:
    arguments = parser(__doc__, 4)
    arguments.add_argument(
        "--pool", choices=("nfs", "s3"), default="nfs", help="a directory, or a real S3 server's bucket"
    )
    given = arguments.parse_args()

    def playing() -> tuple[str, list[str]]:
        with deployed(given.model, given.pool) as run:
            played = converse(run, max(given.turns, 4))
            most = allowed([turn.compared for turn in played])
            problems = [f"turn {turn.number}: {why}" for turn in played for why in turn.problems(most)]
            problems += check_chat(run)
            problems += control(run, list(played[-1].compared.answer.prompt), max_tokens=ANSWER)
        return report(played, most), problems

    return shown(playing, ROOT / ".demo")


if __name__ == "__main__":
    sys.exit(main())
