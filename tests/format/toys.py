"""Codecs of a few lines, for what the core does with codecs."""

from __future__ import annotations

import os
from types import SimpleNamespace

import attrs

from kvhub import KvhubError, hookimpl
from kvhub.codec import About, Codec
from kvhub.errors import Foreign

MARK = b"toy1"


@attrs.frozen
class TurnOptions:
    by: int = 0x55
    grow: int = 0


class Turn(Codec):
    """Exact: every bit pattern turned; payloads that begin with `raw` stay as they are."""

    name, code = "turn", 200
    Config = TurnOptions
    config: TurnOptions

    def encode(self, payload: memoryview, about: About) -> bytes | None:
        if bytes(payload[:3]) == b"raw":
            return None
        if bytes(payload[:5]) == b"raise":
            raise ZeroDivisionError("as asked")
        return MARK + bytes(self.config.grow) + bytes(byte ^ self.config.by for byte in payload)

    def decode(self, stored: memoryview, room: memoryview, about: About) -> int:
        if bytes(stored[:3]) != MARK[:3]:
            raise ValueError("not mine")
        if bytes(stored[:4]) != MARK:
            raise Foreign("form")
        body = bytes(stored[4 + self.config.grow :])
        if body[:4] == bytes(byte ^ self.config.by for byte in b"EIO!"):
            raise OSError(5, "as asked")
        room[: len(body)] = bytes(byte ^ self.config.by for byte in body)
        return len(body)


@attrs.frozen
class SealOptions:
    key: str = attrs.field(metadata={"help": "variable with the key"})


class Seal(Turn):
    """A store with it takes nothing else."""

    name, code, kind, seals = "seal", 201, "seal", True
    Config = SealOptions

    def __init__(self, config: SealOptions, name: str) -> None:
        if config.key not in os.environ:
            raise KvhubError(f"codecs.{name}.key: the environment has no {config.key}")
        super().__init__(TurnOptions(by=int(os.environ[config.key])), name)


@attrs.frozen
class RoundOptions:
    bits: int = 4


class Round(Codec):
    """Lossy: the low bits of every byte are gone."""

    name, code, kind, lossy = "round", 202, "round", True
    Config = RoundOptions

    @classmethod
    def identity(cls, config: RoundOptions) -> str:
        return f"round {config.bits}"

    def encode(self, payload: memoryview, about: About) -> bytes:
        return bytes(byte >> self.config.bits << self.config.bits for byte in payload)

    def decode(self, stored: memoryview, room: memoryview, about: About) -> int:
        room[:] = stored
        return stored.nbytes


@hookimpl
def kvhub_register_codecs() -> tuple[type[Codec], ...]:
    return (Turn, Seal, Round)


def plugin() -> SimpleNamespace:
    """To be added to a registry as `toy`."""
    return SimpleNamespace(kvhub_register_codecs=kvhub_register_codecs)
