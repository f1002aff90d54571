"""The laws of every transport, between transports of this plugin on a real UCX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kvhub.testing import TransportContract
from kvhub.transport import Transport
from kvhub.types import MemberContext

kvhub_ucx = pytest.importorskip("kvhub_ucx")
pytestmark = pytest.mark.usefixtures("ucx")


def _making(**options: Any) -> Callable[[MemberContext], Transport]:
    return lambda context: kvhub_ucx.UcxTransport(kvhub_ucx.Config(**options), context)


class TestMapped(TransportContract):
    """auto: on one machine, the puller reads the server's arena."""

    @pytest.fixture
    def member_factory(self) -> Callable[[MemberContext], Transport]:
        return _making(path="mapped")


class TestMappedChecked(TransportContract):
    @pytest.fixture
    def member_factory(self) -> Callable[[MemberContext], Transport]:
        return _making(checksum="always")


class TestSharedMemory(TransportContract):
    """Messages through UCX's own shared memory, as between containers."""

    @pytest.fixture
    def member_factory(self) -> Callable[[MemberContext], Transport]:
        return _making(path="message")


class TestTcp(TransportContract):
    @pytest.fixture
    def member_factory(self) -> Callable[[MemberContext], Transport]:
        return _making(path="message", transports="tcp")


class TestTcpPut(TransportContract):
    """What `auto` takes over TCP for large chunks: the receiver itself writes what the socket brings into its slots."""

    @pytest.fixture
    def member_factory(self) -> Callable[[MemberContext], Transport]:
        return _making(path="put", transports="tcp")


class TestPut(TransportContract):
    """The server writes into the puller's region, as over RDMA; here by cross-memory attach."""

    @pytest.fixture
    def member_factory(self) -> Callable[[MemberContext], Transport]:
        return _making(path="put", transports="cma")
