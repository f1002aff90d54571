"""`UcxTransport`: kvhub's wire over the lanes of UCX."""

from __future__ import annotations

from typing import ClassVar

from kvhub.types import MemberContext
from kvhub.wire.lane import Fabric
from kvhub.wire.member import WireTransport
from kvhub_ucx import config as options
from kvhub_ucx._fabric import UcxFabric


class UcxTransport(WireTransport):
    """Pulls chunks by key out of a peer's arena into ours; see the README for UCX, docs/transport.md for the rest.

    Counters: those of `WireTransport`; lane_unwanted (pairings on another lane than `require` names).
    """

    Config: ClassVar[type] = options.Config

    def __init__(self, config: options.Config, context: MemberContext) -> None:
        super().__init__(config, context)
        self.config: options.Config = config

    def fabric(self) -> Fabric:
        return UcxFabric(self.config, self.context)
