"""Store laws, level "works": bytes come back as they were given, and every answer is true."""

from __future__ import annotations

import pytest

from kvhub.testing import under
from kvhub.testing.driver import names
from kvhub.testing.region import CHUNK_BYTES, LAYOUT, OTHER_LAYOUT, make_key, make_payload
from kvhub.testing.stage import Opens, Stage, most_bytes
from kvhub.types import Op, Outcome

DONE, MISS = Outcome.DONE, Outcome.MISS
ODD_KEYS = (
    bytes(32), b"\xff" * 32, b"/" * 32, b".." + b"/" * 30, b"a" * 32, b"A" * 32, b"\n" * 32, b"%00" + b" " * 29,
    bytes(31) + b"\x01", b"\x01" + bytes(31), b"\x80" + bytes(31), bytes(15) + b"\x01" + bytes(16),
)  # fmt: skip


def chunks(count: int, tag: str = "", length: int = CHUNK_BYTES) -> dict[bytes, bytes]:
    """`count` payloads by key; equal tags give equal chunks."""
    return {make_key(f"{tag}{i}"): make_payload(f"{tag}{i}", length) for i in range(count)}


class BasicLaws(Stage):
    """What a store is for."""

    def test_round_trip(self, open_member: Opens) -> None:
        """A chunk comes back byte for byte, or the engine speaks nonsense."""
        store, kept = open_member(), chunks(1)
        store.keep(kept)
        assert store.read([*kept]) == [*kept.values()]

    def test_any_order_any_slot(self, open_member: Opens) -> None:
        """Chunks are named by key: neither the order of a batch nor the slot of the SAVE may matter."""
        store, kept = open_member(), chunks(8)
        store.keep(kept)
        keys = [*kept][::-1][::2] + [*kept][::2]
        assert store.read(keys) == [kept[key] for key in keys]

    @pytest.mark.parametrize("length", [1, 7, 511, 4095, 4096, 4097, CHUNK_BYTES - 1, CHUNK_BYTES + 1, "slot"])
    def test_exact_lengths(self, open_member: Opens, length: int | str) -> None:
        """Tails have any length; one byte more or less is another tail."""
        store = open_member()
        size = store.region.slot_bytes if length == "slot" else int(length)
        if size > most_bytes(store):
            self.leave_out(f"a chunk of {size} bytes is above this store's max_chunk_bytes")
        kept = chunks(2, f"length {length}", size)
        store.keep(kept)
        done = store.load([*kept])
        assert done.outcomes == (DONE, DONE) and done.lengths == (size, size), names(done)
        assert store.read([*kept]) == [*kept.values()]

    def test_mixed_lengths_in_one_batch(self, open_member: Opens) -> None:
        """Each chunk of a batch has its own length: the last of a request is shorter than the others."""
        store = open_member()
        kept = {make_key(n): make_payload(n, n) for n in (CHUNK_BYTES, 13, 4096, CHUNK_BYTES - 5, 1)}
        store.keep(kept)
        assert store.load([*kept]).lengths == tuple(len(data) for data in kept.values())
        assert store.read([*kept]) == [*kept.values()]

    def test_beyond_the_length_nothing_is_written(self, open_member: Opens) -> None:
        """The rest of a slot is not the store's."""
        store, kept = open_member(), chunks(1, length=1000)
        store.keep(kept)
        store.fill(store.half, b"\xa5" * store.region.slot_bytes)
        assert store.load([*kept]).outcomes == (DONE,)
        assert store.bytes_of(store.half)[1000:] == b"\xa5" * (store.region.slot_bytes - 1000)

    def test_other_slots_are_untouched(self, open_member: Opens) -> None:
        """Slots that a batch does not name belong to other requests."""
        store, kept = open_member(), chunks(3)
        store.keep(kept)
        named = {store.half + 1, store.half + 3, store.half + 4}
        others = [slot for slot in range(store.region.slots) if slot not in named]
        for slot in others:
            store.fill(slot, make_payload(f"other {slot}", store.region.slot_bytes))
        assert store.run(Op.LOAD, [*kept], sorted(named)).outcomes == (DONE,) * 3
        for slot in others:
            assert store.bytes_of(slot) == make_payload(f"other {slot}", store.region.slot_bytes), f"slot {slot}"

    def test_a_miss_leaves_its_slot_alone(self, open_member: Opens) -> None:
        """A miss brings no bytes: zeros in a slot look like KV."""
        store = open_member()
        store.fill(store.half, b"\xa5" * store.region.slot_bytes)
        done = store.load([make_key("never saved")])
        assert done.outcomes == (MISS,) and done.moved == 0
        assert store.bytes_of(store.half) == b"\xa5" * store.region.slot_bytes

    def test_find_is_true(self, open_member: Opens) -> None:
        """A promise made on a false FIND is a prefix that the engine must compute after waiting for it."""
        store, kept = open_member(), chunks(3)
        keys = [*kept]
        assert store.find(keys) == (MISS,) * 3
        store.keep({key: kept[key] for key in keys[:2]})
        assert store.find([keys[2], keys[0], keys[1], keys[2]]) == (MISS, DONE, DONE, MISS)

    def test_A13_each_chunk_has_its_own_outcome(self, open_member: Opens) -> None:
        """One missing chunk says nothing about its neighbours, and is never hidden behind them."""
        store, kept = open_member(), chunks(4)
        store.keep(kept)
        keys = [*kept]
        asked = [keys[0], make_key("gone"), keys[1], make_key("gone too"), keys[3]]
        done = store.load(asked)
        assert done.outcomes == (DONE, MISS, DONE, MISS, DONE), names(done)
        assert [store.bytes_of(store.half + i, CHUNK_BYTES) for i in (0, 2, 4)] == [kept[asked[i]] for i in (0, 2, 4)]

    def test_C13_second_save_is_kept(self, open_member: Opens) -> None:
        """Many engines save the same prefix: the second save succeeds and writes nothing."""
        store, kept = open_member(), chunks(2)
        store.keep(kept)
        again = store.save(kept, first=4)
        assert again.outcomes == (Outcome.KEPT,) * 2, names(again)
        assert again.moved == 0
        assert store.read([*kept]) == [*kept.values()]

    def test_C13_other_bytes_under_a_key_are_never_mixed(self, open_member: Opens) -> None:
        """What is there afterwards is one of the two payloads, and the one that the outcome says."""
        store, key = open_member(), make_key("contested")
        first, second = make_payload("first", 9000), make_payload("second", 7000)
        store.keep({key: first})
        (outcome,) = store.save({key: second}).outcomes
        assert store.read([key]) == [second if outcome is DONE else first]

    def test_replace_puts_the_new_one_in_place(self, open_member: Opens) -> None:
        """The latest tail takes the place of the one before; nothing else under a key ever changes."""
        store, key, other = open_member(), make_key("tail"), chunks(2)
        store.keep(other)
        for length in (5000, 9000, 300):
            assert store.save({key: make_payload(length, length)}, replace=True).outcomes == (DONE,)
            assert store.read([key]) == [make_payload(length, length)]
        assert store.save({key: make_payload("plain save")}).outcomes == (Outcome.KEPT,)
        assert store.read([key, *other]) == [make_payload(300, 300), *other.values()]

    def test_save_copies(self, open_member: Opens) -> None:
        """After the completion the slot is someone else's: what was saved must not follow it."""
        store, kept = open_member(), chunks(3)
        store.keep(kept)
        for slot in range(3):
            store.fill(slot, b"\x5a" * store.region.slot_bytes)
        assert store.read([*kept]) == [*kept.values()]

    def test_save_only_reads(self, open_member: Opens) -> None:
        """A SAVE's slots are leased to readers at the same time."""
        store, kept = open_member(), chunks(3)
        store.keep(kept)
        assert [store.bytes_of(slot, CHUNK_BYTES) for slot in range(3)] == [*kept.values()]

    def test_loaded_bytes_are_ours(self, open_member: Opens) -> None:
        """The engine may overwrite a slot that was loaded; the store's copy must not change with it."""
        store, kept = open_member(), chunks(1)
        store.keep(kept)
        store.load([*kept])
        store.fill(store.half, b"\x5a" * CHUNK_BYTES)
        assert store.read([*kept]) == [*kept.values()]

    def test_layouts_and_generated_travel(self, open_member: Opens) -> None:
        """Bytes without their layout are read as something else; generated counts make the reports true."""
        store, kept = open_member(), chunks(3)
        texts = ("", OTHER_LAYOUT.text, '{"kind":"opaque","tag":"ü"}')
        for slot, data in enumerate(kept.values()):
            store.fill(slot, data)
        saved = store.run(Op.SAVE, [*kept], range(3), [CHUNK_BYTES] * 3, layouts=texts, generated=(0, 17, 64))
        assert all(o.good for o in saved.outcomes), names(saved)
        done = store.load([*kept][::-1])
        assert done.outcomes == (DONE,) * 3, names(done)
        assert done.layouts == texts[::-1] and done.generated == (64, 17, 0)

    def test_no_layouts_means_the_hubs_own(self, open_member: Opens) -> None:
        """None and empty text are one thing: a plain chunk must not come back with someone's layout."""
        store, kept = open_member(), chunks(2)
        store.keep(kept)
        done = store.load([*kept])
        assert done.layouts in (None, ("", "")) and done.generated in (None, (0, 0))

    def test_ones_own_layout_by_name(self, open_member: Opens) -> None:
        """Spelt out or not, one's own layout is one's own: nothing needs a conversion."""
        store, kept = open_member(), chunks(1)
        store.fill(0, make_payload("0"))
        store.run(Op.SAVE, [*kept], [0], [CHUNK_BYTES], layouts=[LAYOUT.text])
        assert store.load([*kept]).layouts in (None, ("",), (LAYOUT.text,))

    @pytest.mark.parametrize("op", [Op.FIND, Op.LOAD, Op.SAVE])
    def test_empty_batch(self, open_member: Opens, op: Op) -> None:
        """A batch of nothing ends like any other; a lost completion is a request that waits for ever."""
        assert open_member().run(op, []).outcomes == ()

    def test_big_batch(self, open_member: Opens) -> None:
        """A 128k-token prompt is thousands of keys in one FIND and all its chunks in one LOAD."""
        store = open_member(slots=256)
        kept = chunks(128, length=4096)
        store.keep(kept)
        assert store.read([*kept]) == [*kept.values()]
        keys = [make_key(f"absent {i}") for i in range(2000)]
        keys[7], keys[1999] = [*kept][:2]
        found = store.find(keys)
        assert [i for i, outcome in enumerate(found) if outcome is DONE] == [7, 1999]

    def test_A14_strange_keys_stay_apart(self, open_member: Opens) -> None:
        """Keys are any 32 bytes; two that differ in one bit or in case are two chunks."""
        store = open_member()
        kept = {key: make_payload(key.hex(), 700) for key in ODD_KEYS}
        store.keep(kept)
        assert store.read(ODD_KEYS) == [*kept.values()]
        assert store.find([bytes(30) + b"\x01\x00"]) == (MISS,)

    def test_one_key_into_two_slots(self, open_member: Opens) -> None:
        """Two requests of one batch may want the same chunk."""
        store, kept = open_member(), chunks(1)
        store.keep(kept)
        (key,) = kept
        assert store.read([key, key]) == [kept[key], kept[key]]

    def test_one_key_twice_in_a_save(self, open_member: Opens) -> None:
        """Two requests that computed the same prefix in one step save it together."""
        store, key, data = open_member(), make_key("twice"), make_payload("twice")
        store.fill(0, data)
        store.fill(1, data)
        done = store.run(Op.SAVE, [key, key], [0, 1], [CHUNK_BYTES] * 2)
        assert all(o.good for o in done.outcomes), names(done)
        assert store.read([key]) == [data]

    def test_room_is_respected(self, open_member: Opens) -> None:
        """A chunk longer than the room that the LOAD grants would overwrite what lies behind it."""
        store, kept = open_member(), chunks(1)
        store.keep(kept)
        store.fill(store.half, b"\xa5" * store.region.slot_bytes)
        done = store.run(Op.LOAD, [*kept], [store.half], [CHUNK_BYTES - 1])
        assert done.outcomes != (DONE,), names(done)
        assert store.bytes_of(store.half)[CHUNK_BYTES - 1 :] == b"\xa5" * (store.region.slot_bytes - CHUNK_BYTES + 1)

    @under.without_meaning(dropping=under.KEPT_TWICE)
    def test_moved_counts_bytes(self, open_member: Opens) -> None:
        """Deadlines and routes are chosen by measured speed: bytes that did not move must not count."""
        store, kept = open_member(), chunks(2)
        assert store.save(kept).moved > 0
        assert store.load([*kept]).moved > 0
        assert store.run(Op.FIND, [*kept]).moved == 0
