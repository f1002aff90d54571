"""The order of a bench: every store and transport of a role, then its route, then what a file should say."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from kvhub.bench import advice, members, routes
from kvhub.bench.members import Bench, Row
from kvhub.codec import Codec
from kvhub.config import Config
from kvhub.errors import KvhubError
from kvhub.plugins import Registry
from kvhub.rehearsal import namespace_of

MOST_ROUTE = 64
"""Chunks of the prompt that a route is measured with, at most: both hubs hold it in memory."""


@attrs.frozen
class Plan:
    """What to measure."""

    role: str
    seconds: float
    """For all of it, about; longer only where single chunks take long."""
    token_bytes: int
    """KV bytes of a token on one rank, which only the engine knows."""
    prompt: int
    """Tokens that a deadline is to suffice for."""
    prefill: float = 0.0
    """Prompt tokens that the engine computes per second; 0 where that is not known."""


@attrs.frozen
class Report:
    """What came of it."""

    rows: tuple[Row, ...]
    yaml: str
    """The role's suggested `retrieve`, "" where nothing could be measured."""
    lookup: float
    """Seconds that `limits.lookup` should be at least; 0 where nothing was looked up."""


def run(config: Config, plan: Plan, registry: Registry, tell: Callable[[Row], None] = lambda row: None) -> Report:
    """Measure; `tell` hears of each row as it is there.  Never touches a namespace of an engine."""
    role = config.roles[plan.role]
    chosen = [config.members[name] for name in role.members]
    parts = sum(2 if entry.kind == "transport" else 1 for entry in chosen) + 1
    namespace = namespace_of(config.chunk_tokens)
    chunk_bytes = config.chunk_tokens * plan.token_bytes
    codecs = _codecs(config)
    rows: list[Row] = []

    def add(*found: Row) -> None:
        for row in found:
            rows.append(row)
            tell(row)

    for entry in chosen:
        own = [codecs[name] for name in config.encodings.by_store.get(entry.name, ())]
        bench = Bench(entry, namespace, chunk_bytes, plan.seconds / parts, tuple(own), tuple(codecs.values()))
        if entry.kind == "store":
            add(*members.store(bench))
        else:
            add(members.transport(bench, shared=True))
            add(members.transport(bench, shared=False))
    chunks = max(1, min(MOST_ROUTE, plan.prompt // config.chunk_tokens))
    for entry in chosen:
        if entry.kind == "transport":
            add(routes.pulled(config, entry.name, namespace_of(config.chunk_tokens), chunk_bytes, chunks, registry))
    add(routes.retrieve(config, plan.role, namespace_of(config.chunk_tokens), chunk_bytes, chunks, registry))
    said = advice.fragment(
        config, plan.role, rows, token_bytes=plan.token_bytes, prompt=plan.prompt, prefill=plan.prefill
    )
    return Report(tuple(rows), said, advice.lookup(rows))


def _codecs(config: Config) -> dict[str, Codec]:
    """Those that work here; a store whose own does not says so when it is measured without."""
    codecs: dict[str, Codec] = {}
    needed = {name for chain in config.encodings.by_store.values() for name in chain}
    for name, entry in config.encodings.codecs.items():
        try:
            codecs[name] = entry.cls(entry.options, name)
        except KvhubError:
            if name in needed:
                raise
    return codecs
