"""The laws of all contracts as a list: what each protects, its level, how many there are.

    python -m kvhub.testing.laws > docs/contracts.md

Levels: `works` is what a member is for; `safe` is that nothing wrong, late or broken ever reaches an engine; `fast` is
that nobody who calls a member waits for it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from kvhub.testing import under
from kvhub.testing.guard import LEVELS, laws_of, level_of

_KINDS = {
    "store": "StoreContract",
    "transport": "TransportContract",
    "engine": "EngineContract",
}
_HEAD = """# What the contracts protect

Each law is a test of `kvhub.testing`; the sentence is the first line of its docstring. `kvhub.testing.laws` writes this
page and a test holds it to the code. [Write a plugin](write-a-plugin.md) says how to run them.

| level | what it means |
| --- | --- |
| works | what the member is for: bytes come back as they were given, every answer is true |
| safe | nothing wrong, late, damaged or abandoned ever reaches an engine, and nothing is left behind |
| fast | nobody who calls the member waits for it |

A run with `--kvhub-level safe` has the laws of `works` and `safe`. Without it all laws run.
"""
_FAULTS = """## Laws under faults

`--kvhub-faults one` runs each law once more with one of these faults between it and the member, another fault for
another law; `all` with every one. `pytest --kvhub-use` does the former unless told otherwise; a test class says
`faults = "one"` or `"all"`. A batch meets the fault at its first try and is tried again past it, as a hub's next
request would be; what comes then must be as the law says. Under engine laws the pool and the wire are wrapped.
"""


def contract(kind: str) -> type:
    """The contract class for `store`, `transport` or `engine`."""
    import kvhub.testing

    found: type = getattr(kvhub.testing, _KINDS[kind])
    return found


def laws(kind: str) -> dict[str, Callable[..., Any]]:
    """The laws of one contract by name, by level and then in the order of their files."""
    found = laws_of(contract(kind))
    return dict(sorted(found.items(), key=lambda item: LEVELS.index(level_of(item[1]))))


def sentence(law: Callable[..., Any]) -> str:
    """What a law protects, in one sentence."""
    return (inspect.getdoc(law) or "").partition("\n")[0]


def page() -> str:
    """docs/contracts.md."""
    parts = [_HEAD]
    for kind, name in _KINDS.items():
        found = laws(kind)
        parts.append(f"## {name}: {len(found)} laws\n")
        parts.append("| law | level | what it protects |\n| --- | --- | --- |")
        for law, function in found.items():
            said = sentence(function).replace("|", "\\|")
            parts.append(f"| `{law.removeprefix('test_')}` | {level_of(function)} | {said} |")
        parts.append("")
    return "\n".join([*parts, *_under_faults()])


def _under_faults() -> list[str]:
    """The section about faults, ending in what has no meaning under which and why."""
    parts = [_FAULTS, "| fault | what it does to a batch |\n| --- | --- |"]
    parts += [f"| `{name}` | {fault.does} |" for name, fault in under.FAULTS.items()]
    parts += ["", "| contract | law | has no meaning under | since |\n| --- | --- | --- | --- |"]
    for kind, name in _KINDS.items():
        for law, function in laws(kind).items():
            why: dict[str, list[str]] = {}
            for fault, reason in under.reasons(function).items():
                why.setdefault(reason, []).append(f"`{fault}`")
            parts += [
                f"| {name} | `{law.removeprefix('test_')}` | {', '.join(faults)} | {reason} |"
                for reason, faults in why.items()
            ]
    return [*parts, ""]


if __name__ == "__main__":
    print(page(), end="")
