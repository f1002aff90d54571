"""The store contract through `ExampleCodec`, and what is its own."""

from __future__ import annotations

import itertools
import random
import zlib
from collections.abc import Callable

import attrs
import pytest

from kvhub import MemberContext
from kvhub.codec import About, Codecs, Encoded
from kvhub.errors import Damaged, Foreign
from kvhub.testing import MemoryConfig, MemoryMedium, MemoryStore, StoreContract
from kvhub_example import ExampleCodec, ExampleCodecConfig
from kvhub_example.codec import FORM

_numbers = itertools.count()


class Always(ExampleCodec):
    """The contract's payloads are noise, which gets no smaller; here it is encoded all the same."""

    def encode(self, payload: memoryview, about: About) -> bytes:
        return bytes([FORM]) + zlib.compress(payload, self.config.level)


class TestExampleCodec(StoreContract):
    """On a store in memory, every chunk encoded."""

    @pytest.fixture
    def medium(self) -> MemoryMedium:
        return MemoryMedium(f"example-{next(_numbers)}")

    @pytest.fixture
    def member_factory(self, medium: MemoryMedium) -> Callable[[MemberContext], MemoryStore]:
        codecs = Codecs(Always(ExampleCodecConfig(), "example"))
        return lambda context: MemoryStore(MemoryConfig(medium.name), attrs.evolve(context, codecs=codecs))


ABOUT = About(bytes(32), bytes(32), "some layout", 20000)
PAYLOAD = memoryview(b"kv and kv again " * 1250)


@pytest.fixture
def own() -> Codecs:
    return Codecs(ExampleCodec(ExampleCodecConfig(), "example"))


def test_what_gets_smaller_comes_back_exactly(own: Codecs) -> None:
    made = own.encode(PAYLOAD, ABOUT)
    room = memoryview(bytearray(PAYLOAD.nbytes))
    own.decode(made.codecs, made.stored, room, ABOUT)
    assert made.codecs == (ExampleCodec.code,) and made.stored.nbytes < PAYLOAD.nbytes // 10 and room == PAYLOAD


def test_noise_is_stored_as_it_is(own: Codecs) -> None:
    noise = memoryview(random.Random(1).randbytes(20000))
    assert own.encode(noise, ABOUT) == Encoded(noise)


def test_a_later_form_is_foreign_and_not_damaged(own: Codecs) -> None:
    with pytest.raises(Foreign):
        own.decode((ExampleCodec.code,), memoryview(b"\x02later"), memoryview(bytearray(20000)), ABOUT)


@pytest.mark.parametrize(
    "stored",
    [
        pytest.param(zlib.compress(PAYLOAD)[:-1], id="cut"),
        pytest.param(zlib.compress(PAYLOAD) + b"more", id="extended"),
        pytest.param(zlib.compress(PAYLOAD[:-1]), id="short"),
        pytest.param(zlib.compress(bytes(PAYLOAD) * 50), id="a bomb"),
        pytest.param(b"nonsense", id="nonsense"),
        pytest.param(b"", id="nothing"),
    ],
)
def test_what_was_not_encoded_is_damaged(own: Codecs, stored: bytes) -> None:
    with pytest.raises(Damaged):
        own.decode((ExampleCodec.code,), memoryview(bytes([FORM]) + stored), memoryview(bytearray(20000)), ABOUT)


@pytest.mark.parametrize("level", [0, 10, True, "1"])
def test_a_wrong_level_says_what_is_right(level: object) -> None:
    with pytest.raises(ValueError, match="expected a level from 1"):
        ExampleCodecConfig(level=level)  # type: ignore[arg-type]
