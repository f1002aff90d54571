"""The main job, shown: a conversation on a prefill and a decode engine that share KV through kvhub.

Prefill sends each turn's KV over UCX to decode; decode writes what it received and what it generated to a pool, a
directory or an S3 bucket; the next turn's prefill, whose own memory is empty, takes the history from there.  Every
turn is compared with a plain engine's.  Exits with 1 when a token differs, when a later turn hits less than the pool
holds, when a logprob differs by more than the engine's own runs do, or when wrong KV goes unnoticed.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Sequence

from harness.processes import NotReady
from harness.serving import HttpError

from demo.control import control
from demo.deployment import Deployment, deployed
from demo.progress import say, table
from demo.turns import FACTOR, HEAD, NOISE, SOURCES, Turn, play

FIRST_PROMPT, LATER_PROMPT, ANSWER = 700, 180, 100
RESTARTED_TURN = 3
CHAT = [
    {"role": "user", "content": "How does a prefill engine share what it computed?"},
    {"role": "assistant", "content": "It offers the keys and values to the decode engine."},
    {"role": "user", "content": "And the next turn?"},
]


def converse(run: Deployment, turns: int) -> list[Turn]:
    """Play the turns, continued from token ids: text that is tokenised again may not give the same ids."""
    draw = random.Random(11)
    said: list[int] = []
    played: list[Turn] = []
    for number in range(1, turns + 1):
        known = len(said)
        if number == RESTARTED_TURN:
            run.restart_prefill()
        said += [draw.randrange(6, 350) for _ in range(LATER_PROMPT if said else FIRST_PROMPT)]
        played.append(play(run, number, list(said), known, max_tokens=ANSWER))
        said += played[-1].kvhub.tokens
    return played


def check_chat(run: Deployment) -> list[str]:
    """The chat endpoint once, through both legs."""
    mine, theirs = (served.chat(CHAT, max_tokens=24) for served in (run.front, run.plain))
    texts = [one["choices"][0]["message"]["content"] for one in (mine, theirs)]
    say(f"chat endpoint: {'equal' if texts[0] == texts[1] else 'DIFFERENT'} answers, {mine['usage']}")
    return [] if texts[0] == texts[1] else [f"the chat answers differ: {texts[0]!r} and {texts[1]!r}"]


def report(played: Sequence[Turn], allowed: float) -> str:
    """The table and what its columns mean."""
    return f"""
{table(HEAD, [turn.row() for turn in played])}

* Prompt tokens by where they came from: {"/".join(SOURCES)}.  Prefill's own prefix cache was emptied before every
  turn and its process restarted before turn {RESTARTED_TURN}; it retrieves from the pool only.  `generated`: how many
  of its hits decode had generated.
  A logprob may differ by {allowed:.1e}: {FACTOR:g} times the most that the plain engine's own two runs, cold and
  prefix-cached, differ, and at least {NOISE:.0e}.
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="tiny-llama", help="one of the tiny models (default: %(default)s)")
    parser.add_argument(
        "--pool", choices=("nfs", "s3"), default="nfs", help="a directory, or a real S3 server's bucket"
    )
    parser.add_argument("--turns", type=int, default=4, help="at least 4 (default: %(default)s)")
    given = parser.parse_args()
    start = time.monotonic()
    try:
        with deployed(given.model, given.pool) as run:
            played = converse(run, max(given.turns, 4))
            allowed = max(NOISE, FACTOR * max(turn.own_gap for turn in played))
            problems = [f"turn {turn.number}: {why}" for turn in played for why in turn.problems(allowed)]
            problems += check_chat(run)
            problems += control(run, list(played[-1].kvhub.prompt), max_tokens=ANSWER)
    except (NotReady, HttpError, OSError) as why:
        print(f"FAILED {why}\nThe engines' logs are in .demo/", file=sys.stderr)
        return 1
    print(report(played, allowed))
    for problem in problems:
        print(f"FAILED {problem}")
    print(f"{'FAILED' if problems else 'OK'} in {time.monotonic() - start:.0f} s", flush=True)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
