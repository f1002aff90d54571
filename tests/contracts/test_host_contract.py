"""The store contract, on the host tier attached to a region that is not its own arena."""

import pytest

from kvhub.builtin.host import HostConfig, HostStore
from kvhub.testing import StoreContract


class TestHostStore(StoreContract):
    @pytest.fixture
    def member_factory(self):
        return lambda context: HostStore(HostConfig(capacity="16MiB"), context)
