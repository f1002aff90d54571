"""Plugins and engines that are installed, whether the file names them or not."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from packaging.specifiers import SpecifierSet

from kvhub.engine import Engine
from kvhub.errors import PluginError
from kvhub.findings import Finding, failed, passed, warned
from kvhub.plugins import Loaded, Registry

SLOW_START = 0.5
"""Seconds of an import that are worth a warning; what is above 0.1 s is in the log of every start."""


def findings(registry: Registry, named: Collection[str]) -> Iterator[Finding]:
    """One finding for each installed plugin, then for each engine; `named` are plugins that the file names."""
    engines: list[type[Engine]] = []
    for name in dict.fromkeys(info.name for info in registry.available()):
        what = f"plugin {name}"
        try:
            loaded = registry.load(name)
        except PluginError as error:
            if name not in named:  # where it is named, it is a problem of the file
                yield warned(
                    what, str(error), "nothing names it, so engines start; repair or uninstall it all the same"
                )
            continue
        engines += loaded.engines
        info = next(info for info in registry.available() if info.name == name)
        told = f"{info.distribution} {info.version} brings {_brings(loaded)}"
        if loaded.seconds > SLOW_START and name in named:
            yield warned(
                what,
                f"{told}; its import takes {loaded.seconds:.1f} s of every start",
                "have its authors import what is heavy later, where it is used",
            )
        else:
            yield passed(what, told)
    yield from _engines(engines)


def _brings(loaded: Loaded) -> str:
    kinds = (("store", loaded.stores), ("transport", loaded.transports), ("codec", loaded.codecs))
    parts = [f"{kind} {', '.join(sorted(found))}" for kind, found in kinds if found]
    parts += [f"engine {engine.name}" for engine in loaded.engines]
    return "; ".join(parts) or "hooks only"


def _engines(engines: list[type[Engine]]) -> Iterator[Finding]:
    here = 0
    for engine in engines:
        version = engine.installed()
        what = f"engine {engine.name}"
        if version is None:
            continue
        here += 1
        if SpecifierSet(engine.versions).contains(version, prereleases=True):
            yield passed(what, f"{version}, inside of the tested {engine.versions}")
        else:
            yield failed(
                what,
                f"{version} is outside of the tested {engine.versions}",
                "install a release inside of it, or another release of the adapter; an untested one starts only by "
                "allow_untested",
            )
    if not here:
        yield warned(
            "engine",
            "none that an installed adapter serves is in this environment",
            "run `kvhub doctor` in the engine's environment, with the adapter's package installed",
        )
