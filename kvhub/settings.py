"""The checked configuration as frozen objects: what `kvhub.config.load` hands over, and what everyone reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from kvhub import options, units
from kvhub.codec import Encodings
from kvhub.member import Member
from kvhub.roles import RoleConfig, Step
from kvhub.yamlfile import below

MODEL_KEYS = ("id", "revision")


def _above_zero(instance: Any, attribute: Any, value: float) -> None:
    if not value > 0:
        raise ValueError(f"must be above 0, found {value}")


@attrs.frozen
class Limits:
    """Bounds of the hub itself."""

    lookup: float = attrs.field(
        default=0.05,
        converter=units.seconds,
        validator=_above_zero,
        metadata={"help": "seconds that a lookup waits for members other than the host tier"},
    )
    queue: int = attrs.field(
        default=1 << 30,
        converter=units.size,
        validator=_above_zero,
        metadata={"help": "bytes of chunks that may wait for background stores; more are dropped and counted"},
    )
    queue_seconds: float = attrs.field(
        default=20.0,
        converter=units.seconds,
        validator=_above_zero,
        metadata={
            "help": "seconds of work, at the rate measured, that may wait for a background store; more is dropped"
        },
    )
    lease: float = attrs.field(
        default=60.0,
        converter=units.seconds,
        validator=_above_zero,
        metadata={"help": "seconds that chunks promised to a decode peer are kept for it"},
    )
    staging: int = attrs.field(
        default=512 << 20,
        converter=units.size,
        validator=_above_zero,
        metadata={"help": "bytes of the arena when the role has no host tier"},
    )
    stream_chunks: int = attrs.field(
        default=8,
        validator=_above_zero,
        metadata={"help": "chunks that a decode pulls at a time from a prefill that still computes"},
    )
    stream_grace: float = attrs.field(
        default=2.0,
        converter=units.seconds,
        validator=_above_zero,
        metadata={"help": "seconds that a decode gives a prefill to hear of a streamed request"},
    )


@attrs.frozen
class MemberConfig:
    """One store or transport of the file."""

    name: str
    kind: str
    """`store` or `transport`."""
    use: str
    cls: type[Member]
    options: Any
    """An instance of `cls.Config`."""


@attrs.frozen
class Config:
    """A whole, checked configuration."""

    members: Mapping[str, MemberConfig]
    """In the order of the file, stores first; with a role given to `load`, only those that this role touches."""
    roles: Mapping[str, RoleConfig]
    limits: Limits = attrs.field(factory=Limits)
    chunk_tokens: int = 64
    model: Mapping[str, str] = attrs.field(factory=dict)
    """`id` and `revision` where the operator fixed them; adapters fill in the rest from the engine."""
    on_miss: str = "recompute"
    encodings: Encodings = attrs.field(factory=Encodings)
    """The codecs of the file, and which store has which."""
    allowed: tuple[str, ...] | None = None
    """Distributions whose plugins may be imported; None: all."""
    origin: Mapping[str, str] = attrs.field(factory=dict)
    """Dotted path of every effective value -> `FILE:LINE`, `environment KVHUB_...`, `argument` or `default`."""
    path: str = ""
    """The file, or "" when the source was a mapping."""
    warnings: tuple[str, ...] = ()
    """What starts, but is probably not meant."""
    plain: Mapping[str, Any] = attrs.field(factory=dict, repr=False)
    """The file with the environment laid over it, as plain data: what hooks are given."""

    def values(self) -> Iterator[tuple[str, Any]]:
        """(dotted path, effective value) of everything, in the order of `origin`; secrets are blanked out."""
        for name in MODEL_KEYS:
            if name in self.model:
                yield below("model", name), self.model[name]
        yield "chunk_tokens", self.chunk_tokens
        yield "on_miss", self.on_miss
        if self.allowed is not None:
            yield "plugins.allow", self.allowed
        yield from _leaves(self.limits, "limits")
        for codec in self.encodings.codecs.values():
            path = below("codecs", codec.name)
            yield below(path, "use"), codec.use
            yield from _leaves(codec.options, path)
        for member in self.members.values():
            path = below(f"{member.kind}s", member.name)
            yield below(path, "use"), member.use
            yield from _leaves(member.options, path)
        for role in self.roles.values():
            yield from _role_values(role, below("roles", role.name))


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    for name, field in options.fields_of(type(value)).items():
        inner = getattr(value, field.name)
        if attrs.has(type(inner)):
            yield from _leaves(inner, below(path, name))
        else:
            yield below(path, name), options.show(field, inner)


def _role_values(role: RoleConfig, path: str) -> Iterator[tuple[str, Any]]:
    for word, steps in (("store", role.store), ("retrieve", role.retrieve)):
        for index, step in enumerate(steps):
            inner = below(below(path, word), index)
            yield inner, step.member
            yield below(inner, "deadline"), step.deadline
            if step.promote:
                yield below(inner, "promote"), step.promote
            for name in ("uses", "prefix_chunks", "part", "faster", "missing_chunks"):
                if (value := getattr(step, name)) != getattr(attrs.fields(Step), name).default:
                    yield below(inner, f"when.{name}"), value
            if step.write != "through":
                yield below(inner, "write"), step.write
            if step.codec:
                yield below(inner, "codec"), step.codec if len(step.codec) > 1 else step.codec[0]
    yield below(path, "write_back"), tuple(sorted(role.write_back, reverse=True))
