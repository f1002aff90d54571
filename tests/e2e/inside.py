"""Asked inside an engine's process, through `ForkedEngine.ask("call", ...)`."""

from __future__ import annotations

import time
from typing import Any


def _side(llm: Any) -> Any:
    return llm.llm_engine.engine_core.engine_core.scheduler.connector.scheduler


def counts(llm: Any) -> dict[str, int]:
    """Open work of the session and its hub."""
    return dict(_side(llm).counts())


def reports(llm: Any) -> dict[str, int]:
    """The hub's counters, `name member reason` -> amount."""
    return {" ".join(filter(None, label)): n for label, n in _side(llm).session.hub.reports.counts().items()}


def flush(llm: Any, seconds: float = 20.0) -> bool:
    """Wait until what was to be stored in the background is stored."""
    return bool(_side(llm).session.hub.flush(seconds))


def baseline(llm: Any, seconds: float = 10.0) -> dict[str, int]:
    """Open work once it has come to rest, or after `seconds`."""
    end = time.monotonic() + seconds
    while any(counts(llm).values()) and time.monotonic() < end:
        time.sleep(0.02)
    return counts(llm)


def spoil(llm: Any) -> int:
    """Turn round the bytes of every chunk in the arena, behind everyone's back; how many."""
    hub = _side(llm).session.hub
    keys = hub.arena.keys()
    for key in keys:
        slot = hub.arena.lease(key)
        held = hub.arena.held(slot)
        view = hub.arena.region.slot(slot, held.length)
        third = held.length // 3
        view[:] = bytes(view[third:]) + bytes(view[:third])
        hub.arena.release((slot,))
    return len(keys)


def layout(llm: Any) -> str:
    """The kind of layout that the canary proved."""
    return str(_side(llm).session.hub.facts.layout.kind)


def reset(llm: Any) -> bool:
    """Empty the engine's prefix cache and, through the connector, the host tier."""
    return bool(llm.reset_prefix_cache(reset_connector=True))


def fulfil(llm: Any, promise: str) -> None:
    """What a decode says that needs nothing more of a promise."""
    _side(llm).session.hub.offers.fulfilled(promise)
