"""Which LoRA adapter a request's `extra_key` names, and whether that may be believed.

SGLang appends an adapter's id to the `extra_key` that a client gave, and only that string reaches the page hashes.  Ids
of adapters that are named at the start follow from their names and paths, so that a client without an adapter can write
one.  Requests are therefore watched as they are made: once one without an adapter carries an adapter's id, SGLang's own
tree mixes the two, and nothing of that adapter is kept any more.
"""

from __future__ import annotations

import threading
from pathlib import Path

from kvhub.weights import adapter_identity


class Adapters:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, str | None] = {}

    def loaded(self, number: str, name: str | None, path: str | None) -> None:
        """The engine has an adapter of this id.  Its files are read here, as the engine has just done."""
        identity = adapter_identity(name or "", Path(path)) if path else None
        with self._lock:
            before = self._known.setdefault(number, identity)
            if before != identity:
                self._known[number] = None

    def made(self, extra_key: str | None, number: str | None) -> bool:
        """A request has this final `extra_key` and adapter id; False when that cost an adapter its trust."""
        with self._lock:
            if number is not None:
                # One that came without files: its id is known from now on, its content is not.
                self._known.setdefault(number, None)
                return True
            named = [known for known in self._known if extra_key is not None and known in extra_key]
            spoilt = [known for known in named if self._known[known] is not None]
            for known in spoilt:
                self._known[known] = None
            return not spoilt

    def split(self, extra_key: str) -> tuple[str | None, str | None] | None:
        """Identity of the adapter (None: the base model) and what the client gave before it; None where neither may be
        kept."""
        with self._lock:
            named = [known for known in self._known if known in extra_key]
            if not named:
                return None, extra_key
            # Behind an id there may be more, an elastic cluster's size for instance: that is not understood here.
            identity = self._known[named[0]] if len(named) == 1 and extra_key.endswith(named[0]) else None
            return (identity, extra_key.removesuffix(named[0]) or None) if identity is not None else None
