"""`plugins.allow`: the distributions whose plugins a file may use.  It is read before any plugin is imported."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from kvhub import environ as env
from kvhub import names, options
from kvhub.errors import ConfigError
from kvhub.yamlfile import below

KEYS = ("allow",)
PATH = "plugins.allow"
_DISTRIBUTION = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
"""https://packaging.python.org/en/latest/specifications/name-normalization/"""


def read_allowed(data: Mapping[str, Any], report: Callable[[str, str], None]) -> tuple[str, ...] | None:
    """The list of a file; None where it has none.  A list that cannot be read allows nothing."""
    section = data.get("plugins", {})
    if not isinstance(section, Mapping):
        report("plugins", f"expected a mapping, as 'plugins: {{allow: [kvhub-nfs]}}', found {options.found(section)}")
        return ()
    for key in section:
        if key not in KEYS:
            report(below("plugins", str(key)), f"unknown key; {names.hint(str(key), KEYS)}")
    if "allow" not in section:
        return None
    value = section["allow"]
    if not isinstance(value, list | tuple):
        report(PATH, f"expected a list of distributions, as [kvhub-nfs, acme-store], found {options.found(value)}")
        return ()
    for index, name in enumerate(value):
        if not isinstance(name, str) or not _DISTRIBUTION.fullmatch(name):
            report(below(PATH, index), f"expected a distribution's name, as kvhub-nfs, found {options.found(name)}")
    return tuple(name for name in value if isinstance(name, str))


def allowed_by_environment() -> tuple[str, ...] | None:
    """What KVHUB_PLUGINS__ALLOW says, for commands without a file.  Raises ConfigError."""
    name = env.variable(PATH)
    problems: list[str] = []
    data: dict[str, Any] = {}
    env.overlay(data, {name: os.environ[name]} if name in os.environ else {}, problems, {})
    allowed = read_allowed(data, lambda path, said: problems.append(f"{path}: {said}"))
    if problems:
        raise ConfigError(problems, where="environment")
    return allowed
