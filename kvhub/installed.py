"""What is installed: the entry points of group `kvhub`, read from metadata alone; nothing is imported here."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from importlib import metadata

import attrs
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from kvhub import names
from kvhub.errors import PluginError

GROUP = "kvhub"
CORE = "kvhub"
OURS = {
    "aes": "kvhub-aes",
    "nfs": "kvhub-nfs",
    "quant": "kvhub-quant",
    "s3": "kvhub-s3",
    "sglang": "kvhub-sglang",
    "tcp": "kvhub-tcp",
    "ucx": "kvhub-ucx",
    "vllm": "kvhub-vllm",
    "zstd": "kvhub-zstd",
}
"""Our own plugins: the only names for which a message may say what to install.  A typo must never become an
invitation to install a stranger's package."""
_PATH = re.compile(r"[.:\\]")
"""What a module's or a file's path has and no plugin's name."""


@attrs.frozen
class PluginInfo:
    """One entry point of one distribution."""

    name: str
    """What the YAML says after `use:`."""
    module: str
    """What is imported for it: `kvhub_nfs`."""
    distribution: str
    version: str
    requires: str | None
    """The distribution's range for kvhub (`<0.2,>=0.1`, "" for any); None when it states none."""
    entry: metadata.EntryPoint = attrs.field(repr=False, eq=False)

    def __str__(self) -> str:
        return f"plugin '{self.name}' ({self.distribution} {self.version})"


def installed() -> list[PluginInfo]:
    """Every entry point of our group, sorted by name and then distribution."""
    seen: dict[tuple[str, str, str], PluginInfo] = {}
    for distribution in metadata.distributions():
        try:
            entries = distribution.entry_points.select(group=GROUP)
            project = distribution.metadata["Name"] or "unnamed"
            for entry in entries:
                # The same distribution may stand twice on the path; the first is the one that imports would take.
                key = (entry.name, canonicalize_name(project), entry.value)
                if key not in seen:
                    seen[key] = PluginInfo(
                        entry.name, entry.value, project, distribution.version or "?", _range(distribution), entry
                    )
        except Exception:  # one unreadable dist-info of a stranger must not hide the others
            continue
    return [seen[key] for key in sorted(seen)]


def pick(use: str, plugins: list[PluginInfo], also: Iterable[str] = ()) -> PluginInfo:
    """The one plugin called `use`.  Raises PluginError when there is none, or more than one.

    `also` are further names that a message may offer.
    """
    found = [plugin for plugin in plugins if plugin.name == use]
    if len(found) > 1:
        owners = [f"{plugin.distribution} {plugin.version}" for plugin in found]
        if len({plugin.distribution for plugin in found}) == 1:
            raise PluginError(f"plugin '{use}' is declared twice by {owners[0]}; report this to its authors")
        raise PluginError(f"plugin '{use}' is provided by {' and by '.join(owners)}; uninstall all but one")
    if found:
        return found[0]
    known = [*(plugin.name for plugin in plugins), *also]
    if _PATH.search(use):
        raise PluginError(
            f"'{use}' is no plugin's name: a file names installed plugins, never modules, classes or paths; "
            f"known: {', '.join(sorted(set(known)))}"
        )
    if use in OURS:
        raise PluginError(f"plugin '{use}' is not installed; pip install {OURS[use]}")
    close = names.nearest(use, [*known, *OURS])
    if close in OURS and close not in known:
        raise PluginError(f"unknown plugin '{use}'; did you mean '{close}', which pip install {OURS[close]} provides?")
    raise PluginError(
        f"unknown plugin '{use}'; {names.hint(use, known)}{'' if close == '' else '; kvhub plugins lists all'}"
    )


def is_allowed(plugin: PluginInfo, allowed: Collection[str] | None) -> bool:
    """Whether the plugin's distribution is on the operator's list; None allows all, and the core always is."""
    mine = canonicalize_name(plugin.distribution)
    return allowed is None or mine == CORE or mine in {canonicalize_name(name) for name in allowed}


def refuse_disallowed(
    use: str, plugins: list[PluginInfo], usable: list[PluginInfo], allowed: Collection[str] | None
) -> None:
    """Raise PluginError where `use` is installed and no distribution that has it is on the list.  Imports nothing."""
    found = [plugin for plugin in plugins if plugin.name == use]
    if found and not any(plugin.name == use for plugin in usable):
        listed = ", ".join(allowed or ()) or "nothing"
        raise PluginError(
            f"{found[0]} was not imported: plugins.allow has {listed}; "
            f"add '{found[0].distribution}' there if you trust it, or use another plugin"
        )


def check_range(plugin: PluginInfo, version: str) -> None:
    """Raise PluginError unless the plugin's distribution says that it works with this kvhub.  Imports nothing."""
    if canonicalize_name(plugin.distribution) == CORE:
        return
    if plugin.requires is None:
        raise PluginError(f"{plugin} states no range for kvhub, so nobody knows whether it fits; "
                          f"its authors must declare one, as 'kvhub>=0.1,<0.2'")  # fmt: skip
    try:
        fits = Requirement(f"{CORE}{plugin.requires}").specifier.contains(version, prereleases=True)
    except InvalidRequirement:
        raise PluginError(f"{plugin} states a range for kvhub that cannot be read: {plugin.requires!r}") from None
    if not fits:
        raise PluginError(f"{plugin} needs kvhub {plugin.requires}, and this is kvhub {version}; "
                          f"install a release of {plugin.distribution} that fits, or change kvhub")  # fmt: skip


def _range(distribution: metadata.Distribution) -> str | None:
    ranges: list[str] = []
    for text in distribution.requires or ():
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            if canonicalize_name(text[: len(CORE)]) == CORE and not text[len(CORE) : len(CORE) + 1].isalnum():
                return text[len(CORE) :]
            continue
        if canonicalize_name(requirement.name) != CORE:
            continue
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            ranges.append(str(requirement.specifier))
    return ",".join(part for part in ranges if part) if ranges else None
