"""The contract passes a correct transport."""

import pytest
from reference_transport import ReferenceConfig, ReferenceTransport

from kvhub.testing import TransportContract


class TestReferenceTransport(TransportContract):
    faults = "one"

    @pytest.fixture
    def member_factory(self):
        return lambda context: ReferenceTransport(ReferenceConfig(), context)
