"""Store laws, level "safe": claims are honest both ways, misuse raises, and a closed store leaves nothing behind."""

from __future__ import annotations

import attrs
import pytest

from kvhub.errors import MisuseError
from kvhub.store import Store
from kvhub.testing import under
from kvhub.testing.driver import Driver, names
from kvhub.testing.region import CHUNK_BYTES, LAYOUT, OTHER_LAYOUT, make_key, make_payload
from kvhub.testing.stage import CLOSE_WITHIN_S, Opens, Stage, Traces
from kvhub.testing.store_basic import chunks
from kvhub.types import Batch, Capabilities, Op, Outcome

DONE, MISS = Outcome.DONE, Outcome.MISS
KEY = make_key("misuse")
UNEQUAL = {
    "load without slots": Batch(1, Op.LOAD, (KEY,)),
    "load with too few slots": Batch(1, Op.LOAD, (KEY, KEY), (0,), (10, 10)),
    "load with too few lengths": Batch(1, Op.LOAD, (KEY, KEY), (0, 1), (10,)),
    "save with too many slots": Batch(1, Op.SAVE, (KEY,), (0, 1), (10,)),
    "save without lengths": Batch(1, Op.SAVE, (KEY,), (0,)),
    "save with too few layouts": Batch(1, Op.SAVE, (KEY, KEY), (0, 1), (10, 10), layouts=("",)),
    "save with too many counts": Batch(1, Op.SAVE, (KEY,), (0,), (10,), generated=(1, 2)),
}


def scanned(store: Driver) -> dict[bytes, int]:
    assert isinstance(store.member, Store)
    listed = list(store.member.scan())
    assert len(listed) == len({key for key, _ in listed}), "scan lists a chunk twice"
    return dict(listed)


class ClaimLaws(Stage):
    """What the capabilities say is so, and what they do not say is not."""

    def _claims(self, open_member: Opens, claim: str) -> Driver:
        store = open_member()
        if not getattr(store.member.capabilities, claim):
            self.leave_out(f"the store does not claim {claim}")
        return store

    def test_is_a_store_with_a_frozen_config(self, open_member: Opens) -> None:
        """The hub builds the configuration from YAML and hands the same object to every part."""
        member = open_member(attach=False).member
        assert isinstance(member, Store)
        config = member.__class__.Config
        assert attrs.has(config), f"{config.__name__} is no attrs class"
        for field in attrs.fields(config):
            assert field.type is not None, f"{config.__name__}.{field.name} has no type"
        assert config.__setattr__ is not object.__setattr__, f"{config.__name__} is not frozen"

    def test_capabilities_are_fixed(self, open_member: Opens) -> None:
        """Routes are decided once, from what the store says after `attach`."""
        store = open_member()
        said = store.member.capabilities
        assert isinstance(said, Capabilities) and not said.device_direct
        kept = chunks(2)
        store.keep(kept)
        store.read([*kept])
        assert store.member.capabilities == said

    # -- persistent, shared

    def test_persistence_is_as_claimed(self, open_member: Opens) -> None:
        """A pool that forgets at restart, or a tier that remembers unasked, breaks what the route was built on."""
        kept, first = chunks(3), open_member("first")
        said = first.member.capabilities
        first.keep(kept)
        first.close()
        found = open_member("second")
        if said.persistent:
            assert found.find([*kept]) == (DONE,) * 3
            assert found.read([*kept]) == [*kept.values()]
        elif said.shared:
            self.leave_out("shared but not persistent: either is allowed")
        else:
            assert found.find([*kept]) == (MISS,) * 3, "chunks outlived a store that does not claim persistent"
            assert found.read([*kept]) == [None] * 3

    def test_sharing_is_as_claimed(self, open_member: Opens) -> None:
        """The prefill finds in the pool what the decode saved, while both live."""
        kept, writer = chunks(3), open_member("writer")
        said = writer.member.capabilities
        if said.persistent and not said.shared:
            self.leave_out("persistent but not shared: a second live member may be refused")
        reader = open_member("reader")
        writer.keep(kept)
        assert reader.find([*kept]) == ((DONE if said.shared else MISS),) * 3
        assert reader.read([*kept]) == ([*kept.values()] if said.shared else [None] * 3)

    def test_shared_chunks_carry_all(self, open_member: Opens) -> None:
        """Another hub needs the layout and the counts too, not only the bytes."""
        writer = self._claims(open_member, "shared")
        reader = open_member("reader")
        writer.fill(0, make_payload("carried"))
        writer.run(Op.SAVE, [KEY], [0], [CHUNK_BYTES], layouts=["opaque text"], generated=[5])
        done = reader.load([KEY])
        assert (done.outcomes, done.layouts, done.generated) == ((DONE,), ("opaque text",), (5,))

    def test_a_reader_learns_the_writers_layout(self, open_member: Opens) -> None:
        """ "" means the layout of the hub that says it: a reader of another layout must see the writer's in words."""
        writer = self._claims(open_member, "shared")
        reader = open_member("reader", layout=OTHER_LAYOUT)
        kept = chunks(2)
        first, second = kept
        writer.keep({first: kept[first]})
        reader.keep({second: kept[second]})
        for store, own in ((writer, 0), (reader, 1)):
            done = store.load([first, second])
            words = [text or store.member.context.layout.text for text in done.layouts or ("", "")]
            assert words == [LAYOUT.text, OTHER_LAYOUT.text], f"hub {own} would read a chunk in the wrong order"

    def test_members_of_one_process_are_apart(self, open_member: Opens) -> None:
        """Hidden globals: closing one store must not close another."""
        first, second = open_member("first"), open_member("second", namespace="another")
        kept = chunks(2)
        second.keep(kept)
        first.close()
        assert second.read([*kept]) == [*kept.values()]

    # -- removes, scans

    def test_unclaimed_remove_raises(self, open_member: Opens) -> None:
        """A claim left out by mistake must show at once, not as a purge that does nothing."""
        store = open_member()
        if store.member.capabilities.removes:
            self.leave_out("the store claims removes")
        with pytest.raises(MisuseError):
            store.submit(Op.REMOVE, [KEY])

    def test_remove_forgets(self, open_member: Opens) -> None:
        """What an operator purged is gone, and nothing else is."""
        store = self._claims(open_member, "removes")
        kept = chunks(4)
        store.keep(kept)
        keys = [*kept]
        assert store.remove(keys[1:3]) == (DONE, DONE)
        assert store.find(keys) == (DONE, MISS, MISS, DONE)
        assert store.read(keys) == [kept[keys[0]], None, None, kept[keys[3]]]

    def test_remove_twice(self, open_member: Opens) -> None:
        """Two purges race; what was not there is gone too."""
        store = self._claims(open_member, "removes")
        store.keep(chunks(1))
        (key,) = chunks(1)
        assert store.remove([key, make_key("never saved")]) == (DONE, DONE)
        assert store.remove([key]) == (DONE,)
        assert store.run(Op.REMOVE, []).outcomes == ()

    @under.without_meaning(dropping=under.KEPT_TWICE)
    def test_save_after_remove(self, open_member: Opens) -> None:
        """A removed key is free: the next save is written, with its own bytes."""
        store = self._claims(open_member, "removes")
        store.keep({KEY: make_payload("old")})
        store.remove([KEY])
        assert store.save({KEY: make_payload("new", 4000)}).outcomes == (DONE,)
        assert store.read([KEY]) == [make_payload("new", 4000)]

    def test_remove_stays_in_its_namespace(self, open_member: Opens) -> None:
        """Purging one model's chunks must not touch another's under the same key."""
        store, other = self._claims(open_member, "removes"), open_member("other", namespace="another model")
        store.keep({KEY: make_payload("ours")})
        other.keep({KEY: make_payload("theirs")})
        store.remove([KEY])
        assert other.read([KEY]) == [make_payload("theirs")]

    def test_unclaimed_scan_raises(self, open_member: Opens) -> None:
        """An empty listing would look like an empty store."""
        store = open_member()
        assert isinstance(store.member, Store)
        if store.member.capabilities.scans:
            self.leave_out("the store claims scans")
        with pytest.raises(MisuseError):
            list(store.member.scan())

    def test_scan_lists_exactly(self, open_member: Opens) -> None:
        """Operators count and purge by what scan lists: all of this namespace, once each, and nothing else."""
        store, other = self._claims(open_member, "scans"), open_member("other", namespace="another model")
        assert scanned(store) == {}
        kept = {make_key(n): make_payload(n, n) for n in (1, 4096, CHUNK_BYTES)}
        store.keep(kept)
        other.keep({make_key("other"): make_payload("other")})
        listed = scanned(store)
        assert set(listed) == set(kept)
        for key, data in kept.items():
            assert listed[key] > 0, f"{len(data)} bytes are listed as {listed[key]}"
        if store.member.capabilities.removes:
            gone = make_key(4096)
            store.remove([gone])
            assert set(scanned(store)) == set(kept) - {gone}

    # -- limits and reports

    @under.without_meaning(dropping=under.KEPT_TWICE)
    def test_max_chunk_bytes(self, open_member: Opens) -> None:
        """What the store says is too big is refused whole, and the rest of the batch goes on."""
        store = open_member()
        most = store.member.capabilities.max_chunk_bytes
        if most is None or most >= store.region.slot_bytes:
            self.leave_out("the store takes chunks as large as a slot")
        big, small = make_key("big"), make_key("small")
        done = store.save({big: make_payload("big", most + 1), small: make_payload("small", most)})
        assert done.outcomes[0] in (Outcome.FULL, Outcome.FAILED) and done.outcomes[1] is DONE, names(done)
        assert store.read([big, small]) == [None, make_payload("small", most)]

    def test_used_bytes(self, open_member: Opens) -> None:
        """A number that operators plan with: None, or at least what was just saved."""
        store = open_member()
        assert isinstance(store.member, Store)
        before = store.member.used_bytes()
        kept = chunks(4)
        store.keep(kept)
        after = store.member.used_bytes()
        if before is None or after is None:
            self.leave_out("the store cannot tell how much it keeps")
        assert 0 <= before < after

    def test_healthy_when_well(self, open_member: Opens) -> None:
        """Empty means well; anything else is shown to operators as trouble."""
        store = open_member()
        store.keep(chunks(1))
        assert store.member.healthy() == ""

    # -- misuse

    @pytest.mark.parametrize("case", sorted(UNEQUAL))
    @under.without_meaning(full=under.UNSEEN, hanging=under.UNSEEN)
    def test_unequal_tuples_raise(self, open_member: Opens, case: str) -> None:
        """A batch whose tuples do not match is a bug in the caller and must be seen where it is made."""
        store = open_member()
        with pytest.raises(MisuseError):
            store.member.submit(UNEQUAL[case])
        store.settle(0.02)
        store.keep(chunks(1))

    @pytest.mark.parametrize("op", [Op.FIND, Op.LOAD, Op.SAVE])
    @under.without_meaning(full=under.UNSEEN, hanging=under.UNSEEN)
    def test_a_closed_store_raises(self, open_member: Opens, op: Op) -> None:
        """A batch to a closed store would never end."""
        store = open_member()
        store.close()
        with pytest.raises(MisuseError):
            store.submit(op, [KEY], [] if op is Op.FIND else [0], [] if op is Op.FIND else [10])

    # -- the end

    def test_close_is_idempotent_and_bounded(self, open_member: Opens) -> None:
        """Whatever ends an engine closes its hub, perhaps twice; it must not hang there."""
        store = open_member()
        store.keep(chunks(2))
        assert max(store.close(), store.close()) < CLOSE_WITHIN_S

    def test_close_without_attach(self, open_member: Opens) -> None:
        """A start that failed at another member closes this one before it was attached."""
        assert open_member(attach=False).close() < CLOSE_WITHIN_S

    def test_B19_close_leaves_nothing(self, open_member: Opens) -> None:
        """Threads and descriptors come back to where they were, also with work under way."""
        warm = open_member("warm")
        warm.keep(chunks(2))
        warm.close()
        before = Traces()
        for n in range(3):
            store = open_member(f"life-{n}")
            kept = chunks(4, f"life {n}")
            store.keep(kept)
            store.read([*kept])
            store.start_save(chunks(16, f"unfinished {n}"))
            store.close()
        before.gone()
