"""kvhub in SGLang.

`storage` is what SGLang's HiCache loads by its own dynamic loading (module `kvhub_sglang.storage`, class
`KvhubStorage`).  HiCache names pages by hashes of its own; `hooks` learns, through SGLang's plugin framework, which
tokens each hash stands for, and `ledger` turns that into kvhub's keys, so that the pool is shared with other engines.
`facts` says what the KV of this engine is, `pages` where it lies in host memory, and `traffic` moves it.

This module imports neither SGLang nor torch, so that `kvhub plugins` and SGLang's own plugin loading stay quick.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from kvhub.engine import Engine
from kvhub.hookspecs import hookimpl

__version__ = "0.1.0"
__all__ = ["VERSIONS", "SglangEngine", "kvhub_register_engines", "register"]
VERSIONS = ">=0.5.23,<0.5.24"
"""The range of SGLang that is tested, PEP 440."""


class SglangEngine(Engine):
    """SGLang as `kvhub plugins` and `kvhub check` show it."""

    name: ClassVar[str] = "sglang"
    distribution: ClassVar[str] = "sglang"
    versions: ClassVar[str] = VERSIONS


@hookimpl
def kvhub_register_engines() -> Iterable[type[Engine]]:
    """SGLang."""
    return (SglangEngine,)


def register() -> None:
    """SGLang's plugin entry point; it runs in every process of the engine."""
    from kvhub_sglang.hooks import install

    install()
