"""Roles: where each stores and where each retrieves, as ordered steps; and which routes can do nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from kvhub import conditions, names, units
from kvhub.conditions import PARTS, Report
from kvhub.yamlfile import below

HOST = "host"
"""`use:` of the built-in host tier: the one store that no other process can see."""
LOAD_DEADLINE = 2.0
"""Seconds that a LOAD from a store may take; well under recomputing a long prompt, well over a healthy pool."""
PULL_DEADLINE = 5.0
"""Seconds that a pull from a peer may take; longer, since the peer may still be computing what was promised."""
SAVE_DEADLINE = 30.0
"""Seconds after which a background SAVE is given up."""
LONGEST_DEADLINE = 600.0
WRITES = ("through", "back")


@attrs.frozen
class Step:
    """One entry of a role's list."""

    member: str
    deadline: float
    """Seconds from the submission of a batch to giving it up."""
    promote: tuple[str, ...] = ()
    """Retrieving: stores that get a copy of what was found here."""
    uses: int = 1
    """Storing: only chunks that were seen this many times."""
    codec: tuple[str, ...] = ()
    """Storing: names of the codecs that payloads pass through, in this order."""
    prefix_chunks: int = 0
    """Storing: only the first so many chunks of a prompt; 0 for all."""
    part: str = ""
    """Storing: only `prompt` or only `generated` chunks; "" for both."""
    write: str = "through"
    """Storing: `through` at once, or `back`, when the host tier is about to lose the chunk."""
    faster: float = 0.0
    """Retrieving: only where loading is so many times as fast as computing, as measured; 0 for always."""
    missing_chunks: int = 1
    """Retrieving: asked only when at least so many chunks are missing."""


@attrs.frozen
class RoleConfig:
    """What one role does.  The order of the lists is the order of the search, in every process."""

    name: str
    store: tuple[Step, ...]
    retrieve: tuple[Step, ...]
    write_back: frozenset[str]
    """Which tokens' KV is stored: a subset of `prompt` and `generated`."""

    @property
    def members(self) -> tuple[str, ...]:
        """Every member that this role touches, in order of first mention; promotion counts."""
        seen: dict[str, None] = {}
        for step in (*self.store, *self.retrieve):
            seen |= dict.fromkeys((step.member, *step.promote))
        return tuple(seen)


@attrs.frozen
class Known:
    """The member names of a file, by kind, in the order of the file."""

    stores: tuple[str, ...]
    transports: tuple[str, ...]
    hosts: tuple[str, ...] = ()

    @property
    def all(self) -> tuple[str, ...]:
        return self.stores + self.transports


def read_roles(data: Any, known: Known, allowed: Iterable[str], report: Report) -> dict[str, RoleConfig]:
    """The roles of a file; what cannot be read is reported and left out."""
    roles: dict[str, RoleConfig] = {}
    if not isinstance(data, Mapping) or not data:
        report("roles", "required: at least one of " + ", ".join(allowed) + ", each with what it stores and retrieves")
        return roles
    for name, value in data.items():
        path = below("roles", name)
        if name not in tuple(allowed):
            report(path, f"unknown role; {names.hint(name, allowed)}")
            if isinstance(value, Mapping) and names.nearest(name, allowed):
                _role(name, value, path, known, report)  # a misspelt role's other problems are told at once, too
        elif not isinstance(value, Mapping):
            report(path, "expected a mapping with store and retrieve")
        else:
            roles[name] = _role(name, value, path, known, report)
    return roles


def _role(name: str, value: Mapping[str, Any], path: str, known: Known, report: Report) -> RoleConfig:
    keys = ("store", "retrieve", "write_back")
    for key in value:
        if key not in keys:
            report(below(path, key), f"unknown key; {names.hint(key, keys)}")
    store = _steps(value.get("store", []), below(path, "store"), "to", known, report)
    retrieve = _steps(value.get("retrieve", []), below(path, "retrieve"), "from", known, report)
    keeps = any(step.member in known.stores for step in store)
    if not any(step.member in known.hosts for step in store):
        for index, step in enumerate(store):
            if step.write == "back":
                where = below(below(below(path, "store"), index), "write")
                report(
                    where, "back needs a host tier in the same list: it is the place that chunks are written back from"
                )
    write_back = _write_back(value.get("write_back"), below(path, "write_back"), keeps, report)
    if not value.get("store") and not value.get("retrieve"):
        report(path, "stores nowhere and retrieves from nowhere; give it a list, or leave the role out")
    return RoleConfig(name, store, retrieve, write_back)


def _write_back(value: Any, path: str, keeps: bool, report: Report) -> frozenset[str]:
    if value is None:
        return frozenset(PARTS) if keeps else frozenset()
    if not isinstance(value, list | tuple) or not all(isinstance(part, str) for part in value):
        report(path, "expected a list of prompt, generated")
        return frozenset()
    for index, part in enumerate(value):
        if part not in PARTS:
            report(below(path, index), f"unknown part '{part}'; {names.hint(part, PARTS)}")
        elif part in value[:index]:
            report(below(path, index), f"'{part}' is listed twice")
    if value and not keeps:
        report(path, "this role stores into no store, so there is nothing to write back; add one to store")
    if not value and keeps:
        report(path, "empty, so the role's stores would stay empty; name prompt, generated or both")
    return frozenset(value) & frozenset(PARTS)


def _steps(data: Any, path: str, word: str, known: Known, report: Report) -> tuple[Step, ...]:
    """`word` is the long form's key for the member: `to` when storing, `from` when retrieving."""
    if not isinstance(data, list | tuple):
        report(path, "expected a list of member names")
        return ()
    steps: list[Step] = []
    for index, item in enumerate(data):
        step = _step(item, below(path, index), word, known, report)
        if step is None:
            continue
        if any(step.member == earlier.member for earlier in steps):
            report(below(path, index), f"'{step.member}' is listed twice")
            continue
        steps.append(step)
    wires = [step.member for step in steps if step.member in known.transports]
    if len(wires) > 1:
        report(path, f"names {len(wires)} transports ({', '.join(wires)}); a list may name one")
    return tuple(steps)


def _step(item: Any, path: str, word: str, known: Known, report: Report) -> Step | None:
    long = isinstance(item, Mapping)
    fields = item if long else {word: item}
    keys = (word, "deadline", "when", *(("promote",) if word == "from" else ("write", "codec")))
    for key in fields:
        if key not in keys:
            report(below(path, key), f"unknown key; {names.hint(key, keys)}")
    name = fields.get(word)
    where = below(path, word) if long else path
    if not isinstance(name, str):
        report(where, f"expected a member's name, as '{word}: pool'" if long else "expected a member's name")
        return None
    if name not in known.all:
        report(where, f"unknown member '{name}'; {names.hint(name, known.all)}")
        return None
    wire = name in known.transports
    default = SAVE_DEADLINE if word == "to" else PULL_DEADLINE if wire else LOAD_DEADLINE
    return Step(
        member=name,
        deadline=_deadline(fields, path, default, report),
        promote=_promote(fields.get("promote", []), below(path, "promote"), name, known, report),
        codec=_codec(fields["codec"], below(path, "codec"), name, known, report) if "codec" in fields else (),
        write=_write(fields.get("write", "through"), below(path, "write"), name, known, report),
        **_when(fields, path, word, name, known, report),
    )


def _deadline(fields: Mapping[str, Any], path: str, default: float, report: Report) -> float:
    if "deadline" not in fields:
        return default
    try:
        value = units.seconds(fields["deadline"])
    except ValueError as error:
        report(below(path, "deadline"), str(error))
        return default
    if not 0 < value <= LONGEST_DEADLINE:
        report(below(path, "deadline"), f"must be above 0 and at most {LONGEST_DEADLINE:.0f}s, found {value:g}s")
    return value


def _promote(value: Any, path: str, source: str, known: Known, report: Report) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        report(path, "expected a list of store names")
        return ()
    targets: list[str] = []
    for index, name in enumerate(value):
        where = below(path, index)
        if name not in known.stores:
            extra = "; it is a transport, which keeps nothing" if name in known.transports else ""
            report(where, f"unknown store '{name}'{extra or '; ' + names.hint(str(name), known.stores)}")
        elif name == source:
            report(where, f"'{name}' cannot be promoted to itself")
        elif name in targets:
            report(where, f"'{name}' is listed twice")
        else:
            targets.append(name)
    return tuple(targets)


def _codec(value: Any, path: str, member: str, known: Known, report: Report) -> tuple[str, ...]:
    chain = value if isinstance(value, list | tuple) else [value]
    if not chain or not all(isinstance(name, str) and name for name in chain):
        report(
            path,
            "expected a codec's name: an entry of 'codecs', or a plugin's that needs no options; or a list of such",
        )
        return ()
    if member in known.transports:
        report(
            path, f"'{member}' is a transport: peers pull chunks as they are; encode them on a store, or use its TLS"
        )
    elif member in known.hosts:
        report(path, f"'{member}' is the host tier, which engines copy from and to; name the codec on another store")
    else:
        return tuple(chain)
    return ()


def _when(fields: Mapping[str, Any], path: str, word: str, member: str, known: Known, report: Report) -> dict[str, Any]:
    if "when" not in fields:
        return {}
    where = below(path, "when")
    if member in known.hosts:
        report(where, f"'{member}' is the host tier, where every chunk passes; a condition cannot hold there")
    elif word == "to" and member in known.transports:
        report(where, f"'{member}' is a transport: a peer asks for its chunks, so no condition can hold them back")
    elif member in known.transports:
        report(where, f"'{member}' is a transport, which brings what its peer promised; only a store can be passed by")
    rules = conditions.STORING if word == "to" else conditions.RETRIEVING
    return conditions.read(fields["when"], where, rules, report)


def _write(value: Any, path: str, member: str, known: Known, report: Report) -> str:
    if value not in WRITES:
        report(path, f"expected one of {', '.join(WRITES)}, found {value!r}")
        return "through"
    if value == "back" and member not in known.stores:
        report(path, f"'{member}' is a transport: a peer asks for its chunks, so there is nothing to put off")
    elif value == "back" and member in known.hosts:
        report(path, f"'{member}' is the host tier itself; name the store that chunks go to when they leave it")
    return str(value)
