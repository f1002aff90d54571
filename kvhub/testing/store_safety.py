"""Store laws, level "safe": writers, readers and damage may meet, and still no wrong byte is ever DONE."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Protocol

import pytest

from kvhub import chunkfile
from kvhub.testing import under
from kvhub.testing.driver import Driver, names
from kvhub.testing.region import CHUNK_BYTES, make_key, make_payload
from kvhub.testing.stage import Opens, Stage
from kvhub.testing.store_basic import chunks
from kvhub.types import Key, MemberContext, Outcome

DONE, MISS, CORRUPT = Outcome.DONE, Outcome.MISS, Outcome.CORRUPT


class Medium(Protocol):
    """The stored objects behind a store's back, so that laws can damage them.  Offer it with the fixture `medium`."""

    def read(self, context: MemberContext, key: Key) -> bytes | None:
        """The stored object of a key, header and all; None where there is none."""

    def write(self, context: MemberContext, key: Key, data: bytes) -> None:
        """Put these bytes where the object of `key` is kept, whatever they are."""


class Damager:
    """A store with chunks in it and a hand on its medium."""

    def __init__(self, store: Driver, medium: Medium) -> None:
        self.store, self._medium = store, medium

    def read(self, key: Key) -> bytes:
        data = self._medium.read(self.store.member.context, key)
        assert data is not None, "medium.read found no object for a key that was saved"
        return data

    def write(self, key: Key, data: bytes) -> None:
        self._medium.write(self.store.member.context, key, data)

    def flip(self, key: Key, at: int) -> None:
        data = bytearray(self.read(key))
        data[at] ^= 0x10
        self.write(key, bytes(data))


class SafetyLaws(Stage):
    """Promises 1 and 4: wrong tokens never, and a put is atomic."""

    @pytest.fixture
    def medium(self) -> Medium | None:
        """Override where the test can reach the stored objects; without it the laws of damage are left out."""
        return None

    @pytest.fixture
    def damager(self, open_member: Opens, medium: Medium | None) -> Iterator[Damager]:
        if medium is None:
            type(self)._left_out.append(("laws of damage", "the test class offers no medium"))
            pytest.skip("the test class offers no medium, so stored objects cannot be damaged")
        yield Damager(open_member(), medium)

    # -- writers and readers at once

    def test_A27_reader_sees_whole_or_miss(self, open_member: Opens) -> None:
        """A reader that overlaps a writer gets the whole chunk or a miss."""
        writer = open_member("writer")
        reader = open_member("reader") if writer.member.capabilities.shared else writer
        kept = chunks(24)
        keys, done = [*kept], set[Key]()
        writer.start_save(kept)
        for _ in range(2000):
            loaded = reader.load(keys)
            for at, (key, outcome) in enumerate(zip(keys, loaded.outcomes, strict=True)):
                assert outcome in (DONE, MISS), f"a reader met a chunk in the making: {outcome.name}"
                assert outcome is DONE or key not in done, "a chunk that was readable is gone"
                if outcome is DONE:
                    done.add(key)
                    assert reader.bytes_of(reader.half + at, loaded.lengths[at]) == kept[key]
            if writer is not reader:
                writer.poll()
            if len(done) == len(keys):
                return
        raise AssertionError(f"only {len(done)} of {len(keys)} saved chunks can be read")

    def test_A27_reader_of_a_replaced_chunk(self, open_member: Opens) -> None:
        """While tails are replaced, a reader gets the old one or the new one, whole, and never a miss."""
        writer = open_member("writer")
        reader = open_member("reader") if writer.member.capabilities.shared else writer
        key = make_key("tail")
        tails = [make_payload(n, CHUNK_BYTES - 2000 * n) for n in range(6)]
        writer.keep({key: tails[0]})
        for n in range(1, 6):
            batch = writer.start_save({key: tails[n]}, replace=True)
            while batch in writer.under_way:
                assert reader.read([key])[0] in tails[n - 1 : n + 1], "neither the old tail nor the new one"
                writer.poll()
            assert writer.wait(batch).outcomes == (DONE,)

    def test_C01_many_writers_of_one_key(self, open_member: Opens) -> None:
        """Several hubs save one prefix at once: all succeed, one complete value stays, nobody reads a mixture."""
        first = open_member("writer-0")
        if not first.member.capabilities.shared:
            self.leave_out("the store does not claim to be shared")
        writers = [first, *(open_member(f"writer-{n}") for n in range(1, 3))]
        kept = chunks(4)
        faults: list[str] = []

        def work(store: Driver) -> None:
            try:
                for _ in range(10):
                    done = store.save(kept)
                    assert all(o.good for o in done.outcomes), names(done)
                    assert store.read([*kept]) == [*kept.values()], "a reader saw a mixture or lost a saved chunk"
            except Exception as fault:
                faults.append(f"{store.member.context.name}: {fault}")

        threads = [threading.Thread(target=work, args=(store,)) for store in writers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(self.patience * 4)
        assert not faults, "; ".join(faults)

    def test_C12_found_means_loadable(self, open_member: Opens) -> None:
        """After any number of saves in flight together, what FIND says is what LOAD does."""
        store = open_member()
        kept = chunks(8)
        for at in range(0, 32, 8):
            store.start_save(kept, first=at)
        for done in store.wait_all():
            assert all(o.good for o in done.outcomes), names(done)
        assert store.find([*kept]) == (DONE,) * 8
        assert store.read([*kept]) == [*kept.values()]

    def test_A02_another_namespace_never_hits(self, open_member: Opens) -> None:
        """The same key under another model's namespace is another chunk."""
        here, there = open_member("here", namespace="model one"), open_member("there", namespace="model two")
        kept, other = chunks(2), {key: make_payload(key.hex(), 5000) for key in chunks(2)}
        here.keep(kept)
        assert there.find([*kept]) == (MISS, MISS)
        assert there.read([*kept]) == [None, None]
        there.keep(other)
        assert there.read([*kept]) == [*other.values()]
        assert here.read([*kept]) == [*kept.values()]

    # -- damage on the medium

    @pytest.mark.parametrize("where", [0.0, 0.37, 1.0])
    @under.without_meaning(dropping=under.MENDED)
    def test_A30_flipped_payload(self, damager: Damager, where: float) -> None:
        """One flipped bit in stored KV is never loaded, and is counted as corrupt."""
        store, (key, data) = damager.store, next(iter(chunks(1).items()))
        store.keep({key: data})
        size = len(damager.read(key))
        damager.flip(key, size - len(data) + round(where * (len(data) - 1)))
        done = store.load([key])
        assert done.outcomes == (CORRUPT,) and done.reason, names(done)

    def test_A30_flipped_header(self, damager: Damager) -> None:
        """Every byte of what describes a chunk is covered: lengths, layout, generated count, key."""
        store, (key, data) = damager.store, next(iter(chunks(1, length=600).items()))
        store.keep({key: data})
        good = damager.read(key)
        for at in [*range(0, min(300, len(good) - len(data)), 7), max(0, len(good) - len(data) - 1)]:
            damager.write(key, good)
            damager.flip(key, at)
            done = store.load([key])
            assert done.outcomes[0] in (CORRUPT, MISS), f"byte {at} flipped: {names(done)}"

    @pytest.mark.parametrize("left", [0, 1, 0.4, -1])
    @under.without_meaning(dropping=under.MENDED)
    def test_C03_truncated(self, damager: Damager, left: float) -> None:
        """A chunk cut short by a dying server or a full disk is never loaded."""
        store, (key, data) = damager.store, next(iter(chunks(1).items()))
        store.keep({key: data})
        stored = damager.read(key)
        damager.write(key, stored[: round(left * len(stored)) if 0 < left < 1 else int(left)])
        done = store.load([key])
        assert done.outcomes == (CORRUPT,), names(done)

    @pytest.mark.parametrize("more", [1, 4096])
    @under.without_meaning(dropping=under.MENDED)
    def test_C03_extended(self, damager: Damager, more: int) -> None:
        """Bytes behind a chunk mean that someone else wrote there."""
        store, (key, data) = damager.store, next(iter(chunks(1).items()))
        store.keep({key: data})
        damager.write(key, damager.read(key) + bytes(more))
        done = store.load([key])
        assert done.outcomes == (CORRUPT,), names(done)

    @under.without_meaning(dropping=under.MENDED)
    def test_A30_swapped(self, damager: Damager) -> None:
        """Two whole objects under each other's names pass every checksum; only the key inside tells."""
        store, kept = damager.store, chunks(2)
        store.keep(kept)
        one, two = kept
        first, second = damager.read(one), damager.read(two)
        damager.write(one, second)
        damager.write(two, first)
        done = store.load([one, two])
        assert done.outcomes == (CORRUPT, CORRUPT), names(done)

    def test_A30_object_of_another_namespace(self, damager: Damager, open_member: Opens, medium: Medium) -> None:
        """An object copied in from another model's folder is never loaded, though its key is right."""
        other, kept = open_member("other", namespace="another model"), chunks(1)
        other.keep({key: make_payload("another model") for key in kept})
        damager.store.keep(kept)
        (key,) = kept
        foreign = medium.read(other.member.context, key)
        assert foreign is not None
        damager.write(key, foreign)
        done = damager.store.load([key])
        assert done.outcomes[0] in (CORRUPT, MISS), names(done)

    def test_C25_foreign_version_is_a_miss_and_stays(self, damager: Damager) -> None:
        """A newer kvhub shares the medium: its chunks are neither read nor removed by us."""
        store, (key, data) = damager.store, next(iter(chunks(1).items()))
        store.keep({key: data})
        stored = bytearray(damager.read(key))
        if not stored.startswith(chunkfile.MAGIC):
            self.leave_out("the store does not use the chunk format, so this law cannot make a foreign version")
        stored[8:10] = (chunkfile.VERSION + 1).to_bytes(2, "little")
        damager.write(key, bytes(stored))
        done = store.load([key])
        assert done.outcomes == (MISS,), names(done)
        assert damager.read(key) == bytes(stored)

    @pytest.mark.parametrize("replace", [False, True])
    def test_C25_a_save_spares_a_foreign_version(self, damager: Damager, replace: bool) -> None:
        """Two versions that overwrite each other's chunks would both keep missing: who was first stays."""
        store, (key, data) = damager.store, next(iter(chunks(1).items()))
        store.keep({key: data})
        stored = bytearray(damager.read(key))
        if not stored.startswith(chunkfile.MAGIC):
            self.leave_out("the store does not use the chunk format, so this law cannot make a foreign version")
        stored[8:10] = (chunkfile.VERSION + 1).to_bytes(2, "little")
        damager.write(key, bytes(stored))
        done = store.save({key: data}, replace=replace)
        assert done.outcomes[0] in (Outcome.KEPT, Outcome.FAILED), names(done)
        assert damager.read(key) == bytes(stored)

    @under.without_meaning(dropping=under.MENDED, flipped=under.MENDED, short=under.MENDED)
    def test_A13_damage_does_not_spread(self, damager: Damager) -> None:
        """One corrupt chunk of a batch costs one chunk."""
        store, kept = damager.store, chunks(4)
        store.keep(kept)
        keys = [*kept]
        damager.flip(keys[2], len(damager.read(keys[2])) - 5)
        done = store.load(keys)
        assert done.outcomes == (DONE, DONE, CORRUPT, DONE), names(done)
        assert [store.bytes_of(store.half + i, CHUNK_BYTES) for i in (0, 1, 3)] == [kept[keys[i]] for i in (0, 1, 3)]

    @under.without_meaning(dropping=under.MENDED)
    def test_C03_damaged_object_can_be_saved_again(self, damager: Damager) -> None:
        """A damaged object that stays would answer every FIND and spoil every load after it."""
        store, kept = damager.store, chunks(1)
        store.keep(kept)
        (key,) = kept
        damager.flip(key, len(damager.read(key)) - 1)
        assert store.load([key]).outcomes == (CORRUPT,)
        if not store.member.capabilities.removes:
            self.leave_out("the store does not claim to remove, so a damaged object may stay")
        assert store.find([key]) == (MISS,), "the damaged object is still there"
        store.keep(kept)
        assert store.read([key]) == [kept[key]]

    def test_C03_removal_ends_with_the_completion(self, damager: Damager) -> None:
        """A removal that comes later than its CORRUPT hits the good chunk that was saved in between."""
        store, kept = damager.store, chunks(1)
        store.keep(kept)
        (key,) = kept
        good = damager.read(key)
        for _ in range(20):
            damager.flip(key, len(good) - 1)
            store.load([key])
            damager.write(key, good)
            assert store.read([key]) == [kept[key]], "a good chunk was removed"

    def test_C03_another_objects_damage_is_not_ours(self, damager: Damager) -> None:
        """Removal is of that very object: its neighbours in the same place stay."""
        store, kept = damager.store, chunks(6)
        store.keep(kept)
        keys = [*kept]
        damager.flip(keys[0], len(damager.read(keys[0])) - 1)
        store.load([keys[0]])
        assert store.read(keys[1:]) == [kept[key] for key in keys[1:]]
