"""kvhub-tcp: moves KV chunks between two hubs' arenas over plain sockets or TLS; needs nothing but the core.

    transports:
      wire: {use: tcp, listen: "10.0.0.1:7700", tls_cert: /etc/kvhub/hub.pem, tls_ca: /etc/kvhub/ca.pem}

The protocol, pairing and every rule about what may be believed are kvhub's own (`kvhub.wire`); `fabric.py` brings the
second connection that payloads go over, `lane.py` the messages on it.
"""

from __future__ import annotations

from kvhub.hookspecs import hookimpl
from kvhub.transport import Transport
from kvhub_tcp.transport import Config, TcpTransport

__all__ = ["Config", "TcpTransport", "kvhub_register_transports"]


@hookimpl
def kvhub_register_transports() -> tuple[type[Transport], ...]:
    return (TcpTransport,)
