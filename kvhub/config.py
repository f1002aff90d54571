"""YAML to frozen objects: every problem at once, each by its dotted path, its file and line, and the nearest name.

Order of precedence, weakest first: default, file, environment (`kvhub.environ`), argument.  `origin` tells for every
effective value which of them it was.  Nothing here imports a plugin: classes come from the registry that is given.
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import attrs

from kvhub import environ as env
from kvhub import names, options, yamlfile
from kvhub.allowed import read_allowed
from kvhub.codec import Codec, Encodings
from kvhub.encodings import read_encodings
from kvhub.engine import ROLES
from kvhub.errors import ConfigError, PluginError
from kvhub.roles import HOST, Known, RoleConfig, Step, read_roles
from kvhub.routes import check_routes
from kvhub.settings import MODEL_KEYS, Config, Limits, MemberConfig
from kvhub.yamlfile import below

__all__ = ["Config", "Limits", "MemberConfig", "RoleConfig", "Step", "find", "load"]

VERSION = 1
KEYS = ("kvhub", "model", "plugins", "chunk_tokens", "codecs", "stores", "transports", "roles", "on_miss", "limits")
ON_MISS = ("recompute",)
MOST_CHUNK_TOKENS = 65536
NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
NAME_MOST = 32
KINDS = {"codecs": "codec", "stores": "member", "transports": "member"}


class Classes(Protocol):
    """What loading asks of a registry; `kvhub.plugins.Registry` is the real one."""

    def store(self, use: str) -> type[Any]:
        """The class for a store's `use:`.  Raises PluginError with a full sentence."""

    def transport(self, use: str) -> type[Any]:
        """The class for a transport's `use:`.  Raises PluginError with a full sentence."""

    def codec(self, use: str) -> type[Codec]:
        """The class for a codec's `use:`.  Raises PluginError with a full sentence."""

    def allow_only(self, distributions: Collection[str] | None) -> None:
        """From now on import plugins of these distributions only; None: of all."""

    def check_config(self, config: Mapping[str, Any]) -> list[str]:
        """Problems that loaded plugins see in the whole file."""


def find(environ: Mapping[str, str] | None = None) -> str:
    """The file that the environment names in KVHUB_CONFIG.  Raises ConfigError when there is none."""
    path = (os.environ if environ is None else environ).get("KVHUB_CONFIG", "")
    if not path:
        raise ConfigError(["no configuration: name a file, or set KVHUB_CONFIG to its path"])
    return path


def load(
    source: str | Path | Mapping[str, Any],
    registry: Classes,
    *,
    role: str | None = None,
    members: Sequence[str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Config:
    """Read and check a file (or a mapping in its shape) and lay the environment over it.

    With `role`, plugins are imported only for codecs and for the members that this role touches, with `members` only
    for those members; the rest of the file is checked all the same, but for other members' options.  Raises ConfigError
    with every problem; where a plugin failed, its own exception is the cause.
    """
    data, tree, path = _read(source)
    reading = _Reading(registry, data, tree, path)
    return reading.config(role, members, os.environ if environ is None else environ)


def _read(source: str | Path | Mapping[str, Any]) -> tuple[dict[str, Any], yamlfile.Tree, str]:
    if isinstance(source, Mapping):
        data = copy.deepcopy(dict(source))
        return data, yamlfile.Tree(data, {}, []), ""
    path = str(source)
    try:
        text = Path(source).read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        said = (error.strerror or str(error)) if isinstance(error, OSError) else f"not UTF-8: {error}"
        raise ConfigError([f"cannot be read: {said}"], where=path) from error
    tree = yamlfile.read(text, Path(path).name)
    if tree.broken:
        raise ConfigError(tree.problems, where=path)
    if not isinstance(tree.data, dict):
        said = options.found(tree.data)
        raise ConfigError(
            [*tree.problems, f"expected a mapping that begins with 'kvhub: {VERSION}', found {said}"], where=path
        )
    return tree.data, tree, path


class _Reading:
    """One load: collects problems and warnings while the parts are read."""

    def __init__(self, registry: Classes, data: dict[str, Any], tree: yamlfile.Tree, path: str) -> None:
        self._registry = registry
        self._data = data
        self._places = tree.places
        self._path = path
        self._problems = list(tree.problems)
        self._warnings: list[str] = []
        self._cause: BaseException | None = None

    def config(self, role: str | None, only: Sequence[str] | None, environ: Mapping[str, str]) -> Config:
        before = copy.deepcopy(self._data)
        places = dict(self._places)
        for path in env.overlay(self._data, environ, self._problems, self._places):
            self._note_key_change(path, before, places)
        for key in self._data:
            if key not in KEYS:
                self._report(str(key), f"unknown key; {names.hint(str(key), KEYS)}")
        self._version()
        allowed = read_allowed(self._data, self._report)
        self._registry.allow_only(allowed)
        known = self._known()
        roles = read_roles(self._data.get("roles"), known, ROLES, self._report)
        if role is not None and role not in roles and not self._problems:
            self._report("roles", f"has no role '{role}', which was asked for; {names.hint(role, roles)}")
        if not self._problems:
            check_routes(roles, known, self._report, self._warn)
        section = self._named("codecs")
        encodings = read_encodings(section, roles, self._codec, self._report) if only is None else Encodings()
        members = self._members(roles[role].members if role is not None and role in roles else only)
        limits = options.build(Limits, self._section("limits"), "limits", self._report)
        config = Config(
            members=members,
            roles=roles,
            limits=limits or Limits(),
            encodings=encodings,
            chunk_tokens=self._chunk_tokens(),
            model=self._model(),
            on_miss=self._on_miss(),
            allowed=allowed,
            path=self._path,
            plain=self._data,
        )
        self._sizes(config)
        for problem in self._registry.check_config(copy.deepcopy(self._data)):
            self._problems.append(problem)
        if self._problems:
            raise ConfigError(self._problems, where=self._path) from self._cause
        origin = {path: self._origin(path) for path, _ in config.values()}
        return attrs.evolve(config, origin=origin, warnings=tuple(self._warnings))

    def _place(self, path: str) -> str:
        """Where `path` stands, or the nearest thing around it that stands anywhere; "" for a mapping."""
        while path and path not in self._places:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return self._places.get(path, "") if path else ""

    def _origin(self, path: str) -> str:
        place = self._places.get(path)
        if place is not None:
            return place
        inner: Any = self._data
        for step in re.findall(r"[^.\[\]]+", path):
            if isinstance(inner, list):
                inner = inner[int(step)] if int(step) < len(inner) else None
            elif isinstance(inner, Mapping) and step in inner:
                inner = inner[step]
            else:
                return "default"
        return self._place(path) or "argument"

    def _report(self, path: str, sentence: str) -> None:
        self._problems.append(self._sentence(path, sentence))

    def _warn(self, path: str, sentence: str) -> None:
        self._warnings.append(self._sentence(path, sentence))

    def _sentence(self, path: str, sentence: str) -> str:
        place = self._place(path)
        return f"{path}: {sentence}" + (f" ({place})" if place else "")

    def _note_key_change(self, path: str, before: Mapping[str, Any], places: Mapping[str, str]) -> None:
        if path != "chunk_tokens" and not path.startswith("model."):
            return
        old: Any = before
        for step in path.split("."):
            old = old.get(step) if isinstance(old, Mapping) else None
        default = "64 (default)" if path == "chunk_tokens" else "unset"
        was = default if old is None else f"{old} ({places[path]})" if path in places else f"{old}"
        self._warn(path, f"set by the environment, was {was}; this changes every key, so KV stored before is not found")

    def _version(self) -> None:
        found = self._data.get("kvhub")
        if found is None:
            self._report("kvhub", f"required: write 'kvhub: {VERSION}', the version of this file's format")
        elif isinstance(found, bool) or found != VERSION:
            self._report("kvhub", f"this release reads format {VERSION}, found {options.found(found)}")

    def _section(self, key: str) -> Mapping[str, Any]:
        value = self._data.get(key, {})
        if isinstance(value, Mapping):
            return value
        self._report(
            key, f"expected a mapping, found {options.found(value)}; leave the key out if there is nothing to say"
        )
        return {}

    def _named(self, section: str) -> Mapping[str, Any]:
        """A section whose keys are names that the operator chose."""
        data = self._section(section)
        for name in data:
            if not isinstance(name, str) or not NAME.fullmatch(name) or len(name) > NAME_MOST:
                said = f"a {KINDS[section]}'s name is at most {NAME_MOST} of a-z, 0-9 and single '_', from a letter on"
                self._report(below(section, str(name)), said)
        return data

    def _codec(self, path: str, use: str) -> type[Codec] | None:
        try:
            return self._registry.codec(use)
        except PluginError as error:
            self._report(path, str(error))
            self._cause = self._cause or error
            return None

    def _known(self) -> Known:
        stores, transports = self._named("stores"), self._named("transports")
        for name in transports:
            if name in stores:
                said = "a store has this name already; names are shared by stores and transports"
                self._report(below("transports", name), said)
        hosts = tuple(name for name, value in stores.items() if isinstance(value, Mapping) and value.get("use") == HOST)
        for name in hosts[1:]:
            self._report(below("stores", name), f"a hub has one host tier, and '{hosts[0]}' is it")
        return Known(tuple(stores), tuple(transports), hosts)

    def _members(self, wanted: Sequence[str] | None) -> dict[str, MemberConfig]:
        members: dict[str, MemberConfig] = {}
        kinds: tuple[tuple[str, Callable[[str], type[Any]]], ...] = (
            ("store", self._registry.store),
            ("transport", self._registry.transport),
        )
        for kind, resolve in kinds:
            section = self._data.get(f"{kind}s")
            for name, value in section.items() if isinstance(section, Mapping) else ():
                member = self._member(str(name), kind, value, resolve, wanted is None or name in wanted)
                if member is not None:
                    members[member.name] = member
        return members

    def _member(
        self, name: str, kind: str, value: Any, resolve: Callable[[str], type[Any]], wanted: bool
    ) -> MemberConfig | None:
        path = below(f"{kind}s", name)
        if not isinstance(value, Mapping):
            self._report(path, f"expected a mapping with 'use: ...', found {options.found(value)}")
            return None
        use = value.get("use")
        if not isinstance(use, str) or not use:
            self._report(below(path, "use"), "required: the plugin that makes this member")
            return None
        if not wanted:
            return None
        try:
            cls = resolve(use)
        except PluginError as error:
            self._report(below(path, "use"), str(error))
            self._cause = self._cause or error
            return None
        given = {str(key): item for key, item in value.items() if key != "use"}
        made = options.build(cls.Config, given, path, self._report)
        return None if made is None else MemberConfig(name, kind, use, cls, made)

    def _chunk_tokens(self) -> int:
        value = self._data.get("chunk_tokens", 64)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_CHUNK_TOKENS:
            said = options.found(value)
            self._report("chunk_tokens", f"expected a whole number from 1 to {MOST_CHUNK_TOKENS}, found {said}")
            return 64
        return value

    def _model(self) -> dict[str, str]:
        model: dict[str, str] = {}
        for key, value in self._section("model").items():
            path = below("model", str(key))
            if key not in MODEL_KEYS:
                self._report(path, f"unknown key; {names.hint(str(key), MODEL_KEYS)}")
            elif not isinstance(value, str) or not value:
                self._report(path, f"expected text, found {options.found(value)}; put it in quotes")
            else:
                model[key] = value
        return model

    def _on_miss(self) -> str:
        value = self._data.get("on_miss", ON_MISS[0])
        if value not in ON_MISS:
            said = names.hint(str(value), ON_MISS)
            self._report("on_miss", f"unknown policy {options.found(value)}; {said}")
            return ON_MISS[0]
        return str(value)

    def _sizes(self, config: Config) -> None:
        """Warn of a lower tier that is smaller than the one before it: it would only turn over."""
        for role in config.roles.values():
            above: tuple[str, int] | None = None
            for index, step in enumerate(role.retrieve):
                member = config.members.get(step.member)
                size = getattr(member.options, "capacity", None) if member and member.kind == "store" else None
                if not isinstance(size, int) or size <= 0:
                    continue
                if above is not None and size < above[1]:
                    path = below(f"roles.{role.name}.retrieve", index)
                    said = f"'{step.member}' holds {size} bytes, less than '{above[0]}' before it with {above[1]}"
                    self._warn(path, said + "; a smaller lower tier only turns over")
                above = (step.member, size)
