"""Whether two answers are the same answer, and the proof that this comparison can fail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from peer.rows import Sample

FLOOR = 1e-4
"""fp32 logprobs of two runs of one engine differ by about 1e-5 with the shape of the last chunk."""


def difference(one: Sample, other: Sample) -> float:
    """Largest |difference| of logprobs over the tokens that both list; infinite if the first tokens differ."""
    if one.token != other.token:
        return float("inf")
    return max(abs(one.logprobs[token] - other.logprobs[token]) for token in one.logprobs if token in other.logprobs)


def mismatches(reference: Sample, samples: Mapping[str, Sequence[Sample]], tolerance: float) -> list[str]:
    """A line per sample that is not what the plain engine answers to the same prompt."""
    found = []
    for name, several in samples.items():
        for sample in several:
            apart = difference(reference, sample)
            if apart > tolerance:
                found.append(
                    f"{name}: token {sample.token} ({sample.cached} tokens from the cache), the plain engine says "
                    f"{reference.token}; logprobs differ by {apart:.2g}, allowed {tolerance:.2g}"
                )
    return found


def blind(references: Sequence[Sample], altered: Sample, tolerance: float) -> str | None:
    """Why the comparison proves nothing, or None.

    All prompts end with the same tokens, and only these are computed when warm; so the answer to another prompt is
    what this prompt would get with that one's KV.  `altered` is the first prompt with one block changed.
    """
    for number, other in enumerate(references[1:], 1):
        if difference(references[0], other) <= 10 * tolerance:
            return f"prompts 0 and {number} get the same answer: the model does not look at what the cache serves"
    if difference(references[0], altered) <= 10 * tolerance:
        return "the answer does not change with one block of the prompt: one wrong block would pass unseen"
    return None
