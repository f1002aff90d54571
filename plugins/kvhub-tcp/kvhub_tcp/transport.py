"""`TcpTransport`: kvhub's wire over sockets."""

from __future__ import annotations

from typing import ClassVar

import attrs

from kvhub.wire.lane import Fabric
from kvhub.wire.member import WireTransport
from kvhub.wire.options import WireConfig
from kvhub_tcp.fabric import TcpFabric


@attrs.frozen(kw_only=True)
class Config(WireConfig):
    """The wire's options; there is nothing to choose about a socket."""


class TcpTransport(WireTransport):
    """Pulls chunks by key out of a peer's arena into ours, over a connection beside the control connection."""

    Config: ClassVar[type] = Config

    def fabric(self) -> Fabric:
        return TcpFabric()
