"""Transport laws, level "works": chunks are pulled by key, byte for byte, and what is lent comes back."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Protocol

import attrs
import pytest

from kvhub.layout import Layout
from kvhub.testing import under
from kvhub.testing.driver import Driver, names
from kvhub.testing.region import CHUNK_BYTES, LAYOUT, OTHER_LAYOUT, make_key, make_payload
from kvhub.testing.source import FakeSource
from kvhub.testing.stage import Opens, Stage, most_bytes, until
from kvhub.testing.store_basic import chunks
from kvhub.transport import Transport
from kvhub.types import Op, Outcome, Peer

DONE, MISS, FAILED, LATE = Outcome.DONE, Outcome.MISS, Outcome.FAILED, Outcome.LATE


@attrs.define
class Site:
    """One hub's worth: a transport, its region, and the source that it serves from."""

    driver: Driver
    transport: Transport
    source: FakeSource

    def peer(self, promise: str = "", *, incarnation: str | None = None) -> Peer:
        """How others name this site."""
        own = self.transport.context.incarnation
        return Peer(self.transport.address(), own if incarnation is None else incarnation, promise)

    def offer(self, payloads: dict[bytes, bytes]) -> None:
        for key, data in payloads.items():
            self.source.put(key, data)

    def pull(self, keys: list[bytes], peer: Peer, seconds: float = 30.0) -> int:
        """Submit a LOAD into the upper half; returns the batch."""
        half = self.driver.half
        slots = range(half, half + len(keys))
        return self.driver.submit(Op.LOAD, keys, slots, deadline=time.monotonic() + seconds, peer=peer)


class OpensSite(Protocol):
    """The fixture `open_site`: a transport with a source, attached and serving."""

    def __call__(
        self,
        name: str = "site",
        *,
        namespace: str = "tests",
        layout: Layout = LAYOUT,
        inline: bool = True,
        poison: bool = False,
    ) -> Site: ...


class Sites(Stage):
    """How sites are opened for a law."""

    @pytest.fixture
    def open_site(self, open_member: Opens) -> Iterator[OpensSite]:
        sites: list[Site] = []
        numbers = itertools.count(1)

        def open_site(
            name: str = "site",
            *,
            namespace: str = "tests",
            layout: Layout = LAYOUT,
            inline: bool = True,
            poison: bool = False,
        ) -> Site:
            driver = open_member(f"{name}-{next(numbers)}", namespace=namespace, layout=layout)
            transport = driver.member
            assert isinstance(transport, Transport), f"member_factory made a {type(transport).__name__}"
            site = Site(driver, transport, FakeSource(driver.region, inline=inline, poison=poison))
            sites.append(site)
            transport.serve(site.source)
            return site

        yield open_site
        for site in sites:
            # Before the sources end: a transport gives back what it holds while it closes.
            site.driver.close()
        for site in sites:
            site.source.close()
        faults = [fault for site in sites for fault in site.source.faults]
        assert not faults, "; ".join(faults)
        lent = {site.transport.context.name: site.source.lent for site in sites if site.source.lent}
        assert not lent, f"closed with leases not given back: {lent}"


class BasicLaws(Sites):
    """What a transport is for."""

    @pytest.fixture
    def ours(self, open_site: OpensSite) -> Site:
        return open_site("ours")

    @pytest.fixture
    def theirs(self, open_site: OpensSite) -> Site:
        return open_site("theirs")

    def test_pull(self, ours: Site, theirs: Site) -> None:
        """A chunk arrives byte for byte, or decode speaks nonsense."""
        kept = chunks(1)
        theirs.offer(kept)
        assert ours.driver.read([*kept], peer=theirs.peer()) == [*kept.values()]

    def test_any_order_any_slot(self, ours: Site, theirs: Site) -> None:
        """Chunks are named by key: the peer's slots are the peer's business."""
        kept = chunks(10)
        theirs.offer(kept)
        keys = [*kept][::-1][::2] + [*kept][::2]
        assert ours.driver.read(keys, peer=theirs.peer()) == [kept[key] for key in keys]

    def test_exact_lengths(self, ours: Site, theirs: Site) -> None:
        """Tails have any length; each chunk of a batch has its own."""
        most = most_bytes(ours.driver)
        kept = {make_key(n): make_payload(n, n) for n in (1, 7, 4095, 4096, 4097, CHUNK_BYTES, most)}
        theirs.offer(kept)
        done = ours.driver.load([*kept], peer=theirs.peer())
        assert done.outcomes == (DONE,) * 7 and done.lengths == tuple(len(data) for data in kept.values())
        assert ours.driver.read([*kept], peer=theirs.peer()) == [*kept.values()]

    def test_beyond_the_length_nothing_is_written(self, ours: Site, theirs: Site) -> None:
        """The rest of a slot is not the transport's."""
        driver, kept = ours.driver, chunks(1, length=1001)
        theirs.offer(kept)
        driver.fill(driver.half, b"\xa5" * driver.region.slot_bytes)
        assert driver.load([*kept], peer=theirs.peer()).outcomes == (DONE,)
        assert driver.bytes_of(driver.half)[1001:] == b"\xa5" * (driver.region.slot_bytes - 1001)

    def test_other_slots_are_untouched(self, ours: Site, theirs: Site) -> None:
        """Slots that a batch does not name belong to other requests."""
        driver, kept = ours.driver, chunks(3)
        theirs.offer(kept)
        named = {driver.half + 1, driver.half + 3, driver.half + 4}
        others = [slot for slot in range(driver.region.slots) if slot not in named]
        for slot in others:
            driver.fill(slot, make_payload(f"other {slot}", driver.region.slot_bytes))
        assert driver.run(Op.LOAD, [*kept], sorted(named), peer=theirs.peer()).outcomes == (DONE,) * 3
        for slot in others:
            assert driver.bytes_of(slot) == make_payload(f"other {slot}", driver.region.slot_bytes), f"slot {slot}"

    def test_the_peers_memory_is_only_read(self, ours: Site, theirs: Site) -> None:
        """The peer's chunks are leased to others at the same time."""
        kept = chunks(5)
        theirs.offer(kept)
        before = bytes(theirs.driver.region.view)
        ours.driver.read([*kept], peer=theirs.peer())
        assert bytes(theirs.driver.region.view) == before

    def test_A13_missing_keys_are_misses(self, ours: Site, theirs: Site) -> None:
        """What the peer does not have is a MISS of that chunk alone, and leaves its slot alone."""
        driver, kept = ours.driver, chunks(2)
        theirs.offer(kept)
        first, last = kept
        driver.fill(driver.half + 1, b"\xa5" * driver.region.slot_bytes)
        done = driver.load([first, make_key("gone"), last], peer=theirs.peer())
        assert done.outcomes == (DONE, MISS, DONE), names(done)
        assert driver.bytes_of(driver.half + 2, CHUNK_BYTES) == kept[last]
        assert driver.bytes_of(driver.half + 1) == b"\xa5" * driver.region.slot_bytes

    def test_all_keys_missing(self, ours: Site, theirs: Site) -> None:
        """A peer that was restarted with an empty arena answers, with nothing."""
        done = ours.driver.load([make_key(n) for n in range(3)], peer=theirs.peer())
        assert done.outcomes == (MISS,) * 3 and done.moved == 0, names(done)

    def test_room_is_respected(self, ours: Site, theirs: Site) -> None:
        """A chunk longer than the room that the LOAD grants would overwrite what lies behind it."""
        driver, kept = ours.driver, chunks(2)
        theirs.offer(kept)
        driver.fill(driver.half, b"\xa5" * driver.region.slot_bytes)
        slots = [driver.half, driver.half + 1]
        done = driver.run(Op.LOAD, [*kept], slots, [CHUNK_BYTES - 1, CHUNK_BYTES], peer=theirs.peer())
        assert done.outcomes[0] is not DONE and done.outcomes[1] is DONE, names(done)
        assert driver.bytes_of(driver.half)[CHUNK_BYTES - 1 :] == b"\xa5" * (driver.region.slot_bytes - CHUNK_BYTES + 1)

    def test_layouts_and_generated_travel(self, ours: Site, theirs: Site) -> None:
        """Bytes without their layout are read as something else; generated counts make the reports true."""
        kept, texts = chunks(3), ("", OTHER_LAYOUT.text, '{"kind":"opaque","tag":"ü"}')
        for (key, data), text, made in zip(kept.items(), texts, (0, 17, 64), strict=True):
            theirs.source.put(key, data, layout=text, generated=made)
        done = ours.driver.load([*kept][::-1], peer=theirs.peer())
        assert done.outcomes == (DONE,) * 3 and done.layouts == texts[::-1] and done.generated == (64, 17, 0)

    def test_the_peers_own_layout_in_words(self, ours: Site, open_site: OpensSite) -> None:
        """ "" means the layout of the hub that says it: what the peer calls its own must not become ours."""
        theirs, kept = open_site("theirs", layout=OTHER_LAYOUT), chunks(2)
        first, second = kept
        theirs.source.put(first, kept[first])
        theirs.source.put(second, kept[second], layout=LAYOUT.text)
        done = ours.driver.load([first, second], peer=theirs.peer())
        if FAILED in done.outcomes:
            self.leave_out("the transport refuses a peer of another layout")
        words = [text or LAYOUT.text for text in done.layouts or ("", "")]
        assert words == [OTHER_LAYOUT.text, LAYOUT.text], "a chunk would be read in the wrong order"

    def test_empty_batch(self, ours: Site, theirs: Site) -> None:
        """A batch of nothing ends like any other (a prompt shorter than a chunk is such a batch)."""
        assert ours.driver.run(Op.LOAD, [], peer=theirs.peer()).outcomes == ()

    def test_big_batch(self, ours: Site, theirs: Site) -> None:
        """A long prompt is one batch: all of the region's chunks, and thousands of keys that are not there."""
        kept = chunks(32, length=most_bytes(ours.driver))
        theirs.offer(kept)
        done = ours.driver.load([*kept], peer=theirs.peer())
        assert done.outcomes == (DONE,) * 32 and done.moved > 0
        assert ours.driver.read([*kept], peer=theirs.peer()) == [*kept.values()]
        absent = [make_key(f"absent {n}") for n in range(1000)]
        done = ours.driver.run(Op.LOAD, absent, [40] * 1000, peer=theirs.peer())
        assert done.outcomes == (MISS,) * 1000

    def test_one_key_into_two_slots(self, ours: Site, theirs: Site) -> None:
        """Two requests of one batch may want the same chunk."""
        kept = chunks(1)
        theirs.offer(kept)
        (key,) = kept
        assert ours.driver.read([key, key], peer=theirs.peer()) == [kept[key], kept[key]]

    def test_both_directions_at_once(self, ours: Site, theirs: Site) -> None:
        """Roles change: each side pulls from the other while it serves."""
        here, there = chunks(8, "here"), chunks(8, "there")
        ours.offer(here)
        theirs.offer(there)
        for _ in range(5):
            pulls = ours.pull([*there], theirs.peer()), theirs.pull([*here], ours.peer())
            assert ours.driver.wait(pulls[0]).outcomes == theirs.driver.wait(pulls[1]).outcomes == (DONE,) * 8
            assert ours.driver.read([*there], peer=theirs.peer()) == [*there.values()]
        assert theirs.driver.read([*here], peer=ours.peer()) == [*here.values()]

    def test_several_peers(self, ours: Site, open_site: OpensSite) -> None:
        """A decode pulls from several prefills, and a prefill serves several decodes."""
        prefills = [open_site(f"prefill {n}") for n in range(3)]
        other = open_site("other decode")
        for n, site in enumerate(prefills):
            site.offer(chunks(4, f"prefill {n} "))
        for _ in range(2):
            for n, site in enumerate(prefills):
                kept = chunks(4, f"prefill {n} ")
                pulls = ours.pull([*kept], site.peer()), other.pull([*kept], site.peer())
                assert ours.driver.wait(pulls[0]).outcomes == other.driver.wait(pulls[1]).outcomes == (DONE,) * 4
                assert ours.driver.read([*kept], peer=site.peer()) == [*kept.values()]

    def test_a_pull_of_ones_own(self, ours: Site) -> None:
        """A front may name a hub as its own peer; that is slow and silly, and no reason to hang."""
        kept = chunks(2)
        ours.offer(kept)
        done = ours.driver.load([*kept], peer=ours.peer())
        assert set(done.outcomes) <= {DONE, FAILED}, names(done)

    # -- the source

    def test_filling_keys_are_waited_for(self, ours: Site, theirs: Site) -> None:
        """A decode asks before the prefill's copy has ended: the chunk comes as soon as it is ready."""
        kept = chunks(3)
        keys = [*kept]
        theirs.offer({keys[0]: kept[keys[0]]})
        theirs.source.begin(*keys[1:])
        batch = ours.pull(keys, theirs.peer())
        ours.driver.settle(0.1)
        assert batch in ours.driver.under_way, "a pull of a chunk that is being filled ended before it was ready"
        theirs.offer({key: kept[key] for key in keys[1:]})
        assert ours.driver.wait(batch).outcomes == (DONE,) * 3
        assert ours.driver.read(keys, peer=theirs.peer()) == [*kept.values()]

    @under.without_meaning(hanging=under.NOT_THERE)
    def test_an_abandoned_fill_is_a_miss(self, ours: Site, theirs: Site) -> None:
        """A prefill that was aborted says so at once, not at the deadline."""
        kept = chunks(2)
        first, second = kept
        theirs.offer({first: kept[first]})
        theirs.source.begin(second)
        batch = ours.pull([first, second], theirs.peer())
        until(lambda: theirs.source.taken, self.patience, "the peer's source is asked")
        theirs.source.abandon(second)
        assert ours.driver.wait(batch).outcomes == (DONE, MISS)

    @pytest.mark.parametrize("inline", [True, False])
    def test_leases_come_back_once(self, ours: Site, open_site: OpensSite, inline: bool) -> None:
        """A lease that stays holds memory for ever; one that is returned twice frees somebody else's."""
        theirs, kept = open_site("theirs", inline=inline), chunks(4)
        theirs.offer(kept)
        for n in range(5):
            done = ours.driver.load([*kept, make_key(f"gone {n}")], peer=theirs.peer())
            assert done.outcomes == (DONE,) * 4 + (MISS,), names(done)
        until(lambda: not theirs.source.lent, self.patience, "all leases are given back")
        assert len(theirs.source.taken) == len(theirs.source.returned) == len({*theirs.source.returned})

    @under.without_meaning(dropping=under.SPOILT, flipped=under.SPOILT, short=under.SPOILT)
    def test_leases_last_as_long_as_the_transfer(self, ours: Site, open_site: OpensSite) -> None:
        """A slot that was given back is reused at once: bytes read from it after that are another request's."""
        theirs = open_site("theirs", poison=True)
        for n in range(4):
            kept = chunks(8, f"round {n} ", most_bytes(ours.driver))
            theirs.offer(kept)
            assert ours.driver.read([*kept], peer=theirs.peer()) == [*kept.values()], "the peer gave back too early"
            until(lambda: not theirs.source.lent, self.patience, "all leases are given back")

    def test_fulfil_reaches_the_source(self, ours: Site, theirs: Site) -> None:
        """The prefill frees what it promised within a second and not when its timer ends."""
        kept = chunks(1)
        theirs.offer(kept)
        ours.driver.read([*kept], peer=theirs.peer("promise-7"))
        ours.transport.fulfil(theirs.peer("promise-7"))
        until(lambda: "promise-7" in theirs.source.promises, 3.0, "the peer hears that its promise is done with")

    def test_B12_fulfil_without_a_pull(self, ours: Site, theirs: Site) -> None:
        """A request with nothing to pull still ends the promise."""
        ours.transport.fulfil(theirs.peer("unused"))
        until(lambda: "unused" in theirs.source.promises, 5.0, "the peer hears of a promise that nobody pulled from")
