"""The store contract, on a real S3 server."""

from __future__ import annotations

import pytest
from s3server import Server

from kvhub.testing.store import StoreContract
from kvhub_s3 import BucketStore
from kvhub_s3.config import BucketConfig, Credentials


class TestBucketStore(StoreContract):
    patience = 20.0

    @pytest.fixture
    def member_factory(self, server: Server, bucket: str, prefix: str, environment: None):
        config = BucketConfig(bucket=bucket, prefix=prefix, endpoint=server.endpoint, credentials=Credentials("KVTEST"))
        return lambda context: BucketStore(config, context)

    @pytest.fixture
    def medium(self, objects):
        return objects
