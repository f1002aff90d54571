"""Is what a plugin brought what it should be?  Each check ends in a sentence for the plugin's author or in silence."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

import pluggy
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from kvhub import hookspecs, names, options
from kvhub.codec import Codec
from kvhub.engine import Engine
from kvhub.errors import PluginError
from kvhub.hookspecs import PROJECT
from kvhub.store import BlockingStore, Store
from kvhub.transport import Transport
from kvhub.types import SEVERAL

HOOKS = frozenset(name for name in vars(hookspecs) if name.startswith("kvhub_"))
CLASS_HOOKS: dict[str, type] = {
    "kvhub_register_stores": Store,
    "kvhub_register_transports": Transport,
    "kvhub_register_engines": Engine,
    "kvhub_register_codecs": Codec,
}
"""Registration hook -> what its classes must be.  Classes of members and codecs need a `Config` besides."""


def check_hooks(pm: pluggy.PluginManager, plugin: Any, who: str) -> None:
    """Raise PluginError for hooks that pluggy would accept and never call, and for a plugin without any."""
    real = 0
    for attribute in dir(plugin):
        marked = pm.parse_hookimpl_opts(plugin, attribute)
        if marked is None:
            if attribute.startswith("kvhub_") and inspect.isroutine(getattr(plugin, attribute, None)):
                raise PluginError(f"{who}: '{attribute}' is not marked as a hook; write @kvhub.hookimpl above it")
            continue
        hook = marked.get("specname") or attribute
        if marked.get("hookwrapper") or marked.get("wrapper"):
            raise PluginError(
                f"{who}: hook '{attribute}' is a wrapper; kvhub calls plugins one by one and has no wrappers"
            )
        if hook in HOOKS:
            real += 1
            _check_arguments(getattr(plugin, attribute), attribute, hook, who)
        elif not marked.get("optionalhook"):
            raise PluginError(f"{who}: '{hook}' is no hook of kvhub; {names.hint(hook, HOOKS)}")
    if not real:
        raise PluginError(f"{who}: implements no hook at all; a store's plugin has kvhub_register_stores")


def _check_arguments(function: Any, written: str, hook: str, who: str) -> None:
    """A hook is given what its specification names and nothing else; pluggy's own message names no remedy."""
    given = list(inspect.signature(getattr(hookspecs, hook)).parameters)
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind in kinds and parameter.default is parameter.empty and name not in given:
            may = f"it may take {', '.join(given)}" if given else "it takes none"
            raise PluginError(f"{who}: hook '{written}' has an argument '{name}' that kvhub does not give; {may}")


def classes(result: Any, hook: str, who: str) -> list[type]:
    """The classes that a registration hook returned, each checked.  Raises PluginError."""
    if result is None:
        return []
    if isinstance(result, type) or not isinstance(result, Iterable):
        raise PluginError(f"{who}: {hook} returned {_kind(result)}; return a tuple of classes, as (MyStore,)")
    wanted = CLASS_HOOKS[hook]
    found = list(result)
    for cls in found:
        if not isinstance(cls, type):
            raise PluginError(f"{who}: {hook} returned {_kind(cls)} in its list; return classes, not instances")
        if not issubclass(cls, wanted):
            raise PluginError(f"{who}: {hook} returned {cls.__name__}, which is no {wanted.__name__}; subclass it")
        if issubclass(cls, Store | Transport | Codec):
            _check_options(cls, who)
        if issubclass(cls, Codec):
            _check_codec(cls, who)
        elif issubclass(cls, Engine):
            _check_engine(cls, who)
    return found


def by_use(found: Iterable[type], name: str, who: str) -> dict[str, type]:
    """`use:` word -> class: `name` without a `kind`, else `name/kind`; the first class is `name` if none else is."""
    uses: dict[str, type] = {}
    found = list(found)
    for cls in found:
        kind = getattr(cls, "kind", "")
        if not isinstance(kind, str) or not all(letter.isalnum() or letter in "_-" for letter in kind):
            raise PluginError(f"{who}: {cls.__name__}.kind must be a short word, found {kind!r}")
        use = f"{name}/{kind}" if kind else name
        if use in uses:
            raise PluginError(f"{who}: {uses[use].__name__} and {cls.__name__} are both '{use}'; give one another kind")
        uses[use] = cls
    if found:
        uses.setdefault(name, found[0])
    return uses


def apart(mine: Iterable[type[Codec]], others: Iterable[type[Codec]], who: str) -> None:
    """Raise PluginError where two codecs have one name or one code: their chunks could not be told apart."""
    seen: list[type[Codec]] = list(others)
    for cls in mine:
        for other in seen:
            if cls.code == other.code:
                raise PluginError(
                    f"{who}: {cls.__name__} has code {cls.code}, which {other.__name__} of {other.__module__} has; "
                    "give it another, from 128 to 255 for codecs of other projects"
                )
            if cls.name == other.name:
                raise PluginError(
                    f"{who}: {cls.__name__} and {other.__name__} are both called '{cls.name}'; rename one"
                )
        seen.append(cls)


def _check_codec(cls: type[Codec], who: str) -> None:
    name, code = getattr(cls, "name", None), getattr(cls, "code", None)
    if not isinstance(name, str) or not name.isascii() or not name.replace("-", "").isalnum():
        raise PluginError(f"{who}: {cls.__name__}.name must be a short word, found {name!r}")
    if isinstance(code, bool) or not isinstance(code, int) or not 1 <= code <= 255:
        raise PluginError(f"{who}: {cls.__name__}.code must be a number from 1 to 255, found {code!r}")
    if code == SEVERAL:
        raise PluginError(f"{who}: {cls.__name__}.code must not be {SEVERAL}, which stands for several codecs in a row")
    for word in ("lossy", "seals"):
        if not isinstance(getattr(cls, word), bool):
            raise PluginError(f"{who}: {cls.__name__}.{word} must be True or False, found {getattr(cls, word)!r}")


def _check_options(cls: type, who: str) -> None:
    config = getattr(cls, "Config", None)
    if config is None:
        raise PluginError(f"{who}: {cls.__name__} has no Config; give it a frozen attrs class of its options")
    if problem := options.class_problem(config):
        raise PluginError(f"{who}: {cls.__name__}.Config {problem}")
    if missing := sorted(getattr(cls, "__abstractmethods__", ())):
        raise PluginError(f"{who}: {cls.__name__} does not implement {', '.join(missing)}")
    for word in ("persistent", "shared"):
        if issubclass(cls, BlockingStore) and not isinstance(getattr(cls, word), bool):
            raise PluginError(f"{who}: {cls.__name__}.{word} must be True or False, found {getattr(cls, word)!r}")


def _check_engine(cls: type[Engine], who: str) -> None:
    for word in ("name", "distribution", "versions"):
        if not isinstance(getattr(cls, word, None), str):
            raise PluginError(f"{who}: {cls.__name__} does not say its '{word}'")
    try:
        SpecifierSet(cls.versions)
    except InvalidSpecifier:
        raise PluginError(f"{who}: {cls.__name__}.versions is no version range: {cls.versions!r}") from None


def _kind(value: Any) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"an object of {type(value).__name__}"


def new_manager() -> pluggy.PluginManager:
    """A pluggy manager that knows our hooks and has no plugin."""
    pm = pluggy.PluginManager(PROJECT)
    pm.add_hookspecs(hookspecs)
    return pm
