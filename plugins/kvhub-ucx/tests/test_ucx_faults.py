"""What the wire must withstand over each kind of UCX's lanes: peers that die, hang, lie and come back."""

from __future__ import annotations

import os

import pytest

from kvhub.testing import WireFaults
from kvhub.testing.wire_time import TimeLaws

pytest.importorskip("kvhub_ucx")
pytestmark = pytest.mark.usefixtures("ucx")
_ANY = {"provider": os.environ.get("KVHUB_TEST_UCX_PROVIDER", "auto")}


class TestTcp(WireFaults):
    use, path, options = "ucx", "message", {"transports": "tcp", **_ANY}


class TestSharedMemory(WireFaults):
    """Messages through UCX's own shared memory, as between containers."""

    use, path, options, moments = "ucx", "message", _ANY, "few"


class TestPut(WireFaults):
    """The server writes into the puller's region; here by cross-memory attach, which no end of ours can fence."""

    use, path, options = "ucx", "put", {"transports": "cma", **_ANY}


class TestMapped(WireFaults):
    """No lane at all, which is the core's own."""

    use, path, options, moments = "ucx", "mapped", _ANY, "few"


@pytest.mark.slow
class TestLongTcp(TimeLaws):
    use, path, options, aborts = "ucx", "message", {"transports": "tcp", **_ANY}, 1000


@pytest.mark.slow
class TestLongPut(TimeLaws):
    use, path, options, aborts = "ucx", "put", {"transports": "cma", **_ANY}, 1000
