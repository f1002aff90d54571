"""Environment over file, by one rule, and the variables that look as if they were meant for us and are not.

    KVHUB_<DOTTED PATH, upper case, '__' for each dot>     KVHUB_STORES__POOL__ROOT=/mnt/kv

The value is read as a YAML value, so `64`, `false`, `64GiB` and `[host, pool]` mean the same in both places.  The
environment changes options of codecs, members and roles that the file has; it adds none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from kvhub import names
from kvhub.yamlfile import below, read_value

PREFIX = "KVHUB_"
"""Begins every variable that sets an option."""
READ_ELSEWHERE = frozenset({"KVHUB_CONFIG"})
"""Variables of ours that name no option: the path of the file."""
TESTS = "KVHUB_TEST_"
"""Begins the variables of the project's own tests, which processes under test inherit."""
TOP = ("chunk_tokens", "on_miss", "model", "plugins", "limits", "codecs", "stores", "transports", "roles")
_NAMED = ("codecs", "stores", "transports", "roles")

# What Kubernetes puts into every pod for a service whose name begins with ours.  Our own names have '__' or are in TOP.
_SERVICE = re.compile(r"[A-Z0-9_]*?_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_\d+_(TCP|UDP|SCTP)(_[A-Z]+)?)?)")
_NEAR = re.compile(r"kv[-_. ]?hub[-_. ]", re.IGNORECASE)

Report = Callable[[str, str], None]


def variable(path: str) -> str:
    """The variable that overrides a dotted path."""
    return PREFIX + path.upper().replace(".", "__").replace("-", "_")


def overlay(data: dict[str, Any], environ: Mapping[str, str], problems: list[str], places: dict[str, str]) -> list[str]:
    """Write every `KVHUB_` variable into `data`; return the dotted paths that were set.

    `places` learns where each value now comes from; what is wrong goes to `problems`.
    """
    secrets = _named_by_options(data)
    done: list[str] = []
    for name in sorted(environ):
        if name in READ_ELSEWHERE or name.startswith(TESTS) or name in secrets or _service(name, environ[name]):
            continue
        if name.startswith(PREFIX):
            path, problem = _apply(data, name, environ[name], places)
            problems += problem
            if path:
                done.append(path)
        elif _NEAR.match(name):
            problems.append(f"environment {name}: looks like ours but is not read; our variables begin with {PREFIX}")
    return done


def _service(name: str, value: str) -> bool:
    if "__" in name or not (match := _SERVICE.fullmatch(name)):
        return False
    return match[1] != "PORT" or "://" in value


def _named_by_options(value: Any, key: str = "") -> set[str]:
    """Variables that options name: the text of every option called `env` or ending in `_env`."""
    if isinstance(value, Mapping):
        return set().union(*(_named_by_options(item, str(name)) for name, item in value.items()))
    if isinstance(value, list | tuple):
        return set().union(*(_named_by_options(item) for item in value))
    return {value} if isinstance(value, str) and (key == "env" or key.endswith("_env")) else set()


def _apply(data: dict[str, Any], name: str, text: str, places: dict[str, str]) -> tuple[str, list[str]]:
    parts = name.removeprefix(PREFIX).split("__")
    head = f"environment {name}: "
    if name != name.upper():
        return "", [f"{head}write it in upper case"]
    steps = [part.lower() for part in parts]
    if steps[0] not in TOP:
        return "", [f"{head}unknown variable; {names.hint(name, [variable(top) for top in TOP])}"]
    if problem := _missing_parent(data, steps):
        return "", [head + problem]
    path = ".".join(steps)
    place = f"environment {name}"
    if not text.strip():
        return "", [f"{head}is set but empty; unset it, or write '\"\"' for empty text"]
    tree = read_value(text, place, path)
    if tree.problems:
        return "", tree.problems
    inner: dict[str, Any] = data
    for step in steps[:-1]:
        inner = inner.setdefault(step, {})
    inner[steps[-1]] = tree.data
    for old in [old for old in places if old == path or old.startswith((path + ".", path + "["))]:
        del places[old]
    places |= tree.places
    return path, []


def _missing_parent(data: Mapping[str, Any], steps: list[str]) -> str:
    """Why `steps` cannot be set, or ""."""
    top = steps[0]
    if top in ("chunk_tokens", "on_miss"):
        return f"'{top}' has no options below it" if len(steps) > 1 else ""
    least = 3 if top in _NAMED else 2
    if len(steps) < least or not all(steps):
        example = {
            "model": "model.revision",
            "limits": "limits.lease",
            "plugins": "plugins.allow",
            "roles": "roles.decode.store",
        }
        example |= {"codecs": "codecs.zstd.level"}
        return f"names no option; one would be {variable(example.get(top, top + '.pool.root'))}"
    section = data.get(top, {})
    if top in _NAMED and (not isinstance(section, Mapping) or steps[1] not in section):
        known = [variable(below(top, str(name))) + "__..." for name in section] if isinstance(section, Mapping) else []
        return f"the file has no {top}.{steps[1]}; {names.hint(variable(top + '.' + steps[1]) + '__...', known)}"
    inner: Any = data
    for index, step in enumerate(steps[:-1]):
        inner = inner.get(step, {})
        if not isinstance(inner, Mapping):
            return f"{'.'.join(steps[: index + 1])} is no mapping in the file, so nothing below it can be set"
    return ""
