"""The conversation that every demo plays: prompts of random tokens, each behind all that was said before."""

from __future__ import annotations

import random
from collections.abc import Iterator

FIRST_PROMPT, LATER_PROMPT, ANSWER = 700, 180, 100
RESTARTED_TURN = 3
"""Before this turn the engine that takes the history is started again: nothing of it is left in its memory."""


def prompts(turns: int, said: list[int]) -> Iterator[tuple[int, list[int], int]]:
    """Turn, prompt, and how much of it was there before.  Who plays appends each answer to `said`.

    Continued from token ids: text that is tokenised again may not give the same ids.
    """
    draw = random.Random(11)
    for number in range(1, turns + 1):
        known = len(said)
        said += [draw.randrange(6, 350) for _ in range(LATER_PROMPT if said else FIRST_PROMPT)]
        yield number, list(said), known
