"""`Engine`: how a plugin describes the engine that its adapter serves, and what an adapter tells the hub.

What never crosses from an adapter into the hub: an engine's request, its configuration, a tensor.  What does
cross is in `EngineFacts` and in the numbers of `kvhub.session`.
"""

from __future__ import annotations

from typing import ClassVar

import attrs

from kvhub.keys import Namespace
from kvhub.layout import Layout

ROLES = ("prefill", "decode", "both")


@attrs.frozen
class EngineFacts:
    """What an adapter tells the hub once, when the engine knows its own KV."""

    engine: str
    """Name and version, for logs: `vllm 0.32.0`."""
    role: str
    namespace: Namespace
    layout: Layout
    block_tokens: int
    """Tokens of an engine block."""
    max_request_tokens: int = 0
    """The engine's longest request; 0 when unknown.  For sizing warnings only."""


class Engine:
    """Description of one engine adapter, for `kvhub plugins`, `kvhub check` and contract tests."""

    name: ClassVar[str]
    distribution: ClassVar[str]
    """Distribution whose version is checked: `vllm`."""
    versions: ClassVar[str]
    """The tested range, PEP 440: `>=0.27,<0.33`."""

    @classmethod
    def installed(cls) -> str | None:
        """Version of the engine in this environment, or None; imports nothing of the engine."""
        from importlib import metadata

        try:
            return metadata.version(cls.distribution)
        except metadata.PackageNotFoundError:
            return None
