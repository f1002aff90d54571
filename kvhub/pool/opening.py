"""From the YAML that everything else reads to the medium of one of its stores: no engine, no arena, no other plugin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvhub import names
from kvhub.builtin.host import HostStore
from kvhub.config import load
from kvhub.errors import ConfigError, KvhubError
from kvhub.plugins import Registry
from kvhub.pool.medium import Medium
from kvhub.roles import HOST


def open_mediums(file: str, *members: str, registry: Registry | None = None) -> list[Medium]:
    """The media of these stores, in this order; "" stands for the only store that is not the host tier.

    Imports the plugins of these stores alone.  Raises ConfigError and KvhubError.
    """
    registry = registry or Registry()
    stores = load(file, registry, members=()).plain.get("stores", {})
    problems: list[str] = []
    chosen = [_choose(member, stores, problems) for member in members]
    if problems:
        raise ConfigError(problems, where=file)
    config = load(file, registry, members=chosen)
    media: list[Medium] = []
    try:
        for member in chosen:
            entry = config.members[member]
            media.append(_open(member, entry.cls, entry.options))
    except BaseException:
        for medium in media:
            medium.close()
        raise
    return media


def _open(member: str, cls: type[Any], options: Any) -> Medium:
    if issubclass(cls, HostStore):
        raise KvhubError(f"stores.{member}: the host tier ends with its engine; there is nothing to keep house in")
    try:
        medium: Medium = cls.medium(options)
    except KvhubError as error:
        raise KvhubError(f"stores.{member}: {error}") from error
    return medium


def _choose(member: str, stores: Mapping[str, Any], problems: list[str]) -> str:
    pools = [name for name, value in stores.items() if value.get("use") != HOST]
    if not member and len(pools) == 1:
        return pools[0]
    if not member:
        known = f"name one with --member: {', '.join(pools)}" if pools else "its stores are the host tier alone"
        problems.append(f"stores: the file has {len(pools)} pools; {known}")
    elif member not in stores:
        problems.append(f"stores: has no '{member}'; {names.hint(member, pools)}")
    return member
