"""Nearest names: what a message offers when a word is unknown."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(word: str, known: Iterable[str]) -> str:
    """The known name that `word` most looks like, or "" when none comes near."""
    by_plain = {name.lower().replace("-", "_"): name for name in known}
    close = difflib.get_close_matches(word.lower().replace("-", "_"), by_plain, n=1, cutoff=0.6)
    return by_plain[close[0]] if close else ""


def hint(word: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown word: the nearest name, else all of them."""
    names = sorted(set(known))
    if close := nearest(word, names):
        return f"did you mean '{close}'?"
    return f"known: {', '.join(names)}" if names else "none is known here"
