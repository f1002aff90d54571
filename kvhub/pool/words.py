"""What operators type after `kvhub pool COMMAND`, to numbers; every problem is told at once."""

from __future__ import annotations

import argparse
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from kvhub import units
from kvhub.keys import Context
from kvhub.pool.select import Selection

Value = TypeVar("Value")


class Words:
    """Reads options of one command line and collects what is wrong with them."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        self._chosen = chosen
        self.problems: list[str] = []

    def read(self, name: str, convert: Callable[[str], Value], default: Value) -> Value:
        """The option `--name` converted, or the default where it was not given or is wrong."""
        text: str | None = getattr(self._chosen, name.replace("-", "_"), None)
        if text is None:
            return default
        try:
            return convert(text)
        except ValueError as error:
            self.problems.append(f"--{name}: {error}")
            return default

    def selection(self) -> Selection:
        return Selection(
            namespace=self.read("namespace", hex_digits, ""),
            model=self.read("model", str, ""),
            prefix=self.read("prefix", hex_digits, ""),
            unused_for=self.read("unused-for", units.seconds, 0.0),
            older_than=self.read("older-than", units.seconds, 0.0),
            tenant=self.tenant(),
        )

    def salt(self) -> str | None:
        """The salt that a variable or a file holds: it is a secret, and command lines can be seen by all."""
        given = [name for name in ("salt-env", "salt-file") if self._given(name)]
        if len(given) > 1:
            self.problems.append("--salt-env: says the same as --salt-file; give one of them")
        return self.read("salt-env", _of_environment, None) or self.read("salt-file", _of_file, None)

    def tenant(self) -> bytes:
        """The tag that is meant, by itself or by its salt; empty for none."""
        tag, salt = self.read("tenant", _tag, b""), self.salt()
        if tag and salt is not None:
            self.problems.append("--tenant: says the same as a salt; give one of them")
        return tag or Context(salt=salt).tenant

    def _given(self, name: str) -> bool:
        return getattr(self._chosen, name.replace("-", "_"), None) is not None


def _of_environment(name: str) -> str:
    salt = os.environ.get(name)
    if not salt:
        raise ValueError(f"the environment has no {name}, which is to hold the salt")
    return salt


def _of_file(path: str) -> str:
    try:
        salt = Path(path).read_text(encoding="utf-8").removesuffix("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {getattr(error, 'strerror', None) or 'not UTF-8'}") from None
    if not salt:
        raise ValueError(f"{path} is empty; it is to hold the salt")
    return salt


def _tag(text: str) -> bytes:
    if not re.fullmatch(r"[0-9a-fA-F]{32}", text):
        raise ValueError("expected a tag of 32 hex digits, as `kvhub pool tag` prints it; a salt is no tag")
    return bytes.fromhex(text)


def hex_digits(text: str) -> str:
    low = text.lower()
    if not text or len(text) > 64 or low.strip("0123456789abcdef"):
        raise ValueError(f"expected up to 64 hex digits, found {text!r}")
    return low


def per_second(text: str) -> float:
    """`500/s` or `500`."""
    try:
        value = float(text.removesuffix("/s"))
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise ValueError(f"expected a number per second such as '500/s', found {text!r}")
    return value


def bytes_per_second(text: str) -> float:
    """`200MiB/s`."""
    value = units.size(text.removesuffix("/s"))
    if value <= 0:
        raise ValueError(f"expected bytes per second such as '200MiB/s', found {text!r}")
    return value


def fraction(text: str) -> float:
    """`0.9` or `90%`."""
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = math.nan
    if not 0 < value <= 1:
        raise ValueError(f"expected a fraction such as '0.9' or '90%', found {text!r}")
    return value


def free_space(text: str) -> float:
    """`10%` as 0.1, or a size in bytes."""
    if not text.endswith("%"):
        return max(1.0, units.size(text))
    value = fraction(text)
    if value == 1:
        raise ValueError("expected less than 100%")
    return value


def count(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 10**12:
        raise ValueError(f"expected a whole number from 1 on, found {text!r}")
    return int(text)
