"""`MediumContract`: what housekeeping needs of every medium (`kvhub.pool.medium`), as pytest laws."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from hashlib import sha256

import pytest

from kvhub import chunkfile
from kvhub.errors import KvhubError
from kvhub.keys import Namespace
from kvhub.pool.medium import SHARDS, Entry, Medium, Space

NAMESPACE = Namespace("tests", "1", "bfloat16", "none")
OTHER = Namespace("others", "1", "bfloat16", "none")


def space_of(namespace: Namespace) -> Space:
    return Space(namespace.digest.hex()[:32], namespace.json)


def chunk(name: str, length: int = 5000, namespace: Namespace = NAMESPACE) -> bytes:
    """A whole object whose payload depends on its name."""
    payload = (sha256(name.encode()).digest() * (length // 32 + 1))[:length]
    return chunkfile.pack(bytes.fromhex(name), namespace.digest, payload, created_ns=10**18) + payload


def name_of(number: int, shard: str = "") -> str:
    return shard + sha256(str(number).encode()).hexdigest()[len(shard) :]


class MediumContract:
    """Subclass this and define one fixture:

    `medium_factory`: callable() -> a `Medium` on the same, at first empty place at each call.
    """

    @pytest.fixture
    def open_medium(self, medium_factory: Callable[[], Medium]) -> Iterator[Callable[[], Medium]]:
        opened: list[Medium] = []

        def open_medium() -> Medium:
            opened.append(medium_factory())
            return opened[-1]

        yield open_medium
        for each in opened:
            each.close()

    @pytest.fixture
    def house(self, open_medium: Callable[[], Medium]) -> Medium:
        """A medium with one space."""
        medium = open_medium()
        medium.admit(space_of(NAMESPACE))
        return medium

    def fill(self, house: Medium, count: int, shard: str = "", length: int = 5000) -> list[str]:
        names = sorted(name_of(number, shard) for number in range(count))
        for name in names:
            assert house.put(space_of(NAMESPACE).id, name, memoryview(chunk(name, length)))
        return names

    def entry(self, house: Medium, name: str) -> Entry:
        found = house.read(space_of(NAMESPACE).id, name, memoryview(bytearray()))
        assert found is not None, f"{name} is not there"
        return found

    def test_an_empty_medium_has_nothing(self, open_medium: Callable[[], Medium]) -> None:
        medium = open_medium()
        assert list(medium.spaces()) == [] and list(medium.leftovers(0.0)) == []
        assert list(medium.entries("0" * 32, "00")) == []
        assert medium.read("0" * 32, "0" * 64, memoryview(bytearray(10))) is None
        assert medium.describe() and abs(medium.now() - time.time()) < 3600
        room = medium.room()
        assert room is None or 0 <= room.free <= room.total

    def test_what_was_put_is_read(self, house: Medium) -> None:
        [name] = self.fill(house, 1)
        whole = chunk(name)
        for size in (len(whole), len(whole) + 100, chunkfile.HEADER_BYTES, 1, 0):
            into = bytearray(b"\xa5" * size)
            entry = house.read(space_of(NAMESPACE).id, name, memoryview(into))
            assert entry is not None and entry.size == len(whole) and entry.name == name
            assert into == (whole + b"\xa5" * size)[:size], f"into {size} bytes"

    def test_the_first_put_stays(self, house: Medium) -> None:
        [name] = self.fill(house, 1)
        assert not house.put(space_of(NAMESPACE).id, name, memoryview(chunk(name, 10)))
        assert self.entry(house, name).size == len(chunk(name))

    def test_entries_come_by_shard_and_in_order(self, house: Medium) -> None:
        names = self.fill(house, 40)
        seen = [entry for shard in SHARDS for entry in house.entries(space_of(NAMESPACE).id, shard)]
        assert [entry.name for entry in seen] == names
        assert {entry.size for entry in seen} == {len(chunk(names[0]))}
        assert seen == [self.entry(house, name) for name in names]

    def test_entries_go_on_after_a_name(self, house: Medium) -> None:
        names, space = self.fill(house, 20, shard="7f"), space_of(NAMESPACE).id
        for at in (0, 9, 19):
            assert [entry.name for entry in house.entries(space, "7f", names[at])] == names[at + 1 :]
        assert list(house.entries(space, "7e")) == list(house.entries(space, "80")) == []

    def test_a_fresh_chunk_was_used_now(self, house: Medium) -> None:
        before = house.now()
        [name] = self.fill(house, 1)
        entry = self.entry(house, name)
        assert before - 5 <= entry.used <= house.now() + 5
        assert entry.created is None or before - 5 <= entry.created <= house.now() + 5

    def test_spaces_keep_apart_and_say_what_they_are(self, house: Medium, open_medium: Callable[[], Medium]) -> None:
        [name] = self.fill(house, 1)
        house.admit(space_of(OTHER))
        spaces = sorted([space_of(NAMESPACE), space_of(OTHER)], key=lambda space: space.id)
        assert list(open_medium().spaces()) == spaces
        assert house.read(space_of(OTHER).id, name, memoryview(bytearray())) is None
        house.admit(space_of(OTHER))
        with pytest.raises(KvhubError):
            house.admit(Space(space_of(OTHER).id, NAMESPACE.json))

    def test_removing_counts_once(self, house: Medium) -> None:
        names, space = self.fill(house, 30), space_of(NAMESPACE).id
        entries = [self.entry(house, name) for name in names]
        assert sorted(entry.name for entry in house.remove(space, entries[:20])) == names[:20]
        assert sorted(entry.name for entry in house.remove(space, entries)) == names[20:]
        assert house.remove(space, entries) == [] and house.remove(space, []) == []
        assert list(house.leftovers(0.0)) == []

    def test_C03_a_replaced_object_stays(self, house: Medium) -> None:
        [name], space = self.fill(house, 1), space_of(NAMESPACE).id
        seen = self.entry(house, name)
        assert house.remove(space, [seen]) == [seen]
        assert house.put(space, name, memoryview(chunk(name, 77)))
        assert house.remove(space, [seen]) == []
        assert self.entry(house, name).size == len(chunk(name, 77))

    def test_a_space_is_forgotten_when_it_is_empty(self, house: Medium, open_medium: Callable[[], Medium]) -> None:
        [name], space = self.fill(house, 1), space_of(NAMESPACE).id
        assert not house.forget(space) and self.entry(house, name)
        house.remove(space, [self.entry(house, name)])
        assert house.forget(space) and list(open_medium().spaces()) == []
        assert house.forget(space), "forgetting twice is no error"
        house.admit(space_of(NAMESPACE))
        assert house.put(space, name, memoryview(chunk(name)))

    def test_a_lease_has_one_holder(self, house: Medium, open_medium: Callable[[], Medium]) -> None:
        other = open_medium()
        assert house.claim("sweep-00", "a", 60.0)
        assert not other.claim("sweep-00", "b", 60.0)
        assert house.claim("sweep-00", "a", 60.0), "its holder renews it"
        assert other.claim("sweep-01", "b", 60.0)
        other.release("sweep-00", "b")
        assert not other.claim("sweep-00", "b", 60.0), "only its holder gives it back"
        house.release("sweep-00", "a")
        assert other.claim("sweep-00", "b", 60.0)
        house.release("sweep-00", "a")
        assert not house.claim("sweep-00", "a", 60.0)

    def test_C11_an_expired_lease_is_taken_over(self, house: Medium, open_medium: Callable[[], Medium]) -> None:
        other, until = open_medium(), time.monotonic() + 20.0
        assert house.claim("sweep-00", "a", 1.0)
        while not other.claim("sweep-00", "b", 60.0):
            assert time.monotonic() < until, "a lease of one second was held for twenty"
            time.sleep(0.1)
        assert not house.claim("sweep-00", "a", 60.0)

    def test_notes_are_replaced_and_dropped(self, house: Medium, open_medium: Callable[[], Medium]) -> None:
        other = open_medium()
        assert house.note("stat-00") is None
        for data in (b"one", b"", bytes(range(256)) * 1000):
            house.put_note("stat-00", data)
            assert other.note("stat-00") == data and other.note("stat-0") is None
        other.drop_note("stat-00")
        other.drop_note("stat-00")
        assert house.note("stat-00") is None
        assert [space.id for space in house.spaces()] == [space_of(NAMESPACE).id], "notes are no space"
