"""Laws of the wire: clocks that jump, peers that fall silent, and a thousand aborts."""

from __future__ import annotations

import random
import time
from typing import Any, ClassVar

import pytest

from kvhub.testing.region import make_key
from kvhub.testing.stage import until
from kvhub.testing.wire_hub import Hub, OpensHub, StartsPeer, Wired
from kvhub.testing.wire_lies import Lie, lying
from kvhub.testing.wire_peer import PATTERN, payload
from kvhub.types import Op, Outcome, Peer
from kvhub.wire import frames

DONE, LATE = Outcome.DONE, Outcome.LATE
BEAT = 0.25
LANES, WIDTH = 4, 8


class TimeLaws(Wired):
    """Every bound is kept by a clock that nobody can set."""

    aborts: ClassVar[int] = 1000
    """Pulls that are tried with random aborts."""

    def test_clocks_that_jump(
        self, open_hub: OpensHub, start_peer: StartsPeer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A date set years back or ahead, and a peer whose clock began elsewhere, move no deadline and no byte."""
        dice, real = random.Random(3), time.time
        monkeypatch.setattr(time, "time", lambda: real() + dice.choice([-1e9, 0.0, 1e9]))
        ours = open_hub("ours")
        for clock in (1e6, -50.0):
            peer = start_peer(chunks=4, length=20000, clock=clock, begin=[9])
            assert set(ours.pull(peer.peer, 4).outcomes) == {DONE}
            began = time.monotonic()
            batch = ours.driver.submit(Op.LOAD, [make_key(9)], [0], deadline=began + 0.5, peer=peer.peer)
            done = ours.driver.wait(batch)
            assert 0.45 < time.monotonic() - began < 0.5 + 1.0 and DONE not in done.outcomes
            peer.until(lambda now: not now["lent"], self.patience, "the lease ends with its time")

    def test_times_travel_as_spans(self, open_hub: OpensHub) -> None:
        """What a pull says of its deadline is how long it has left, since no two clocks agree."""
        ours, theirs = open_hub("ours"), open_hub("theirs")
        theirs.offer(1, 1000)
        with lying(ours, Lie("", frames.Pull, lambda message: [message])) as said:
            assert set(ours.pull(theirs.peer(), 1, 7.0).outcomes) == {DONE}
        assert [0 < one.within <= 7.0 for one in said if isinstance(one, frames.Pull)] == [True]

    def test_a_silent_server_is_given_up(self, open_hub: OpensHub, start_peer: StartsPeer) -> None:
        """An idle link to a process that hangs is cut after three silences, and one to a healthy peer stays."""
        ours = open_hub("ours", heartbeat=BEAT)
        hung, well = (
            start_peer(chunks=2, length=20000, options={"heartbeat": BEAT}, incarnation=name)
            for name in ("hung", "well")
        )
        for peer in (hung, well):
            assert set(ours.pull(peer.peer, 2).outcomes) == {DONE}
        links = {link.label: link for link in ours.wire._links.values()}
        hung.stop()
        stopped = time.monotonic()
        until(lambda: hung.peer.address not in {one.label for one in ours.wire._links.values()}, self.patience, "cut")
        assert 1.5 * BEAT < time.monotonic() - stopped < 4 * BEAT + 2.0
        assert links[hung.peer.address].reason == "heartbeat"
        assert {one.label: one for one in ours.wire._links.values()} == {well.peer.address: links[well.peer.address]}, (
            "a healthy idle link was cut"
        )
        hung.resume()
        for peer in (hung, well):
            assert set(ours.pull(peer.peer, 2).outcomes) == {DONE}

    def test_a_silent_puller_is_given_up(self, open_hub: OpensHub, start_peer: StartsPeer) -> None:
        """A server keeps the link of an idle puller that speaks now and then, and drops that of one that does not."""
        hub = open_hub("hub", heartbeat=BEAT)
        hub.offer(2, 20000)
        puller = start_peer(length=20000, slots=8, options={"heartbeat": BEAT})
        address = [hub.transport.address(), hub.transport.context.incarnation]
        heard = puller.ask("pull", peer=address, count=2)
        assert set(heard["outcomes"]) == {"DONE"}, heard
        (link,) = hub.wire._links.values()
        time.sleep(6 * BEAT)
        assert [*hub.wire._links.values()] == [link]
        puller.stop()
        until(lambda: not hub.links, self.patience, "the silent puller is dropped")
        assert link.reason == "heartbeat"
        puller.resume()
        # The first pull may still go into the old link, whose end it has not seen yet.
        tries = [puller.ask("pull", peer=address, count=2) for _ in range(2)]
        assert set(tries[1]["outcomes"]) == {"DONE"} and not tries[0]["wrong"], tries

    def test_D12_a_peer_that_never_answers(self, open_hub: OpensHub, start_peer: StartsPeer) -> None:
        """A hung process that still takes connections costs its own pulls the handshake's time, and nobody else."""
        ours, theirs = open_hub("ours", handshake_timeout=0.5), open_hub("theirs")
        theirs.offer(2, 1000)
        hung = start_peer(chunks=1, length=1000)
        hung.stop()
        began = time.monotonic()
        batch = ours.start(hung.peer, 1, 10.0, slot=0)
        assert time.monotonic() - began < 0.05
        assert set(ours.pull(theirs.peer(), 2).outcomes) == {DONE}
        done = ours.end(batch, 1, slot=0)
        assert set(done.outcomes) == {Outcome.FAILED} and done.reason == "handshake"
        assert time.monotonic() - began < 0.5 + 1.5

    # -- aborts

    def _aborts(self, ours: Hub, peer: Peer, lengths: dict[int, int], count: int, may: set[Outcome]) -> int:
        """Pulls with random deadlines and cancels over shared slots; how many were good.

        Every slot is somebody else's between two pulls: it gets a pattern, which must stand until the next one.
        """
        dice, driver, good = random.Random(11), ours.driver, 0
        under_way: dict[int, tuple[int, list[int]]] = {}
        pattern = PATTERN * driver.region.slot_bytes
        for turn in range(count + LANES):
            lane = turn % LANES
            slots = range(lane * WIDTH, lane * WIDTH + WIDTH)
            if lane in under_way:
                batch, numbers = under_way.pop(lane)
                done = driver.wait(batch, self.patience + 10.0)
                assert set(done.outcomes) <= may, done
                for n, slot, outcome in zip(numbers, slots, done.outcomes, strict=False):
                    assert outcome is not DONE or driver.bytes_of(slot, lengths[n]) == payload(n, lengths[n])
                good += set(done.outcomes) == {DONE}
                for slot in slots:
                    driver.fill(slot, pattern)
                # Late bytes of the others would land in the meantime.
                time.sleep(dice.random() * 0.0005)
                assert all(driver.bytes_of(slot) == pattern for slot in slots), "a slot changed after its pull ended"
            if turn >= count:
                continue
            numbers = dice.sample([*lengths], dice.randrange(1, WIDTH))
            deadline = time.monotonic() + dice.choice([0.0005, 0.002, 30.0, 30.0])
            keys = [make_key(n) for n in numbers]
            batch = driver.submit(Op.LOAD, keys, slots[: len(keys)], deadline=deadline, peer=peer)
            if dice.random() < 0.4:
                time.sleep(dice.random() * 0.002)
                ours.transport.cancel(batch)
            under_way[lane] = batch, numbers
        return good

    def test_B08_many_pulls_and_random_aborts(self, open_hub: OpensHub, start_peer: StartsPeer) -> None:
        """No wrong byte is ever called DONE, no slot is written after its pull, every batch ends, leases come back."""
        options: dict[str, Any] = {"stop_timeout": 0.5}
        length, count = 1 << 16, self.aborts
        ours = open_hub("ours", slots=LANES * WIDTH, slot_bytes=length, **options)
        peer = start_peer(chunks=16, length=length, slots=64, options=options)
        good = self._aborts(ours, peer.peer, dict.fromkeys(range(16), length), count, {DONE, LATE})
        assert good > count // 10, f"only {good} of {count} were not aborted: that tries little"
        state = peer.until(lambda now: not now["lent"], self.patience, "leases are back")
        assert not state["faults"] and not {"wire.bug", "wire.broken"} & set(state["events"])
        assert set(ours.pull(peer.peer, 16).outcomes) == {DONE}

    def test_B11_links_that_are_cut_while_bytes_come(self, open_hub: OpensHub, start_peer: StartsPeer) -> None:
        """Where nobody waits for a peer to stop, links are cut in the middle of messages: no slot changes later."""
        length = 1 << 20
        ours = open_hub("ours", slots=LANES * WIDTH, slot_bytes=length, stop_timeout=0.0001)
        peer = start_peer(chunks=16, length=length, slots=32)
        may = {DONE, LATE, Outcome.FAILED}
        self._aborts(ours, peer.peer, dict.fromkeys(range(16), length), max(self.aborts // 16, 20), may)
        state = peer.until(lambda now: not now["lent"], self.patience, "leases are back")
        assert not state["faults"] and not {"wire.bug", "wire.broken"} & set(state["events"])
