"""Several codecs in a row: what is stored, what is named, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from format import toys
from format.shelf import DATA, KEY, Bench
from format.toys import MARK, Round, RoundOptions, Seal, SealOptions, Turn, TurnOptions

from kvhub import ConfigError, PluginError, chunkfile, hookimpl
from kvhub.codec import About, Codec, CodecError, Codecs, Encoded
from kvhub.config import load
from kvhub.errors import Damaged, Foreign
from kvhub.plugins import Registry
from kvhub.types import MOST_GROWTH, Outcome

ABOUT = About(KEY, bytes(32), "layout", 6, 2, bytes(range(16)))
DONE, MISS, CORRUPT = Outcome.DONE, Outcome.MISS, Outcome.CORRUPT


class Half(Codec):
    """Keeps every second byte of payloads whose bytes come in equal pairs; leaves others as they are."""

    name, code = "half", 203
    Config = TurnOptions

    def __init__(self, label: str = "half") -> None:
        super().__init__(TurnOptions(), label)
        self.told: list[About] = []

    def encode(self, payload: memoryview, about: About) -> bytes | None:
        self.told.append(about)
        data = bytes(payload)
        return data[::2] if data[::2] == data[1::2] else None

    def decode(self, stored: memoryview, room: memoryview, about: About) -> int:
        self.told.append(about)
        room[::2] = stored
        room[1::2] = stored
        return room.nbytes


TURN = Turn(TurnOptions(), "turn")


def back(codecs: Codecs, made: Encoded, size: int = 6, about: About = ABOUT) -> bytes:
    room = memoryview(bytearray(size))
    codecs.decode(made.codecs, made.stored, room, about, made.between)
    return bytes(room)


def test_codecs_are_applied_in_order_and_undone_from_the_last() -> None:
    own = Codecs([Half(), TURN])
    made = own.encode(memoryview(b"aabbcc"), ABOUT)
    assert (made.codecs, made.between) == ((203, 200), (3,))
    assert bytes(made.stored) == MARK + bytes(byte ^ 0x55 for byte in b"abc")
    assert back(Codecs((), [TURN, Half()]), made) == b"aabbcc", "whatever the reader's own order is"


def test_a_codec_that_leaves_a_payload_is_not_named() -> None:
    own = Codecs([Half(), TURN])
    made = own.encode(memoryview(b"abcdef"), ABOUT)
    assert (made.codecs, made.between) == ((200,), ())
    assert back(own, made) == b"abcdef"
    assert own.encode(memoryview(b"rawxyz"), ABOUT) == Encoded(memoryview(b"rawxyz"))
    only = own.encode(memoryview(b"rr"), ABOUT)
    assert only.codecs == (203, 200), "what follows is asked for what came before it"


def test_each_codec_is_told_what_it_works_on() -> None:
    first, second = Half(), Half()
    second.code = 204  # type: ignore[misc]
    own = Codecs([first, second])
    made = own.encode(memoryview(b"aaaabbbb"), About(KEY, bytes(32), "layout", 8, 2, b"t" * 16))
    assert (
        made.codecs == (203, 204)
        and back(own, made, 8, About(KEY, bytes(32), "layout", 8, 2, b"t" * 16)) == b"aaaabbbb"
    )
    assert [(about.payload_bytes, about.encoded) for about in first.told] == [(8, ()), (8, ())]
    assert [(about.payload_bytes, about.encoded) for about in second.told] == [(4, (203,)), (4, (203,))]
    assert {(about.tenant, about.layout, about.generated) for about in second.told} == {(b"t" * 16, "layout", 2)}


def test_a_chain_may_grow_a_payload_no_more_than_one_codec_may() -> None:
    grown = Turn(TurnOptions(grow=MOST_GROWTH - 4), "grow")
    grown.code = 205  # type: ignore[misc]
    with pytest.raises(CodecError, match="codec 'turn' made"):
        Codecs([grown, TURN]).encode(memoryview(b"abcdef"), ABOUT)


def header(store: Bench) -> chunkfile.Header:
    return chunkfile.parse(store.objects[KEY.hex()])


PAIRS = bytes(byte for byte in DATA[: len(DATA) // 2] for _ in range(2))


def test_a_store_keeps_and_reads_a_chain(bench: Callable[..., Bench]) -> None:
    store = bench(Codecs([Half(), TURN]))
    store.hub.keep({KEY: PAIRS})
    told = header(store)
    assert (told.codec, told.codecs, told.between) == (5, (203, 200), (len(PAIRS) // 2,))
    assert (told.payload_bytes, told.stored_bytes) == (len(PAIRS), len(PAIRS) // 2 + 4)
    assert store.hub.read([KEY]) == [PAIRS]
    assert bench(Codecs(None, [TURN, Half()])).hub.read([KEY]) == [PAIRS], "by whoever has both"
    lacking = bench(Codecs(TURN))
    assert lacking.hub.load([KEY]).outcomes == (MISS,) and lacking.counts == {"foreign_objects": 1}


@pytest.mark.parametrize(
    ("codecs", "between", "outcome"),
    [
        ((203, 200), (len(DATA) // 2 + 1,), CORRUPT),
        ((203, 200), (len(DATA) + MOST_GROWTH + 1,), CORRUPT),
        ((203, 200), (1 << 62,), CORRUPT),
        ((203, 200), (0,), CORRUPT),
        ((200, 203), (len(DATA) // 2,), CORRUPT),
        ((203, 99), (len(DATA) // 2,), MISS),
    ],
)
def test_A30_what_a_header_says_of_a_chain_is_not_believed(
    bench: Callable[..., Bench], codecs: tuple[int, ...], between: tuple[int, ...], outcome: Outcome
) -> None:
    """And takes no memory for it."""
    store = bench(Codecs([Half(), TURN]))
    stored = MARK + bytes(byte ^ 0x55 for byte in PAIRS[::2])
    store.put(stored, codecs=codecs, between=between)
    assert store.hub.load([KEY]).outcomes == (outcome,)


@pytest.mark.parametrize("codes", [b"\xc8", b"\xc8\0\xcb", b"\xc8\5", b"\xc8\xcb\xcc\xcd\xce", b""])
def test_A30_a_chain_that_is_none_is_damaged(codes: bytes) -> None:
    good = chunkfile.pack(KEY, bytes(32), b"x" * 9, codecs=(200, 203), between=(5,))
    bad = bytearray(good)
    bad[160:168] = codes.ljust(8, b"\0")
    bad[240:256] = chunkfile._header_sum(bad)
    with pytest.raises(Damaged, match="header"):
        chunkfile.parse(bad)


def test_A30_a_sealed_store_reads_no_chain_that_its_seal_did_not_end(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOY_KEY", "9")
    seal = Seal(SealOptions("TOY_KEY"), "seal")
    store = bench(Codecs([Half(), seal]))
    store.hub.keep({KEY: PAIRS})
    assert header(store).codecs == (203, 201) and store.hub.read([KEY]) == [PAIRS]
    for forged, codecs in ((PAIRS[::2], (203,)), (PAIRS, ()), (MARK + PAIRS, (201, 203))):
        store.put(forged, codecs=codecs, between=(len(PAIRS),) if len(codecs) == 2 else ())
        assert store.hub.load([KEY]).outcomes == (MISS,), codecs
    with pytest.raises(Foreign):
        Codecs(seal).hold((201, 200))


def test_a_chunk_that_a_codec_declines_is_not_stored_and_no_fault(bench: Callable[..., Bench]) -> None:
    class Picky(Turn):
        def encode(self, payload: memoryview, about: About) -> bytes | None:
            if about.tenant == b"?" * 16:
                raise Foreign("no-key")
            return super().encode(payload, about)

    store = bench(Codecs(Picky(TurnOptions(), "picky")))
    done = store.hub.save({KEY: DATA}, tenant=b"?" * 16)
    assert (done.outcomes, done.reason, store.objects) == ((MISS,), "no-key", {})
    assert store.counts == {"codec_declined": 1}
    store.hub.keep({KEY: DATA})
    assert header(store).tenant == b""


TEXT = """\
kvhub: 1
codecs:
  one: {use: toy}
  secret: {use: toy/seal, key: TOY_KEY}
  rounded: {use: toy/round}
stores:
  pool: {use: dir, root: /mnt/kv}
roles:
  both: {store: [{to: pool, codec: CHAIN}], retrieve: [pool]}
"""


@pytest.fixture
def chain(registry: Registry, tmp_path: Any) -> Callable[..., Any]:
    registry.add("toy", toys.plugin())

    def chain(text: str) -> Any:
        path = tmp_path / "kv.yaml"
        path.write_text(TEXT.replace("CHAIN", text))
        return load(path, registry, environ={})

    return chain


def test_a_step_names_a_list(chain: Callable[..., Any]) -> None:
    config = chain("[rounded, one, secret]")
    assert dict(config.encodings.by_store) == {"pool": ("rounded", "one", "secret")}
    assert config.encodings.lossy == ("round 4",), "the same numbers, whatever follows"
    assert dict(config.values())["roles.both.store[0].codec"] == ("rounded", "one", "secret")
    assert chain("[one]").encodings.by_store == chain("one").encodings.by_store
    assert chain("[toy, secret]").encodings.by_store["pool"] == ("toy", "secret")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[secret, one]", r"codec\[0\]: 'secret' encrypts, .*; name 'one' before it"),
        ("[one, rounded]", r"codec\[1\]: 'rounded' rounds numbers.* name it first"),
        ("[one, toy]", r"codec\[1\]: 'toy' comes after a codec of its own kind"),
        ("[one, won]", r"codec\[1\]: unknown codec 'won'; did you mean 'one'"),
        ("[]", r"codec: expected a codec's name"),
        ("[one, 5]", r"codec: expected a codec's name"),
        ("[rounded, one, secret, one, toy]", r"codec: names 5 codecs; a chunk passes through 4 at most"),
    ],
)
def test_lists_that_make_no_sense_are_refused(chain: Callable[..., Any], text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        chain(text)


class Five(Turn):
    name, code = "five", 5


@hookimpl
def kvhub_register_codecs() -> tuple[type[Codec], ...]:
    return (Five,)


def test_a_codec_of_the_byte_for_several_is_refused(registry: Registry) -> None:
    with pytest.raises(PluginError, match="must not be 5, which stands for several"):
        registry.add("five", SimpleNamespace(kvhub_register_codecs=kvhub_register_codecs))


def test_rounding_is_undone_like_any_other(bench: Callable[..., Bench]) -> None:
    store = bench(Codecs([Round(RoundOptions(), "round"), TURN]))
    store.hub.keep({KEY: DATA})
    assert store.hub.read([KEY]) == [bytes(byte >> 4 << 4 for byte in DATA)]
