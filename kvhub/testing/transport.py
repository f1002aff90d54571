"""`TransportContract`: what every transport must do, as pytest laws."""

from __future__ import annotations

from kvhub.testing.transport_basic import BasicLaws
from kvhub.testing.transport_claims import ClaimLaws
from kvhub.testing.transport_safety import SafetyLaws


class TransportContract(BasicLaws, SafetyLaws, ClaimLaws):
    """Subclass this in a test file and define one fixture; every law then runs between transports of yours.

        class TestMine(TransportContract):
            @pytest.fixture
            def member_factory(self):
                return lambda context: MyTransport(MyTransport.Config(listen="127.0.0.1:0"), context)

    `member_factory`: callable(MemberContext) -> a new member, not attached, that listens on a free loopback port.
    `slots`, `slot_bytes`, `patience`, `loopback`, `excuses`: see `Stage`, `ClaimLaws` and `guard`.  Nothing else may
    be overridden.
    """
