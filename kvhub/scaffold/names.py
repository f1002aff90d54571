"""What a new plugin may be called, and all the names that follow from that."""

from __future__ import annotations

import re
import zlib

import attrs
from packaging.utils import canonicalize_name

from kvhub.errors import KvhubError
from kvhub.installed import OURS, installed

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_MOST = 32
_TAKEN = {"front", "kernels"}
"""Ours, too, but no plugins: their distributions are called as a plugin's would be."""


@attrs.frozen
class Names:
    """Everything that is called after one word of the author's."""

    name: str
    """What the YAML says after `use:`."""

    @property
    def word(self) -> str:
        return self.name.replace("-", "_")

    @property
    def module(self) -> str:
        return f"kvhub_{self.word}"

    @property
    def distribution(self) -> str:
        return f"kvhub-{self.name}"

    @property
    def cls(self) -> str:
        """The beginning of class names."""
        return "".join(part.capitalize() for part in self.name.split("-"))

    @property
    def code(self) -> int:
        """A codec's code: 128 to 255, from the name, so that two authors seldom choose the same."""
        return 128 + zlib.crc32(self.name.encode()) % 128


def check(name: str) -> Names:
    """The names of a new plugin.  Raises KvhubError for a name that is none or that is taken."""
    if name.startswith("kvhub"):
        short = name.removeprefix("kvhub").strip("-_")
        raise KvhubError(f"'{name}': leave out 'kvhub', it is added by itself{f'; say {short!r}' if short else ''}")
    if not _NAME.fullmatch(name) or len(name) > _MOST:
        raise KvhubError(
            f"{name!r} cannot be a plugin's name: write at most {_MOST} of a-z, 0-9 and single '-', from a letter on"
        )
    names = Names(name)
    if name in OURS or name in _TAKEN:
        raise KvhubError(f"'{name}' is a package of kvhub's own; choose another name")
    for plugin in installed():
        if plugin.name == name or canonicalize_name(plugin.distribution) == names.distribution:
            raise KvhubError(f"'{name}' is taken by {plugin}, which is installed; choose another name")
    return names
