"""The registry: finds plugins by name, imports only those that are asked for, and trusts none of them.

What pluggy would let pass is refused here: misspelt hooks, two packages with one name, a package that raises on
import, a plugin that failed a check and stays registered.  One broken plugin never harms another.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping
from typing import Any, cast

import attrs
import structlog

from kvhub import __version__, accept, names
from kvhub.codec import Codec
from kvhub.engine import Engine
from kvhub.errors import PluginError
from kvhub.installed import OURS, PluginInfo, check_range, installed, is_allowed, pick, refuse_disallowed
from kvhub.store import Store
from kvhub.transport import Transport

SLOW_IMPORT = 0.1
"""Seconds above which the import of a plugin is told: it is part of every start."""
HANGING_IMPORT = 5.0
"""Seconds after which an import that has not ended is told: nothing can end it from outside."""

_STORES, _TRANSPORTS, _ENGINES, _CODECS = accept.CLASS_HOOKS


@attrs.frozen
class Loaded:
    """What one plugin brought, by `use:` word."""

    name: str
    stores: Mapping[str, type[Store]]
    transports: Mapping[str, type[Transport]]
    engines: tuple[type[Engine], ...]
    codecs: Mapping[str, type[Codec]]
    seconds: float = 0.0
    """How long its import took; 0 for what this process added."""


class Registry:
    """Plugins of this process.  Not thread-safe: it works at start, before anything moves."""

    def __init__(self) -> None:
        self._pm = accept.new_manager()
        self._available: list[PluginInfo] | None = None
        self._loaded: dict[str, Loaded] = {}
        self._failed: dict[str, PluginError] = {}
        self._allowed: tuple[str, ...] | None = None
        self._added: set[str] = set()

    def allow_only(self, distributions: Collection[str] | None) -> None:
        """From now on import plugins of these distributions only; None: of all.

        What this process added by `add` is its own code and not held to it.
        """
        self._allowed = None if distributions is None else tuple(distributions)
        self._failed.clear()

    @property
    def hooks(self) -> Any:
        """pluggy's hook caller over the plugins that were loaded; one that raises stops the call, see `tell`."""
        return self._pm.hook

    def available(self) -> list[PluginInfo]:
        """Every installed plugin, from metadata; nothing is imported.  Equal in every process of one environment."""
        if self._available is None:
            self._available = installed()
        return list(self._available)

    def store(self, use: str) -> type[Store]:
        """The store class for `use: NAME` or `use: NAME/KIND`.  Raises PluginError."""
        return cast(type[Store], self._member(use, "store"))

    def transport(self, use: str) -> type[Transport]:
        """The transport class for `use: NAME` or `use: NAME/KIND`.  Raises PluginError."""
        return cast(type[Transport], self._member(use, "transport"))

    def codec(self, use: str) -> type[Codec]:
        """The codec class for `use: NAME` or `use: NAME/KIND`.  Raises PluginError."""
        loaded = self.load(use.partition("/")[0])
        if use in loaded.codecs:
            return loaded.codecs[use]
        if loaded.codecs:
            raise PluginError(f"plugin '{loaded.name}' has no codec '{use}'; {names.hint(use, loaded.codecs)}")
        raise PluginError(f"plugin '{loaded.name}' brings no codec")

    def engines(self) -> dict[str, type[Engine]]:
        """Engines of the plugins that were loaded so far, by the engine's name."""
        return {engine.name: engine for loaded in self._loaded.values() for engine in loaded.engines}

    def load(self, name: str) -> Loaded:
        """Import one plugin by its entry point's name and check what it brings; repeated calls are free.

        Raises PluginError; what the plugin itself raised is its cause.
        """
        usable = [info for info in self.available() if is_allowed(info, self._allowed)]
        if name not in self._added:
            # Each time: another file may allow less than the one before it.
            refuse_disallowed(name, self.available(), usable, self._allowed)
        if name in self._failed:
            raise self._failed[name]
        if name not in self._loaded:
            try:
                info = pick(name, usable, self._loaded)
                check_range(info, __version__)
                plugin, seconds = _imported(info)
                self._accept(name, plugin, str(info), seconds)
            except PluginError as error:
                self._failed[name] = error
                raise
        return self._loaded[name]

    def add(self, name: str, plugin: Any) -> Loaded:
        """Register an object or module of this process under `name`, through the same checks as an installed one.

        For tests and for programs that embed kvhub.  Processes that are spawned later do not inherit it: there the
        name is unknown and says so.
        """
        self._accept(name, plugin, f"plugin '{name}' (added by this process)")
        self._failed.pop(name, None)
        self._added.add(name)
        return self._loaded[name]

    def check_config(self, config: Mapping[str, Any]) -> list[str]:
        """What `kvhub_check_config` of every loaded plugin says; one that raises is a problem, too."""
        problems: list[str] = []
        for name, result in self.each("kvhub_check_config", config=config):
            if isinstance(result, Exception):
                problems.append(f"plugin '{name}': its kvhub_check_config failed: {type(result).__name__}: {result}")
            elif isinstance(result, str):
                problems.append(result)
            else:
                problems += [str(problem) for problem in result or ()]
        return problems

    def each(self, hook: str, **arguments: Any) -> list[tuple[str, Any]]:
        """Call one hook plugin by plugin, in order of loading: (plugin name, its result or the exception it raised)."""
        results: list[tuple[str, Any]] = []
        for implementation in getattr(self._pm.hook, hook).get_hookimpls():
            given = {name: arguments[name] for name in implementation.argnames}
            try:
                results.append((implementation.plugin_name, implementation.function(**given)))
            except Exception as error:
                results.append((implementation.plugin_name, error))
        return results

    def tell(self, hook: str, **arguments: Any) -> list[str]:
        """Call an event hook on every plugin, whatever one of them raises; returns what went wrong, as sentences."""
        return [
            f"plugin '{name}': its {hook} failed: {type(result).__name__}: {result}"
            for name, result in self.each(hook, **arguments)
            if isinstance(result, Exception)
        ]

    def _member(self, use: str, kind: str) -> type:
        loaded = self.load(use.partition("/")[0])
        mine, other = (loaded.stores, loaded.transports) if kind == "store" else (loaded.transports, loaded.stores)
        if use in mine:
            return mine[use]
        if use in other:
            wrong = "transport" if kind == "store" else "store"
            raise PluginError(f"plugin '{use}' is a {wrong}, not a {kind}; move this member to '{wrong}s'")
        if mine:
            raise PluginError(f"plugin '{loaded.name}' has no {kind} '{use}'; {names.hint(use, mine)}")
        raise PluginError(f"plugin '{loaded.name}' brings no {kind}")

    def _accept(self, name: str, plugin: Any, who: str, seconds: float = 0.0) -> None:
        if self._pm.has_plugin(name):
            raise PluginError(f"{who}: this name is taken by a plugin that was added before")
        try:
            accept.check_hooks(self._pm, plugin, who)
            self._pm.register(plugin, name)
            self._pm.check_pending()
            self._loaded[name] = attrs.evolve(self._collect(name, plugin, who), seconds=seconds)
        except PluginError:
            self._drop(name)
            raise
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self._drop(name)
            raise PluginError(f"{who} cannot be registered: {_said(error)}") from error

    def _drop(self, name: str) -> None:
        """A plugin that failed a check leaves no hook behind; pluggy by itself may keep it listed."""
        if self._pm.has_plugin(name):
            self._pm.unregister(name=name)

    def _collect(self, name: str, plugin: Any, who: str) -> Loaded:
        found: dict[str, list[type]] = {hook: [] for hook in accept.CLASS_HOOKS}
        for hook in accept.CLASS_HOOKS:
            for implementation in getattr(self._pm.hook, hook).get_hookimpls():
                if implementation.plugin is plugin:
                    found[hook] += accept.classes(implementation.function(), hook, who)
        theirs = [codec for loaded in self._loaded.values() for codec in loaded.codecs.values()]
        accept.apart(found[_CODECS], dict.fromkeys(theirs), who)
        return Loaded(
            name=name,
            stores=accept.by_use(found[_STORES], name, who),
            transports=accept.by_use(found[_TRANSPORTS], name, who),
            engines=tuple(found[_ENGINES]),
            codecs=accept.by_use(found[_CODECS], name, who),
        )


def _imported(info: PluginInfo) -> tuple[Any, float]:
    """The plugin's module, and the seconds it took.  Whatever it raises, SystemExit included, becomes a PluginError."""
    log = structlog.get_logger("kvhub")
    watch = threading.Timer(
        HANGING_IMPORT, log.warning, ("plugin.importing",), {"plugin": info.name, "seconds": HANGING_IMPORT}
    )
    watch.daemon = True
    watch.start()
    started = time.perf_counter()
    try:
        plugin = info.entry.load()
    except KeyboardInterrupt:
        raise
    except ModuleNotFoundError as error:
        fix = f"; pip install --force-reinstall {OURS[info.name]}" if OURS.get(info.name) == info.distribution else ""
        said = f"it needs the module '{error.name}', which is not installed{fix}"
        raise PluginError(f"{info} cannot be imported: {said}") from error
    except BaseException as error:
        raise PluginError(f"{info} cannot be imported: {_said(error)}") from error
    finally:
        watch.cancel()
    took = time.perf_counter() - started
    if took > SLOW_IMPORT:
        log.info("plugin.imported", plugin=info.name, seconds=round(took, 3))
    return plugin, took


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
