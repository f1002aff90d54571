"""The contract passes a correct store."""

import pytest
from reference_store import ReferenceConfig, ReferenceStore

from kvhub.testing import StoreContract


class DictMedium:
    def __init__(self):
        self.objects = {}

    def read(self, context, key):
        return self.objects.get((context.namespace, key))

    def write(self, context, key, data):
        self.objects[context.namespace, key] = data


class TestReferenceStore(StoreContract):
    faults = "one"

    @pytest.fixture
    def medium(self):
        return DictMedium()

    @pytest.fixture
    def member_factory(self, medium):
        return lambda context: ReferenceStore(ReferenceConfig(medium.objects), context)
