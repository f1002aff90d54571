"""The laws of every transport, between transports of this plugin over real sockets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kvhub.testing import TransportContract
from kvhub.transport import Transport
from kvhub.types import MemberContext
from kvhub_tcp import Config, TcpTransport


def _making(**options: Any) -> Callable[[MemberContext], Transport]:
    return lambda context: TcpTransport(Config(**options), context)


class TestSockets(TransportContract):
    @pytest.fixture
    def member_factory(self) -> Callable[[MemberContext], Transport]:
        return _making(path="message")


class TestSecret(TransportContract):
    """Everything sealed; on one machine the arena is mapped."""

    @pytest.fixture
    def member_factory(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[MemberContext], Transport]:
        monkeypatch.setenv("KVHUB_TEST_SECRET", "correct horse")
        return _making(secret_env="KVHUB_TEST_SECRET")
