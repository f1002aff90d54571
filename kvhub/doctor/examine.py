"""The whole examination: configuration, machine, plugins, engines, then every member of the role."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import attrs

from kvhub.codec import Codec
from kvhub.config import Config, load
from kvhub.doctor import canary, installed, machine, stores, transports
from kvhub.doctor.bounded import bounded, of_error
from kvhub.errors import ConfigError, KvhubError
from kvhub.findings import Finding, Grade, failed, passed, warned
from kvhub.plugins import Registry
from kvhub.roles import HOST
from kvhub.settings import MemberConfig

MACHINE, FILE = "machine", "file"


def status(findings: Iterable[Finding]) -> int:
    """0 when all pass, 1 when the worst is a warning, 2 when something fails."""
    grades = {finding.grade for finding in findings}
    return 2 if Grade.FAIL in grades else 1 if Grade.WARN in grades else 0


def examine(
    source: str, registry: Registry, *, role: str | None = None, found: machine.Machine | None = None
) -> Iterator[Finding]:
    """Every finding, as it is made; `found` is the machine, looked at where it is not given."""
    config: Config | None = None
    try:
        config = load(source, registry, role=role)
    except ConfigError as error:
        for problem in error.problems:
            said = failed("configuration", problem, "correct it; `kvhub check` tells when it is right")
            yield attrs.evolve(said, where=FILE)
    if config is not None:
        roles = ", ".join(config.roles if role is None else [role])
        yield attrs.evolve(passed("configuration", f"{source} is right, for {roles}"), where=FILE)
        for warning in config.warnings:
            said = warned("configuration", warning, "change it, unless it is meant")
            yield attrs.evolve(said, where=FILE)
    chosen = _members(config, role) if config is not None else ()
    for finding in machine.findings(found or machine.look(), config, chosen):
        yield attrs.evolve(finding, where=MACHINE)
    yield attrs.evolve(canary.finding(), where=MACHINE)
    for finding in installed.findings(registry, _named(config)):
        yield attrs.evolve(finding, where=MACHINE)
    if config is not None:
        yield from _each(config, role, chosen)


def _members(config: Config, role: str | None) -> tuple[str, ...]:
    roles = [config.roles[role]] if role is not None else list(config.roles.values())
    return tuple(dict.fromkeys(name for each in roles for name in each.members))


def _named(config: Config | None) -> set[str]:
    """Plugins that the file names."""
    if config is None:
        return set()
    uses = [entry.use for entry in config.members.values()]
    uses += [entry.use for entry in config.encodings.codecs.values()]
    return {use.partition("/")[0] for use in uses}


def _each(config: Config, role: str | None, chosen: Sequence[str]) -> Iterator[Finding]:
    codecs, told = _codecs(config)
    yield from told
    roles = [config.roles[role]] if role is not None else list(config.roles.values())
    for name in chosen:
        entry = config.members[name]
        if entry.use == HOST:
            continue
        writes = any(
            name in [step.member for step in each.store] or any(name in step.promote for step in each.retrieve)
            for each in roles
        )
        for finding in bounded("start", _work(entry, roles[0].name, writes, config, codecs)):
            yield attrs.evolve(finding, where=f"{entry.kind}s.{name}")


def _work(
    entry: MemberConfig, role: str, writes: bool, config: Config, codecs: dict[str, Codec]
) -> Callable[[], Iterable[Finding]]:
    if entry.kind == "transport":
        return partial(transports.findings, entry, role, config.chunk_tokens)
    own = [codecs[name] for name in config.encodings.by_store.get(entry.name, ()) if name in codecs]
    return partial(stores.findings, entry, role, writes, config.chunk_tokens, own, tuple(codecs.values()))


def _codecs(config: Config) -> tuple[dict[str, Codec], list[Finding]]:
    """Every codec of the file that can work here, and how each is."""
    codecs: dict[str, Codec] = {}
    told: list[Finding] = []
    for name, entry in config.encodings.codecs.items():
        try:
            codecs[name] = entry.cls(entry.options, name)
            finding = passed("codec", f"{entry.use} works")
        except KvhubError as error:
            finding = of_error("codec", error)
        told.append(attrs.evolve(finding, where=f"codecs.{name}"))
    return codecs, told
