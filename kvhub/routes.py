"""Routes that can do nothing: a sink that no one reads, a search that never hits, a promise that no one collects.

A file describes the whole deployment, all roles of it, so that these can be seen before anything starts.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvhub.conditions import Report
from kvhub.roles import Known, RoleConfig, Step
from kvhub.yamlfile import below


def check_routes(roles: Mapping[str, RoleConfig], known: Known, report: Report, warn: Report) -> None:
    """Report every step that cannot do anything, warn of what only another deployment could make useful."""
    for role in roles.values():
        for index, step in enumerate(role.store):
            _check_sink(role, step, below(f"roles.{role.name}.store", index), roles, known, report)
        for index, step in enumerate(role.retrieve):
            path = below(f"roles.{role.name}.retrieve", index)
            _check_source(role, step, path, roles, known, report, warn)
            _check_promote(role, step, path, roles, known, report)
    used = {name for role in roles.values() for name in role.members}
    for section, members in (("stores", known.stores), ("transports", known.transports)):
        for name in members:
            if name not in used:
                warn(below(section, name), "no role uses this member")


def readers(roles: Mapping[str, RoleConfig], member: str) -> list[str]:
    """Names of the roles that retrieve from `member`."""
    return [role.name for role in roles.values() if any(step.member == member for step in role.retrieve)]


def writers(roles: Mapping[str, RoleConfig], member: str) -> list[str]:
    """Names of the roles that store into `member`, by their list or by promotion."""
    return [role.name for role in roles.values() if _writes(role, member)]


def _writes(role: RoleConfig, member: str) -> bool:
    return any(step.member == member for step in role.store) or any(member in step.promote for step in role.retrieve)


def _check_sink(
    role: RoleConfig, step: Step, path: str, roles: Mapping[str, RoleConfig], known: Known, report: Report
) -> None:
    reading = readers(roles, step.member)
    if step.member in known.transports:
        if not reading:
            report(
                path, f"'{step.member}' is offered to a peer, but no role retrieves from it; add it to decode's list"
            )
    elif step.member in known.hosts and role.name not in reading and not _offers(role, known):
        report(path, f"'{step.member}' is this process's own memory, and {role.name} does not retrieve from it")
    elif not reading:
        report(path, f"'{step.member}' is stored to, but no role of this file retrieves from it")


def _offers(role: RoleConfig, known: Known) -> bool:
    """Whether peers pull from this role's memory."""
    return any(step.member in known.transports for step in role.store)


def _check_source(
    role: RoleConfig,
    step: Step,
    path: str,
    roles: Mapping[str, RoleConfig],
    known: Known,
    report: Report,
    warn: Report,
) -> None:
    writing = writers(roles, step.member)
    if step.member in known.transports:
        if not any(step.member == other.member for each in roles.values() for other in each.store):
            report(path, f"no role offers chunks on '{step.member}'; add it to the store list of prefill")
    elif step.member in known.hosts and role.name not in writing:
        report(
            path, f"can never hit: '{step.member}' is this process's own memory, and {role.name} does not store there"
        )
    elif not writing:
        warn(path, f"no role of this file stores to '{step.member}'; it hits only what others keep there")


def _check_promote(
    role: RoleConfig, step: Step, path: str, roles: Mapping[str, RoleConfig], known: Known, report: Report
) -> None:
    order = [each.member for each in role.retrieve]
    for index, target in enumerate(step.promote):
        where = below(below(path, "promote"), index)
        reading = readers(roles, target)
        if not reading or (target in known.hosts and role.name not in reading):
            report(where, f"'{target}' gets copies, but no role that could see them retrieves from it")
        elif reading == [role.name] and order.index(target) > order.index(step.member):
            report(where, f"'{target}' is asked after '{step.member}', so a copy there is never found first")
