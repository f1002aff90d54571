"""Opening: builds the members that a role's routes name, and the arena that they share."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import attrs

from kvhub import claims
from kvhub.arena import Arena, slot_bytes_for
from kvhub.builtin.host import HostStore
from kvhub.codec import Codec, Codecs
from kvhub.config import Config
from kvhub.engine import EngineFacts
from kvhub.errors import KvhubError
from kvhub.member import Member
from kvhub.observe import Observer, Reports
from kvhub.tail import Measure
from kvhub.types import MemberContext

if TYPE_CHECKING:
    from kvhub.plugins import Registry


def build_members(
    config: Config, facts: EngineFacts, measure: Measure, incarnation: str, reports: Reports
) -> dict[str, Member]:
    """The members that the routes of `facts.role` name, in the file's order; none is attached yet."""
    role = config.roles.get(facts.role)
    if role is None:
        raise KvhubError(
            f"roles.{facts.role}: no such role in {config.path or 'the configuration'}; "
            f"found {', '.join(config.roles) or 'none'}"
        )
    wanted = {step.member for step in (*role.store, *role.retrieve)}
    wanted |= {name for step in role.retrieve for name in step.promote}
    written = {step.member for step in role.store} | {name for step in role.retrieve for name in step.promote}
    codecs = open_codecs(config, wanted, reports)
    members: dict[str, Member] = {}
    for name, entry in config.members.items():
        if name in wanted:
            context = MemberContext(
                name,
                facts.namespace.digest,
                facts.namespace.json,
                measure.chunk_bytes,
                facts.layout,
                incarnation,
                facts.role,
                name in written,
                partial(_count, reports, name),
                Codecs([codecs[own] for own in config.encodings.by_store.get(name, ())], codecs.values()),
            )
            members[name] = entry.cls(entry.options, context)
    return members


def open_codecs(config: Config, wanted: set[str], reports: Reports) -> dict[str, Codec]:
    """Every codec of the file, by name.  Raises KvhubError for one of the stores `wanted`.

    Others are there to read what is found; one that cannot work (its key is on other machines) is left out and told.
    """
    needed = {codec for store, chain in config.encodings.by_store.items() if store in wanted for codec in chain}
    codecs: dict[str, Codec] = {}
    for name, entry in config.encodings.codecs.items():
        try:
            codecs[name] = entry.cls(entry.options, name)
        except KvhubError as error:
            if name in needed:
                raise
            reports.event("codec.left_out", level="warning", codec=name, problem=str(error))
    return codecs


def in_namespace(facts: EngineFacts, config: Config) -> EngineFacts:
    """The facts with the file's lossy codecs in the namespace: exact chunks and rounded ones never meet.

    All roles count: what one role rounds, another would take for exact and pass on.
    """
    lossy = config.encodings.lossy
    if not lossy:
        return facts
    space = facts.namespace
    extra = (*space.extra, *(("lossy codec", text) for text in lossy))
    return attrs.evolve(facts, namespace=attrs.evolve(space, extra=extra))


def _count(reports: Reports, member: str, name: str, count: int) -> None:
    reports.count(name, count, member=member)


def open_arena(members: dict[str, Member], config: Config, facts: EngineFacts, measure: Measure) -> Arena:
    """The host tier's memory, or a staging arena where the role has no host tier."""
    tiers = [member for member in members.values() if isinstance(member, HostStore)]
    if len(tiers) > 1:
        raise KvhubError(f"roles.{facts.role}: {len(tiers)} host tiers; an engine has one arena, name only one")
    slot_bytes = slot_bytes_for(measure.slot_payload)
    if tiers:
        return tiers[0].open_arena(slot_bytes)
    return Arena(config.limits.staging, slot_bytes, name="limits.staging")


def check_sizes(name: str, member: Member, measure: Measure) -> None:
    """Refuse a member that cannot take this model's chunks, or that claims what it cannot do."""
    claims.check(name, member, HostStore)
    limit = member.capabilities.max_chunk_bytes
    if limit is not None and limit < measure.chunk_bytes:
        raise KvhubError(
            f"{name}: takes chunks of at most {limit} bytes and this model's have {measure.chunk_bytes}; "
            f"lower chunk_tokens or use another store"
        )


def observers(registry: Registry, config: Config) -> list[Observer]:
    """What plugins want to be told; one that raises is left out, since no engine may fail because of an observer."""
    found: list[Observer] = []
    for _, result in registry.each("kvhub_register_observers", config=config.plain):
        if not isinstance(result, Exception):
            found += [observer for observer in result or () if isinstance(observer, Observer)]
    return found
