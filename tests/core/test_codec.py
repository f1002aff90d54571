"""What a store does with codecs: saving, loading, and every way in which an encoded chunk can be wrong."""

from __future__ import annotations

import mmap
import threading
from typing import Any

import pytest
from format.shelf import DATA, KEY, Shelf
from format.toys import MARK, Round, RoundOptions, Seal, SealOptions, Turn, TurnOptions

from kvhub import chunkfile
from kvhub.codec import About, CodecError, Codecs, copy
from kvhub.errors import Damaged, Foreign
from kvhub.testing.region import LAYOUT, SLOT_BYTES, make_key, make_payload
from kvhub.types import MOST_GROWTH, Op, Outcome

DONE, KEPT, MISS, CORRUPT, FAILED = Outcome.DONE, Outcome.KEPT, Outcome.MISS, Outcome.CORRUPT, Outcome.FAILED
ABOUT = About(KEY, bytes(32), LAYOUT.text, len(DATA))
TURN = Turn(TurnOptions(), "turn")


def encoded(data: bytes = DATA) -> bytes:
    made = TURN.encode(memoryview(data), ABOUT)
    assert made is not None
    return made


def test_a_chunk_is_kept_encoded_and_comes_back(bench: Any) -> None:
    store = bench(Codecs(TURN))
    saved = store.hub.save({KEY: DATA})
    assert saved.outcomes == (DONE,) and saved.moved == len(encoded())
    assert store.objects[KEY.hex()][4096:] == encoded()
    header = store.header()
    assert (header.codec, header.stored_bytes, header.payload_bytes) == (200, len(DATA) + 4, len(DATA))
    assert header.checksum == chunkfile.payload_checksum(encoded())
    loaded = store.hub.load([KEY])
    assert (loaded.outcomes, loaded.lengths, loaded.moved) == ((DONE,), (len(DATA),), len(encoded()))
    assert store.hub.read([KEY]) == [DATA]
    assert store.hub.save({KEY: DATA}).outcomes == (KEPT,)
    assert store.counts == {}


def test_a_codec_may_leave_a_payload_as_it_is(bench: Any) -> None:
    store, data = bench(Codecs(TURN)), b"raw" + DATA
    store.hub.keep({KEY: data})
    assert store.header().codec == 0 and store.objects[KEY.hex()][4096:] == data
    assert store.hub.read([KEY]) == [data]


def test_a_store_without_a_codec_reads_what_the_hub_has_codecs_for(bench: Any) -> None:
    bench(Codecs(TURN)).hub.keep({KEY: DATA})
    assert bench(Codecs(None, [TURN])).hub.read([KEY]) == [DATA]
    # And the reverse: chunks from before the codec was switched on.
    other = make_key("two")
    bench().hub.keep({other: DATA})
    assert bench(Codecs(TURN)).hub.read([KEY, other]) == [DATA, DATA]


def test_C25_a_codec_that_is_not_here_is_a_miss_and_stays(bench: Any) -> None:
    bench(Codecs(TURN)).hub.keep({KEY: DATA})
    store = bench()
    before = dict(store.objects)
    store.hub.fill(store.hub.half, b"\xa5" * SLOT_BYTES)
    done = store.hub.load([KEY])
    assert (done.outcomes, done.reason) == ((MISS,), "codec")
    assert store.hub.save({KEY: DATA}).outcomes == (KEPT,)
    assert store.objects == before
    assert store.counts == {"foreign_objects": 2}


def test_C25_a_later_form_of_a_codec_is_a_miss_and_stays(bench: Any) -> None:
    store = bench(Codecs(TURN))
    store.put(b"toy2" + DATA)
    before = dict(store.objects)
    assert store.hub.load([KEY]).outcomes == (MISS,)
    assert store.objects == before and store.counts == {"foreign_objects": 1}


@pytest.mark.parametrize("stored", [b"what is this", MARK + DATA[:-1], MARK])
def test_A30_what_does_not_decode_is_corrupt_and_makes_way(bench: Any, stored: bytes) -> None:
    """Its checksum is right: a writer was wrong, or not one of ours."""
    store = bench(Codecs(TURN))
    store.put(stored)
    assert store.hub.load([KEY]).outcomes == (CORRUPT,)
    assert store.objects == {} and store.counts == {"integrity_errors": 1}


def test_an_error_of_the_machine_removes_nothing(bench: Any) -> None:
    store = bench(Codecs(TURN))
    store.hub.keep({KEY: b"EIO!" + DATA})
    assert store.hub.load([KEY]).outcomes == (FAILED,)
    assert len(store.objects) == 1 and store.counts == {"io_errors": 1}


@pytest.mark.parametrize("at", [0, 4, -1])
def test_A30_a_flipped_bit_is_found_before_decoding(bench: Any, at: int) -> None:
    store = bench(Codecs(TURN))
    store.hub.keep({KEY: DATA})
    damaged = bytearray(store.objects[KEY.hex()])
    damaged[4096 + at if at >= 0 else at] ^= 1
    store.objects[KEY.hex()] = bytes(damaged)
    done = store.hub.load([KEY])
    assert (done.outcomes, done.reason) == ((CORRUPT,), "checksum")


def test_a_payload_that_fills_its_slot_may_grow(bench: Any) -> None:
    store, data = bench(Codecs(Turn(TurnOptions(grow=MOST_GROWTH - 4), "turn"))), make_payload("slot", SLOT_BYTES)
    store.hub.keep({KEY: data})
    assert store.header().stored_bytes == SLOT_BYTES + MOST_GROWTH
    assert store.hub.read([KEY]) == [data]


def test_what_grows_too_much_is_not_stored(bench: Any) -> None:
    store = bench(Codecs(Turn(TurnOptions(grow=MOST_GROWTH - 3), "turn")))
    done = store.hub.save({KEY: DATA})
    assert (done.outcomes, done.reason) == ((FAILED,), "codec")
    assert store.objects == {} and store.counts == {"codec_errors": 1}
    store.put(bytes(len(DATA) + MOST_GROWTH + 1))
    done = store.hub.load([KEY])
    assert (done.outcomes, done.reason) == ((CORRUPT,), "length")


def test_room_is_for_the_decoded_payload(bench: Any) -> None:
    """A good chunk of a hub with larger slots is a miss, however little of it is stored."""
    store = bench(Codecs(TURN))
    store.hub.keep({KEY: DATA})
    done = store.hub.run(Op.LOAD, [KEY], [5], [len(DATA) - 1])
    assert (done.outcomes, done.reason) == ((MISS,), "oversize")
    assert store.hub.run(Op.LOAD, [KEY], [5], [len(DATA)]).outcomes == (DONE,)
    store.put(b"tiny", payload_bytes=1 << 60)
    assert store.hub.load([KEY]).outcomes == (MISS,)


def test_a_codec_that_fails_stores_nothing(bench: Any) -> None:
    store = bench(Codecs(TURN))
    done = store.hub.save({KEY: b"raise" + DATA, make_key("two"): DATA})
    assert done.outcomes == (FAILED, DONE)
    assert [*store.objects] == [make_key("two").hex()] and store.counts == {"codec_errors": 1}
    with pytest.raises(CodecError, match="codec 'turn' failed with ZeroDivisionError: as asked"):
        Codecs(TURN).encode(memoryview(b"raise"), ABOUT)


def test_the_checksum_is_compared_only_between_plain_chunks(bench: Any) -> None:
    """An encryption makes other bytes each time: that is no conflict."""
    store = bench(Codecs(TURN))
    store.hub.keep({KEY: DATA})
    assert store.hub.save({KEY: make_payload("other")}).outcomes == (KEPT,)
    assert "conflicts" not in store.counts


def test_a_sealed_store_keeps_and_reads_nothing_else(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who may write to the medium must not be able to slip in a chunk that was never encrypted."""
    monkeypatch.setenv("TOY_KEY", "7")
    seal = Seal(SealOptions("TOY_KEY"), "secret")
    keys = [make_key(n) for n in range(3)]
    bench().hub.keep({keys[0]: DATA})
    bench(Codecs(TURN)).hub.keep({keys[1]: DATA})
    store = bench(Codecs(seal, [TURN, seal]))
    store.hub.keep({keys[2]: DATA})
    assert store.hub.read(keys) == [None, None, DATA]
    assert store.counts == {"foreign_objects": 2}
    assert store.hub.save({KEY: b"raw" + DATA}).outcomes == (FAILED,), "never stored in plain"
    assert KEY.hex() not in store.objects


def test_each_worker_reuses_its_scratch_memory(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[int, int]] = []
    real = mmap.mmap

    def counting(fd: int, size: int) -> mmap.mmap:
        made.append((threading.get_ident(), size))
        return real(fd, size)

    monkeypatch.setattr("kvhub.codec.mmap.mmap", counting)
    store = bench(Codecs(TURN))
    kept = {make_key(n): make_payload(n) for n in range(32)}
    store.hub.keep(kept)
    for _ in range(3):
        assert store.hub.read([*kept]) == [*kept.values()]
    mine = [(thread, size) for thread, size in made if thread != threading.get_ident()]
    assert 1 <= len(mine) == len({thread for thread, _ in mine}) <= Shelf.workers
    assert {size for _, size in mine} == {SLOT_BYTES + MOST_GROWTH}


def test_a_plain_chunk_is_read_once_and_into_its_slot(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Having decoders must not cost the chunks that need none."""
    store = bench(Codecs(None, [TURN]))
    store.hub.keep({KEY: DATA})
    seen: list[memoryview] = []
    real = Shelf.read
    monkeypatch.setattr(
        Shelf, "read", lambda self, name, head, rest: (seen.append(rest), real(self, name, head, rest))[1]
    )
    assert store.hub.read([KEY]) == [DATA]
    (target,) = seen
    store.hub.fill(store.hub.half, b"here")
    assert bytes(target[:4]) == b"here"


def test_decoders_are_asked_by_code_and_a_stores_own_comes_first() -> None:
    mine, other = Turn(TurnOptions(by=1), "mine"), Turn(TurnOptions(by=2), "other")
    lossy = Round(RoundOptions(), "round")
    codecs = Codecs(mine, [other, lossy])
    assert codecs.readable == {0, 200, 202}
    room = memoryview(bytearray(3))
    codecs.decode((200,), memoryview(MARK + bytes([1, 2, 3])), room, About(KEY, bytes(32), "", 3))
    assert bytes(room) == bytes([0, 3, 2])
    with pytest.raises(Damaged, match="codec"):
        codecs.decode((200,), memoryview(MARK + bytes([1, 2])), room, About(KEY, bytes(32), "", 3))
    with pytest.raises(Foreign, match="form"):
        codecs.decode((200,), memoryview(b"toy9"), room, About(KEY, bytes(32), "", 3))


def test_copy_takes_equal_lengths_only() -> None:
    target = bytearray(5)
    copy(memoryview(bytearray(b"abcde")), memoryview(target))
    assert target == b"abcde"
    copy(memoryview(bytearray()), memoryview(bytearray()))
    with pytest.raises(ValueError, match="4 bytes do not fit 5"):
        copy(memoryview(bytearray(4)), memoryview(target))
