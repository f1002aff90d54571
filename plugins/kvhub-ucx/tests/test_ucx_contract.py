"""The laws of every transport, between transports of this plugin on a real UCX."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvhub.testing import TransportContract
from kvhub.transport import Transport
from kvhub.types import MemberContext

kvhub_ucx = pytest.importorskip("kvhub_ucx")
pytestmark = pytest.mark.usefixtures("ucx")


class TestSharedMemory(TransportContract):
    """auto: on one machine, shared memory."""

    @pytest.fixture
    def member_factory(self) -> Callable[[MemberContext], Transport]:
        return lambda context: kvhub_ucx.UcxTransport(kvhub_ucx.Config(), context)


class TestTcp(TransportContract):
    @pytest.fixture
    def member_factory(self) -> Callable[[MemberContext], Transport]:
        return lambda context: kvhub_ucx.UcxTransport(kvhub_ucx.Config(transports="tcp"), context)
