"""The laws of every transport, between transports of this plugin on a real UCX."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvhub.testing import TransportContract
from kvhub.types import MemberContext
from kvhub_ucx import Config, UcxTransport

libucp = pytest.importorskip("kvhub_ucx._libucp")
try:
    libucp.load()
except Exception as error:
    pytest.skip(f"no UCX here: {error}", allow_module_level=True)


class TestSharedMemory(TransportContract):
    """auto: on one machine, shared memory."""

    @pytest.fixture
    def member_factory(self) -> Callable[[MemberContext], UcxTransport]:
        return lambda context: UcxTransport(Config(), context)


class TestTcp(TransportContract):
    @pytest.fixture
    def member_factory(self) -> Callable[[MemberContext], UcxTransport]:
        return lambda context: UcxTransport(Config(transports="tcp"), context)
