"""What the wire must withstand over each kind of UCX's lanes: peers that die, hang, lie and come back.

What does not depend on how payloads move is tried in the tests of kvhub-tcp; the long forms try everything here, too.
"""

from __future__ import annotations

import os

import pytest

from kvhub.testing import WireFaults
from kvhub.testing.wire_lies import LieLaws
from kvhub.testing.wire_states import StateLaws
from kvhub.testing.wire_time import TimeLaws

pytest.importorskip("kvhub_ucx")
pytestmark = pytest.mark.usefixtures("ucx")
_ANY = {"provider": os.environ.get("KVHUB_TEST_UCX_PROVIDER", "auto")}
_TCP = {"transports": "tcp", **_ANY}
# Checks are moments that the laws stop and kill at; by default there are none within a machine.
_SHM = {"checksum": "always", **_ANY}
_CMA = {"transports": "cma", **_SHM}


class TestTcp(WireFaults):
    use, path, options, moments = "ucx", "message", _TCP, "few"


class TestSharedMemory(StateLaws):
    """Messages through UCX's own shared memory, as between containers."""

    use, path, options, moments = "ucx", "message", _SHM, "few"


class TestPut(StateLaws, LieLaws, TimeLaws):
    """The server writes into the puller's region; here by cross-memory attach, which no end of ours can fence."""

    use, path, options, moments = "ucx", "put", _CMA, "few"


class TestTcpPut(WireFaults):
    """What `auto` takes over TCP for large chunks."""

    use, path, options, moments = "ucx", "put", _TCP, "few"
    fenced = True


@pytest.mark.slow
class TestLongTcpPut(WireFaults):
    use, path, options = "ucx", "put", _TCP
    fenced = True


@pytest.mark.slow
class TestLongTcp(WireFaults):
    use, path, options = "ucx", "message", _TCP


@pytest.mark.slow
class TestLongSharedMemory(WireFaults):
    use, path, options = "ucx", "message", _SHM


@pytest.mark.slow
class TestLongPut(WireFaults):
    use, path, options = "ucx", "put", _CMA


@pytest.mark.slow
class TestLongMapped(WireFaults):
    use, path, options = "ucx", "mapped", _ANY
