"""Role -> two tuples of bound steps, decided once when the hub opens; the path then loops over tuples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from kvhub import names
from kvhub.config import Config, RoleConfig, Step
from kvhub.errors import ConfigError, PluginError
from kvhub.member import Member
from kvhub.roles import SAVE_DEADLINE
from kvhub.routes import readers, writers
from kvhub.transport import Transport
from kvhub.yamlfile import below


@attrs.frozen
class BoundStep:
    """A step with its member: all that the path needs of it."""

    name: str
    member: Member
    deadline: float
    """Seconds from the submission of a batch to giving it up."""
    uses: int = 1
    """Storing: only chunks that were seen this many times."""
    prefix_chunks: int = 0
    """Storing: only the first so many chunks of a prompt; 0 for all."""
    part: str = ""
    """Storing: only `prompt` or only `generated` chunks; "" for both."""
    back: bool = False
    """Storing: not before the arena is about to lose the chunk."""
    faster: float = 0.0
    """Retrieving: only where loading is so many times as fast as computing, as measured; 0 for always."""
    missing_chunks: int = 1
    """Retrieving: asked only when at least so many chunks are missing."""
    promote: tuple[str, ...] = ()
    """Retrieving: members of `Route.promotions` that get a copy of what was found here."""
    is_arena: bool = False
    """The member is the hub's own arena: nothing is submitted to it."""
    is_transport: bool = False


@attrs.frozen
class Route:
    """Where one role stores and retrieves, in order."""

    role: str
    store: tuple[BoundStep, ...]
    retrieve: tuple[BoundStep, ...]
    write_back: frozenset[str]
    promotions: tuple[BoundStep, ...] = ()
    """Every store that some retrieve step promotes to; also those that `store` does not name."""


def bind(config: Config, role: str, members: Mapping[str, Member], hooks: Any = None) -> Route:
    """The route of `role` over `members`, which must be attached: their capabilities are read here.

    A plugin's `kvhub_make_router(config, members)` may return a Route of its own; it may leave out and reorder, but
    not reach a member that the role's lists do not name.  Raises ConfigError for a route that can do nothing, and
    PluginError for what a hook did wrong.
    """
    chosen = config.roles.get(role)
    if chosen is None:
        raise ConfigError(
            [f"roles.{role}: this role is not in the file; {names.hint(role, config.roles)}"], where=config.path
        )
    missing = [name for name in chosen.members if name not in members]
    if missing:
        raise ConfigError([f"roles.{role}: member '{name}' was not built" for name in missing], where=config.path)
    route = _built_in(chosen, members)
    if problems := _problems(config, chosen, members):
        raise ConfigError(problems, where=config.path)
    custom = _from_hook(config, members, hooks)
    if custom is None:
        return route
    return _checked(custom, route, members)


def _built_in(role: RoleConfig, members: Mapping[str, Member]) -> Route:
    targets = dict.fromkeys(name for step in role.retrieve for name in step.promote)
    deadlines = {step.member: step for step in role.store}
    return Route(
        role=role.name,
        store=tuple(_bound(step, members) for step in role.store),
        retrieve=tuple(_bound(step, members) for step in role.retrieve),
        write_back=role.write_back,
        promotions=tuple(_bound(deadlines.get(name) or Step(name, SAVE_DEADLINE), members) for name in targets),
    )


def _bound(step: Step, members: Mapping[str, Member]) -> BoundStep:
    member = members[step.member]
    return BoundStep(
        name=step.member,
        member=member,
        deadline=step.deadline,
        uses=step.uses,
        prefix_chunks=step.prefix_chunks,
        part=step.part,
        back=step.write == "back",
        faster=step.faster,
        missing_chunks=step.missing_chunks,
        promote=step.promote,
        is_arena=member.capabilities.arena,
        is_transport=isinstance(member, Transport),
    )


def _problems(config: Config, role: RoleConfig, members: Mapping[str, Member]) -> list[str]:
    """What only the members' real capabilities can tell."""
    problems: list[str] = []
    for index, step in enumerate(role.retrieve):
        claims = members[step.member].capabilities
        path = below(f"roles.{role.name}.retrieve", index)
        if claims.arena or isinstance(members[step.member], Transport):
            continue
        writing = writers(config.roles, step.member)
        if not writing and not (claims.persistent and claims.shared):
            problems.append(
                f"{path}: no role stores to '{step.member}', and it is not both persistent and shared: it stays empty"
            )
        elif writing and role.name not in writing and not claims.shared:
            others = ", ".join(writing)
            problems.append(
                f"{path}: '{step.member}' is not shared, so {role.name} never sees what {others} stores there"
            )
    for index, step in enumerate(role.store):
        claims = members[step.member].capabilities
        path = below(f"roles.{role.name}.store", index)
        if step.codec and not claims.codecs:
            problems.append(f"{path}.codec: '{step.member}' keeps chunks as they are: its plugin takes no codecs")
        if claims.arena or isinstance(members[step.member], Transport):
            continue
        reading = readers(config.roles, step.member)
        if role.name not in reading and not claims.shared:
            others = ", ".join(reading) or "no role"
            problems.append(
                f"{path}: '{step.member}' is not shared, so {others} never sees what {role.name} stores there"
            )
    return problems


def _from_hook(config: Config, members: Mapping[str, Member], hooks: Any) -> Any:
    if hooks is None:
        return None
    try:
        return hooks.kvhub_make_router(config=config, members=members)
    except Exception as error:
        raise PluginError(f"hook kvhub_make_router failed with {type(error).__name__}: {error}") from error


def _checked(custom: Any, route: Route, members: Mapping[str, Member]) -> Route:
    """Promise of the lists: no router, however clever, reads or writes where the operator did not say so."""
    if not isinstance(custom, Route):
        raise PluginError(
            f"hook kvhub_make_router returned {type(custom).__name__}; return a kvhub.router.Route or None"
        )
    lists = (
        ("store", custom.store, route.store),
        ("retrieve", custom.retrieve, route.retrieve),
        ("promotions", custom.promotions, route.promotions),
    )
    for word, steps, own in lists:
        allowed = {step.name for step in own}
        for step in steps:
            if step.name not in allowed:
                said = ", ".join(sorted(allowed)) or "none"
                raise PluginError(f"hook kvhub_make_router: {word} names '{step.name}', but the role's list has {said}")
            if step.member is not members[step.name]:
                raise PluginError(
                    f"hook kvhub_make_router: {word} step '{step.name}' carries another member than its own"
                )
    for step in custom.retrieve:
        if strange := set(step.promote) - {each.name for each in custom.promotions}:
            raise PluginError(
                f"hook kvhub_make_router: '{step.name}' promotes to {sorted(strange)}, not in its promotions"
            )
    if not custom.write_back <= route.write_back:
        raise PluginError("hook kvhub_make_router: write_back has more than the role's own")
    return custom
