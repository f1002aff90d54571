"""`BlockingStore`: what an author's three methods become, on a dictionary."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import attrs
import pytest

from kvhub import chunkfile
from kvhub.errors import MisuseError
from kvhub.store import BlockingStore, Late, Seen
from kvhub.testing.driver import Driver
from kvhub.testing.region import CHUNK_BYTES, LAYOUT, make_context, make_key, make_payload
from kvhub.testing.store import StoreContract
from kvhub.types import Capabilities, Key, MemberContext, Op, Outcome

DONE, KEPT, MISS, CORRUPT, FAILED, FULL = (
    Outcome.DONE, Outcome.KEPT, Outcome.MISS, Outcome.CORRUPT, Outcome.FAILED, Outcome.FULL,
)  # fmt: skip
KEY, OTHER, DATA = make_key("one"), make_key("two"), make_payload("one")


@attrs.frozen
class ShelfConfig:
    objects: dict[tuple[bytes, str], bytes] = attrs.field(factory=dict)


class Shelf(BlockingStore):
    """Three methods."""

    Config = ShelfConfig
    persistent = shared = True

    def has(self, name: str) -> bool:
        return (self.context.namespace, name) in self.config.objects

    def read(self, name: str, header: memoryview, payload: memoryview) -> int | None:
        data = self.config.objects.get((self.context.namespace, name))
        if data is None:
            return None
        head, rest = data[: header.nbytes], data[header.nbytes :][: payload.nbytes]
        header[: len(head)] = head
        payload[: len(rest)] = rest
        return len(data)

    def write(self, name: str, header: bytes, payload: memoryview) -> bool:
        self.config.objects[self.context.namespace, name] = header + payload
        return True


class RemovingShelf(Shelf):
    """And what makes it removable and listable."""

    def drop(self, name: str) -> None:
        self.config.objects.pop((self.context.namespace, name), None)

    def names(self) -> Iterator[tuple[str, int]]:
        for (namespace, name), data in list(self.config.objects.items()):
            if namespace == self.context.namespace:
                yield name, len(data)


class Hand:
    """The test's hand on the dictionary."""

    def __init__(self, config: ShelfConfig) -> None:
        self.config = config

    def read(self, context: MemberContext, key: Key) -> bytes | None:
        return self.config.objects.get((context.namespace, key.hex()))

    def write(self, context: MemberContext, key: Key, data: bytes) -> None:
        self.config.objects[context.namespace, key.hex()] = data


class TestThreeMethods(StoreContract):
    @pytest.fixture
    def member_factory(self, medium: Hand) -> Callable[[MemberContext], Shelf]:
        return lambda context: Shelf(medium.config, context)

    @pytest.fixture
    def medium(self) -> Hand:
        return Hand(ShelfConfig())


class TestRemovingAndScanning(StoreContract):
    @pytest.fixture
    def member_factory(self, medium: Hand) -> Callable[[MemberContext], Shelf]:
        return lambda context: RemovingShelf(medium.config, context)

    @pytest.fixture
    def medium(self) -> Hand:
        return Hand(ShelfConfig())


class Bench:
    """One store with its counters and a hand on what it keeps."""

    def __init__(self, kind: type[Shelf]) -> None:
        self.counts: dict[str, int] = {}
        context = make_context("shelf", incarnation="0123456789abcdef01", report=self._report)
        self.member = kind(ShelfConfig(), context)
        self.hub = Driver(self.member)
        self.hub.attach()
        self.hub.keep({KEY: DATA})

    def _report(self, name: str, count: int) -> None:
        self.counts[name] = self.counts.get(name, 0) + count

    @property
    def stored(self) -> bytes:
        return self.member.config.objects[self.member.context.namespace, KEY.hex()]

    @stored.setter
    def stored(self, data: bytes) -> None:
        self.member.config.objects[self.member.context.namespace, KEY.hex()] = data

    def object(self, payload: bytes = DATA, key: Key = KEY, **facts: object) -> bytes:
        return chunkfile.pack(key, self.member.context.namespace, payload, **facts) + payload  # type: ignore[arg-type]


@pytest.fixture
def open_bench() -> Iterator[Callable[[type[Shelf]], Bench]]:
    opened: list[Bench] = []

    def open_bench(kind: type[Shelf] = RemovingShelf) -> Bench:
        opened.append(Bench(kind))
        return opened[-1]

    yield open_bench
    for bench in opened:
        bench.hub.close()


@pytest.fixture
def bench(open_bench) -> Bench:
    return open_bench()


def test_capabilities_follow_from_what_is_defined(open_bench) -> None:
    assert open_bench(Shelf).member.capabilities == Capabilities(persistent=True, shared=True, codecs=True)
    claims = Capabilities(True, True, removes=True, scans=True, codecs=True)
    assert open_bench(RemovingShelf).member.capabilities == claims
    with pytest.raises(MisuseError, match="REMOVE is not among"):
        open_bench(Shelf).hub.remove([KEY])
    with pytest.raises(MisuseError, match="does not claim to scan"):
        next(open_bench(Shelf).member.scan())


def test_the_object_is_the_chunk_format(bench: Bench) -> None:
    header = chunkfile.parse(bench.stored)
    assert (header.key, header.namespace, header.layout) == (KEY, bench.member.context.namespace, LAYOUT.text)
    assert (header.writer, header.generated) == (b"0123456789abcdef", 0)
    assert bench.stored[4096:] == DATA


def test_own_layout_is_empty_text(bench: Bench) -> None:
    """The hub's own layout comes back as "", however it was named in the save."""
    keys = [make_key(f"layout {n}") for n in range(3)]
    bench.hub.run(Op.SAVE, keys, range(3), [10] * 3, layouts=("", LAYOUT.text, "other"), generated=(0, 3, 0))
    done = bench.hub.load(keys)
    assert (done.outcomes, done.layouts, done.generated) == ((DONE,) * 3, ("", "", "other"), (0, 3, 0))
    own = bench.hub.load(keys[:1])
    assert (own.layouts, own.generated, own.lengths, own.moved) == (None, None, (10,), 10)


DAMAGE = {
    "truncated": lambda b: b.stored[:4000],
    "magic": lambda b: bytes(8) + b.stored[8:],
    "header": lambda b: b.stored[:300] + b"?" + b.stored[301:],
    "key": lambda b: b.object(key=OTHER),
    "namespace": lambda b: chunkfile.pack(KEY, bytes(32), DATA) + DATA,
    "length": lambda b: b.stored + b"?",
    "checksum": lambda b: b.stored[:-1] + bytes([b.stored[-1] ^ 1]),
}


@pytest.mark.parametrize("word", DAMAGE)
def test_C03_damage_is_corrupt_counted_and_removed(bench: Bench, word: str) -> None:
    bench.stored = DAMAGE[word](bench)
    done = bench.hub.load([KEY])
    assert (done.outcomes, done.reason, done.lengths) == ((CORRUPT,), word, (0,))
    assert bench.counts == {"integrity_errors": 1}
    assert bench.hub.find([KEY]) == (MISS,)
    assert bench.hub.save({KEY: DATA}).outcomes == (DONE,)


@pytest.mark.parametrize("word", [word for word in DAMAGE if word != "checksum"])
@pytest.mark.parametrize("kind", [Shelf, RemovingShelf])
def test_C03_a_save_replaces_a_damaged_object(open_bench, kind: type[Shelf], word: str) -> None:
    """Also where nothing can be removed: otherwise one bad object is a miss for ever."""
    bench = open_bench(kind)
    bench.stored = DAMAGE[word](bench)
    assert bench.hub.save({KEY: DATA}).outcomes == (DONE,)
    assert bench.hub.read([KEY]) == [DATA]


def test_C03_a_newer_object_survives_the_removal(open_bench) -> None:
    class Racing(RemovingShelf):
        """Another hub repairs the object between our read and our removal."""

        def drop_seen(self, name: str, seen: int, header: bytes) -> None:
            self.config.objects[self.context.namespace, name] = good
            super().drop_seen(name, seen, header)

    bench = open_bench(Racing)
    good = bench.stored
    bench.stored = good[:-1]
    assert bench.hub.load([KEY]).outcomes == (CORRUPT,)
    assert bench.hub.read([KEY]) == [DATA]


def test_C03_removal_by_identity(open_bench) -> None:
    """What `read` told of the object comes back to `drop_seen`, with the bytes that were seen."""
    told = []

    class Versioned(RemovingShelf):
        def read(self, name: str, header: memoryview, payload: memoryview) -> int | None:
            size = super().read(name, header, payload)
            return None if size is None else Seen(size, "version 7")

        def drop_seen(self, name: str, seen: int, header: bytes) -> None:
            told.append((name, seen, getattr(seen, "identity", None), header))

    bench = open_bench(Versioned)
    bench.stored = bench.stored + b"x"
    bench.hub.load([KEY])
    assert told == [(KEY.hex(), len(bench.stored), "version 7", bench.stored[:4096])]


def test_C25_foreign_objects_are_left_alone(bench: Bench) -> None:
    foreign = bench.stored[:8] + b"\x02\x00" + bench.stored[10:]
    bench.stored = foreign
    done = bench.hub.load([KEY])
    assert (done.outcomes, done.reason) == ((MISS,), "version")
    assert bench.hub.save({KEY: DATA}).outcomes == (KEPT,)
    assert bench.stored == foreign
    assert bench.counts == {"foreign_objects": 2}


def test_a_chunk_too_large_for_the_slot_is_a_miss_and_stays(bench: Bench) -> None:
    """It is good for the hub that saved it, whose slots are larger."""
    done = bench.hub.run(Op.LOAD, [KEY], [40], [CHUNK_BYTES - 1])
    assert (done.outcomes, done.reason) == ((MISS,), "oversize")
    assert bench.hub.read([KEY]) == [DATA]


def test_C13_saving_again_writes_nothing(bench: Bench) -> None:
    before = bench.stored
    again = bench.hub.save({KEY: DATA})
    assert (again.outcomes, again.moved, bench.counts) == ((KEPT,), 0, {})
    assert bench.hub.save({KEY: make_payload("different")}).outcomes == (KEPT,)
    assert bench.counts == {"conflicts": 1}
    assert bench.stored == before


def test_C13_another_layout_is_no_conflict(bench: Bench) -> None:
    """Two engines keep the same numbers in another order under one key; that is no alarm."""
    bench.hub.fill(0, make_payload("other order"))
    assert bench.hub.run(Op.SAVE, [KEY], [0], [CHUNK_BYTES], layouts=["other"]).outcomes == (KEPT,)
    assert bench.counts == {}


def test_a_replacing_save_writes_over_what_is_good(open_bench) -> None:
    class CreateOnly(RemovingShelf):
        """Refuses to overwrite, as a conditional PUT does; so it defines `replace` too."""

        def write(self, name: str, header: bytes, payload: memoryview) -> bool:
            return not self.has(name) and super().write(name, header, payload)

        def replace(self, name: str, header: bytes, payload: memoryview) -> bool:
            return super().write(name, header, payload)

    bench, tail = open_bench(CreateOnly), make_payload("a newer tail", 100)
    assert bench.hub.save({KEY: tail}, replace=True).outcomes == (DONE,)
    assert bench.hub.read([KEY]) == [tail]
    assert bench.counts == {}


def test_C25_a_replacing_save_leaves_a_foreign_object(bench: Bench) -> None:
    """Two versions of kvhub on one pool: neither destroys the other's tails."""
    bench.stored = bench.stored[:8] + b"\x02\x00" + bench.stored[10:]
    before = bench.stored
    assert bench.hub.save({KEY: DATA}, replace=True).outcomes == (KEPT,)
    assert bench.stored == before


def test_losing_a_race_to_another_writer_is_kept(open_bench) -> None:
    class Lost(RemovingShelf):
        def write(self, name: str, header: bytes, payload: memoryview) -> bool:
            super().write(name, header, payload)
            return name == KEY.hex()

    done = open_bench(Lost).hub.save({OTHER: DATA})
    assert (done.outcomes, done.moved) == ((KEPT,), 0)


def test_payloads_go_straight_to_the_author(open_bench) -> None:
    """One copy between slot and medium: what the author gets is the slot itself, read-only when saving."""
    seen = []

    class Watching(RemovingShelf):
        def read(self, name: str, header: memoryview, payload: memoryview) -> int | None:
            seen.append((payload.obj, payload.nbytes, payload.readonly))
            return super().read(name, header, payload)

        def write(self, name: str, header: bytes, payload: memoryview) -> bool:
            seen.append((payload.obj, payload.nbytes, payload.readonly))
            return super().write(name, header, payload)

    bench = open_bench(Watching)
    bench.hub.run(Op.LOAD, [KEY], [40], [CHUNK_BYTES + 5])
    memory = bench.hub.region.view.obj
    assert seen == [(memory, CHUNK_BYTES, True), (memory, CHUNK_BYTES + 5, False)]


def test_authors_may_ask_how_long_somebody_waits(open_bench) -> None:
    left: list[float] = []

    class Asking(Shelf):
        def has(self, name: str) -> bool:
            left.append(self.time_left())
            return False

    bench = open_bench(Asking)
    assert bench.member.time_left() == float("inf"), "outside of a call nobody waits"
    left.clear()
    bench.hub.wait(bench.hub.submit(Op.FIND, [KEY], deadline=time.monotonic() + 5.0))
    bench.hub.find([KEY])
    assert 0.0 < left[0] <= 5.0
    assert left[1] == float("inf")


def test_a_call_that_was_given_up_at_its_deadline_is_late_and_no_fault(open_bench) -> None:
    class GivingUp(Shelf):
        def read(self, name: str, header: memoryview, payload: memoryview) -> int | None:
            raise Late

    bench = open_bench(GivingUp)
    done = bench.hub.load([KEY])
    assert (done.outcomes, done.reason) == ((Outcome.LATE,), "deadline")
    assert bench.counts.get("io_errors", 0) == 0
