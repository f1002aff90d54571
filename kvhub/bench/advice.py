"""From figures to what a file should say: deadlines, and from which engine on a source is worth asking."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kvhub.bench.members import Row
from kvhub.config import Config
from kvhub.roles import HOST, LONGEST_DEADLINE

SLACK = 2.0
"""A deadline is for what is unusual; twice what is usual leaves room for other work on the machine."""
LEAST_DEADLINE = 0.1
LOADS = ("load", "pull, sockets")


def fragment(config: Config, role: str, rows: Sequence[Row], *, token_bytes: int, prompt: int, prefill: float) -> str:
    """YAML of the role's `retrieve` with suggested deadlines and conditions; "" where nothing was measured.

    `prompt` tokens of `token_bytes` each are to be loaded within a deadline; `prefill` is the tokens that the engine
    computes per second, 0 where that is not known.
    """
    measured = {row.member: row for row in rows if row.what in LOADS and row.rate}
    if not measured:
        return ""
    lines = [f"# A prompt of {prompt} tokens has {_size(prompt * token_bytes)} of KV at {token_bytes} bytes a token."]
    items = []
    for item in config.plain["roles"][role].get("retrieve", []):
        fields: dict[str, Any] = dict(item) if isinstance(item, Mapping) else {"from": item}
        name = fields["from"]
        entry = config.members.get(name)
        if name in measured and entry is not None and entry.use != HOST:
            told, fields = _step(fields, measured[name], entry.kind == "store", token_bytes, prompt, prefill, config)
            lines.append(f"# {name}: {told}")
        items.append(_flow(fields if len(fields) > 1 else name))
    head = [f"    retrieve: [{items[0]}"] if len(items) == 1 else ["    retrieve:"]
    body = [f"      - {item}" for item in items] if len(items) > 1 else []
    return "\n".join([*lines, "roles:", f"  {role}:", *(head if body else [f"{head[0]}]"]), *body]) + "\n"


def _step(
    fields: dict[str, Any], row: Row, is_store: bool, token_bytes: int, prompt: int, prefill: float, config: Config
) -> tuple[str, dict[str, Any]]:
    seconds = deadline(row, prompt * token_bytes)
    even = row.rate / token_bytes
    told = f"worth it while the engine computes fewer than {even:.0f} prompt tokens per second"
    found = dict(fields) | {"deadline": _time(seconds)}
    if not is_store:
        return told, found
    when = dict(fields.get("when", {})) | {"faster": True}
    if prefill:
        least = fewest(row, config.chunk_tokens, token_bytes, prefill)
        if least is None:
            told += f", and yours computes {prefill:.0f}: leave it out of the route"
        elif least > 1:
            when["missing_chunks"] = max(least, int(when.get("missing_chunks", 1)))
    return told, found | {"when": when}


def deadline(row: Row, size: int) -> float:
    """Seconds for loading `size` bytes: twice what was measured, of two digits."""
    seconds = SLACK * (row.worst + size / row.rate)
    return min(max(_up(seconds), LEAST_DEADLINE), LONGEST_DEADLINE)


def fewest(row: Row, chunk_tokens: int, token_bytes: int, prefill: float) -> int | None:
    """From how many missing chunks on loading takes less time than computing them; None where it never does."""
    gain = chunk_tokens / prefill - chunk_tokens * token_bytes / row.rate
    return None if gain <= 0 else max(1, math.ceil(row.first / gain))


def lookup(rows: Iterable[Row]) -> float:
    """Seconds that a lookup should wait: twice the longest that was seen of one key; 0 where nothing was."""
    return _up(SLACK * max((row.worst for row in rows if row.what == "find" and row.rate), default=0.0))


def _up(seconds: float) -> float:
    """Rounded up to two digits."""
    if seconds <= 0:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(seconds)) - 1)
    return math.ceil(seconds / unit) * unit


def _time(seconds: float) -> str:
    return f"{seconds:.0f}s" if seconds >= 10 else f"{1000 * seconds:.0f}ms"


def _size(count: int) -> str:
    return f"{count / (1 << 30):.2f} GiB" if count >= 1 << 30 else f"{count / (1 << 20):.1f} MiB"


def _flow(value: Any) -> str:
    """YAML in one line; texts are names, times and words that need no quotes."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_flow(item) for item in value) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
