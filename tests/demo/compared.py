"""An engine's answer held against a plain engine's, and how far apart they may be."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
from harness.outputs import Output, difference, widest_gap

LOGPROBS = 20
NOISE = 2e-5
"""Two runs of one fp32 engine differ by rounding when a prompt is cut into other pieces; what is below this is that,
even where the plain engine's own two runs happen to agree better."""
FACTOR = 4.0
"""Prefill, decode and the wire cut prompts in more ways than the two plain runs do."""
CELLS = ("TTFT ms", "plain", "plain, cached", "tokens", "max |dlogprob|", "plain's own")


@attrs.frozen
class Compared:
    """An answer beside the plain engine's two."""

    answer: Output
    cold: Output
    """The plain engine with an empty prefix cache."""
    warm: Output
    """The plain engine with the whole prompt in its prefix cache."""

    @property
    def gap(self) -> float:
        return widest_gap(self.cold, self.answer)

    @property
    def own(self) -> float:
        return widest_gap(self.cold, self.warm)

    def problems(self, allowed: float) -> list[str]:
        """Why this answer is not the plain engine's."""
        found = []
        if (where := difference(self.cold, self.answer)) is not None:
            found.append(f"tokens differ from the plain engine's: {where}")
        if not all(len(one.logprobs) == len(one.tokens) > 0 for one in (self.answer, self.cold, self.warm)):
            found.append("an answer has no logprobs: nothing was compared")
        if self.gap > allowed:
            found.append(f"a logprob differs by {self.gap:.1e}; the engines' own runs allow {allowed:.1e}")
        return found

    def cells(self) -> tuple[str, ...]:
        """What `CELLS` names."""
        milliseconds = [one.first_token_seconds * 1e3 for one in (self.answer, self.cold, self.warm)]
        return (
            *(f"{one:.0f}" for one in milliseconds),
            "equal" if difference(self.cold, self.answer) is None else "DIFFER",
            f"{self.gap:.1e}",
            f"{self.own:.1e}",
        )


def allowed(compared: Sequence[Compared]) -> float:
    """The most that a logprob may differ by."""
    return max(NOISE, FACTOR * max(one.own for one in compared))


def footnote(most: float) -> str:
    """What the table's columns of logprobs mean."""
    return (
        f"  A logprob may differ by {most:.1e}: {FACTOR:g} times the most that a plain engine's own two runs, cold\n"
        f"  and prefix-cached, differ, and at least {NOISE:.0e}."
    )


def verdicts(name: str, hit: float, where: str | None, *, falsified: bool) -> list[str]:
    """What a control shows that is wrong: with wrong KV in the pool the same comparison must fail, else it proves
    nothing.  `where` the answer differs from the plain engine's."""
    state, found = "falsified" if falsified else "right", []
    if not hit:
        found.append(f"the control of {name} with {state} chunks took nothing from the pool")
    if falsified and where is None:
        found.append(f"falsified KV gave {name} the plain engine's tokens: the comparison of this run proves nothing")
    if not falsified and where is not None:
        found.append(f"the control of {name} with right chunks differs: {where}")
    return found
