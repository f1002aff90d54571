"""The hooks.  They run at start and at life events, never while chunks move: hooks hand over classes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO

import pluggy

if TYPE_CHECKING:
    from kvhub.codec import Codec
    from kvhub.engine import Engine
    from kvhub.member import Member
    from kvhub.observe import Observer
    from kvhub.store import Store
    from kvhub.transport import Transport

PROJECT = "kvhub"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
"""Marks a plugin's function as its implementation of the hook of that name; a name that is no hook is refused."""


@hookspec
def kvhub_register_stores() -> Iterable[type[Store]]:  # type: ignore[empty-body]
    """The store classes of this plugin; the first is `use: name`, others are `use: name/KIND` by their `kind`."""


@hookspec
def kvhub_register_transports() -> Iterable[type[Transport]]:  # type: ignore[empty-body]
    """The transport classes of this plugin, named like stores."""


@hookspec
def kvhub_register_engines() -> Iterable[type[Engine]]:  # type: ignore[empty-body]
    """The engine descriptions of this plugin: which engine, which versions, how to reach its adapter."""


@hookspec
def kvhub_register_codecs() -> Iterable[type[Codec]]:  # type: ignore[empty-body]
    """The codec classes of this plugin, named like stores; no two codecs share a name or a code."""


@hookspec
def kvhub_register_observers(config: Mapping[str, Any]) -> Iterable[Observer]:  # type: ignore[empty-body]
    """Observers that want reports; called on the report thread, never on an engine's."""


@hookspec
def kvhub_check_config(config: Mapping[str, Any]) -> Iterable[str]:  # type: ignore[empty-body]
    """Problems that this plugin sees in the whole configuration, each as one sentence with its dotted path."""


@hookspec(firstresult=True)
def kvhub_open_url(url: str, config: Mapping[str, Any]) -> BinaryIO | None:
    """The object at `url` for `kvhub inspect`, to be read from its start on and closed, or None for others' URLs.

    `config` is the whole file that the operator named, or empty.  A scheme is the name of the plugin that opens it.
    Nothing is fetched before it is read: of a large object perhaps only the first 4096 bytes are.  Raises OSError, or
    KvhubError with a full sentence.
    """


@hookspec(firstresult=True)
def kvhub_make_router(config: Any, members: Mapping[str, Member]) -> Any:
    """A router that replaces the built-in one, or None."""


@hookspec
def kvhub_hub_opened(hub: Any) -> None:
    """A hub opened all its members and will serve."""


@hookspec
def kvhub_member_changed(hub: Any, name: str, state: str, reason: str) -> None:
    """A member went to `state` (`up`, `down`, `closed`) for `reason`; called on the report thread."""


@hookspec
def kvhub_hub_closing(hub: Any) -> None:
    """The hub stops taking work; its members still live."""
