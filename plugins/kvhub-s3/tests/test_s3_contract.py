"""The store contract, on a real S3 server."""

from __future__ import annotations

import pytest
from s3server import Server

from kvhub.testing.store import StoreContract
from kvhub_s3 import BucketStore
from kvhub_s3.config import BucketConfig, Credentials
from kvhub_s3.download import Downloads
from kvhub_s3.failures import BadTls


class TestBucketStore(StoreContract):
    patience = 20.0

    @pytest.fixture
    def member_factory(self, server: Server, bucket: str, prefix: str, environment: None):
        config = BucketConfig(bucket=bucket, prefix=prefix, endpoint=server.endpoint, credentials=Credentials("KVTEST"))
        return lambda context: BucketStore(config, context)

    @pytest.fixture
    def medium(self, objects):
        return objects


@pytest.mark.slow
class TestReadsByObstore(TestBucketStore):
    """The way of reads where a proxy stands between, or where Python's TLS trusts less than obstore's."""

    @pytest.fixture(autouse=True)
    def no_sockets_of_our_own(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def cannot(*arguments: object) -> None:
            raise BadTls("made up")

        monkeypatch.setattr(Downloads, "get", cannot)
