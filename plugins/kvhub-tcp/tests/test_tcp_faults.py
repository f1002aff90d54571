"""What the wire must withstand over plain sockets and TLS: peers that die, hang, lie and come back; real processes."""

from __future__ import annotations

import pytest

from kvhub.testing import WireFaults
from kvhub.testing.wire_time import TimeLaws


class TestSockets(WireFaults):
    use, path = "tcp", "message"


class TestMapped(WireFaults):
    use, path = "tcp", "mapped"


class TestTls(WireFaults):
    """Both sides have certificates, and want one of each other."""

    use, path, tls, moments = "tcp", "message", True, "few"


@pytest.mark.slow
class TestLongSockets(TimeLaws):
    use, path, aborts = "tcp", "message", 1000


@pytest.mark.slow
class TestLongMapped(TimeLaws):
    use, path, aborts = "tcp", "mapped", 1000
