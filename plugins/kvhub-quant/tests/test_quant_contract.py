"""The store contract, on a directory with lossy codecs: what they cannot round they leave alone."""

from __future__ import annotations

import pytest

from kvhub.testing.store import StoreContract
from kvhub_quant import Fp8Codec, Int8Codec, QuantConfig


class TestInt8(StoreContract):
    """The contract's payloads are noise; read as floats they hold infinities, and so come back exactly."""

    @pytest.fixture
    def member_factory(self, files):
        return lambda context: files.store(context, Int8Codec(QuantConfig(), "int8"))

    @pytest.fixture
    def medium(self, files):
        return files


class TestFp8(StoreContract):
    @pytest.fixture
    def member_factory(self, files):
        return lambda context: files.store(context, Fp8Codec(QuantConfig(), "fp8"))

    @pytest.fixture
    def medium(self, files):
        return files
