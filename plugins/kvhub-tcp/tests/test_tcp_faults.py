"""What the wire must withstand over plain sockets and TLS: peers that die, hang, lie and come back; real processes.

What does not depend on how payloads move is tried once; the long forms try every state on every path.
"""

from __future__ import annotations

import pytest

from kvhub.testing import WireFaults
from kvhub.testing.wire_forgery import ForgeryLaws
from kvhub.testing.wire_lies import LieLaws
from kvhub.testing.wire_states import StateLaws


class TestSockets(WireFaults):
    use, path = "tcp", "message"


class TestMapped(StateLaws, LieLaws, ForgeryLaws):
    use, path, moments = "tcp", "mapped", "few"


class TestTls(StateLaws, ForgeryLaws):
    """Both sides have certificates, and want one of each other."""

    use, path, tls, moments = "tcp", "message", True, "few"


@pytest.mark.slow
class TestLongMapped(WireFaults):
    use, path = "tcp", "mapped"


@pytest.mark.slow
class TestLongTls(WireFaults):
    use, path, tls = "tcp", "message", True
