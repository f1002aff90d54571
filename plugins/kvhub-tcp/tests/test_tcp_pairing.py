"""Who is let in over sockets, with and without TLS."""

from __future__ import annotations

from kvhub.testing import WirePairing


class TestPairing(WirePairing):
    use, path = "tcp", "message"


class TestPairingByTls(WirePairing):
    use, path, tls = "tcp", "message", True
