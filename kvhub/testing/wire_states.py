"""Laws of the wire: either side is stopped or killed in every state, and nobody else is harmed by it."""

from __future__ import annotations

import time
from typing import Any, ClassVar

import pytest

from kvhub.testing.stage import until
from kvhub.testing.wire_hub import Hub, OpensHub, Process, StartsPeer, Wired
from kvhub.testing.wire_moments import Moment, moments
from kvhub.types import Completion, Outcome

COUNT, LENGTH = 24, 1 << 19
"""Twelve MiB: several messages, however they are cut, and more than one flush."""
STOP, CUT = 0.2, 1.0
"""What hubs are told (`stop_timeout`), and how long cutting a lane may take."""
WITHIN = 0.4
"""Deadline of a pull whose peer is stopped."""
KILLED_WITHIN = 1.0
"""Seconds after which nobody waits for the dead."""
TIMES: dict[str, Any] = {"stop_timeout": STOP, "heartbeat": 60.0}
FEW = ("offer said", "middle", "commit due", "pull said", "put")
DONE, FAILED, LATE = Outcome.DONE, Outcome.FAILED, Outcome.LATE


class StateLaws(Wired):
    """Every moment of the protocol, both sides, both signals."""

    moments: ClassVar[str] = "all"
    """`all`, or `few` where another class tries the same code."""
    fenced: ClassVar[bool] = False
    """With puts: whether this hub's own process writes what they bring, so that its end of the lane ends them."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        for side in ("server", "puller"):
            if side in metafunc.fixturenames:
                found = [one for one in moments(self.path, side) if self.moments == "all" or one.name in FEW]
                metafunc.parametrize(side, found, ids=[one.name.replace(" ", "-") for one in found])

    def _hub(self, open_hub: OpensHub, **more: Any) -> Hub:
        return open_hub("survivor", slots=4 * COUNT, slot_bytes=LENGTH, **{**TIMES, **more})

    def _server(self, start_peer: StartsPeer, fault: dict[str, Any] | None = None, **more: Any) -> Process:
        return start_peer(chunks=COUNT, length=LENGTH, options=TIMES, fault=fault, **more)

    def _stopped(self, hub: Hub, start_peer: StartsPeer, fault: dict[str, Any]) -> tuple[Process, int, float, float]:
        """(server that has stopped itself, batch, when it began, its time); on a slow machine it takes more time."""
        peer = self._server(start_peer, {"fault": "stop", **fault})
        for within in (WITHIN, 4 * WITHIN, 16 * WITHIN):
            began = time.monotonic()
            batch = hub.start(peer.peer, COUNT, within)
            until(lambda: peer.stopped or hub.driver.poll(), self.patience + within, "the server stops or serves")
            if not peer.stopped and DONE in hub.driver.ended[batch].outcomes:
                # It stops behind the end.
                peer.wait_lost("stop")
            if peer.stopped:
                return peer, batch, began, within
            hub.end(batch, COUNT)
        raise AssertionError(f"the server never came to {fault}")

    def _quarantines(self, moment: Moment) -> bool:
        """Whether the peer writes by itself, so that only its end or its word makes the slots safe."""
        return self.path == "put" and moment.writes and not self.fenced

    def _settled(self, hub: Hub) -> None:
        """Nothing of an ended link is left."""
        until(lambda: not hub.wire._hot and not hub.wire._quarantined, self.patience, "the survivor has settled")

    # -- the server is lost

    def test_B07_the_server_is_killed(self, open_hub: OpensHub, start_peer: StartsPeer, server: Moment) -> None:
        """A prefill that dies in any state costs its pulls one second and nothing else, and its successor is found."""
        hub = self._hub(open_hub)
        peer = self._server(start_peer, {"fault": "kill", **server.fault})
        batch = hub.start(peer.peer, COUNT)
        died = peer.wait_lost("kill")
        done = hub.end(batch, COUNT, self.patience)
        assert time.monotonic() - died < KILLED_WITHIN
        self._judge(done, server)
        hub.hand_on(COUNT)
        again = self._server(start_peer, incarnation="second") if not server.begun else None
        if again is not None:
            assert set(hub.pull(again.peer, COUNT).outcomes) == {DONE}
        else:
            assert hub.spoilt(COUNT) == []
        self._settled(hub)

    def test_B10_B11_the_server_is_stopped(self, open_hub: OpensHub, start_peer: StartsPeer, server: Moment) -> None:
        """A prefill that hangs in any state costs the deadline, and what it still sends when it wakes goes nowhere."""
        hub = self._hub(open_hub)
        peer, batch, began, within = self._stopped(hub, start_peer, server.fault)
        if self._quarantines(server):
            self._wait_in_quarantine(hub, batch, start_peer)
            peer.resume()
            woke = time.monotonic()
            done = hub.end(batch, COUNT, self.patience)
            assert time.monotonic() - woke < KILLED_WITHIN
        else:
            done = hub.end(batch, COUNT, self.patience)
            assert time.monotonic() - began < within + STOP + CUT + KILLED_WITHIN
        self._judge(done, server, late=True)
        hub.hand_on(COUNT)
        peer.resume()
        # Everything that it had begun has ended there, too.
        state = peer.until(
            lambda now: not now["lent"] and now["links"] <= hub.links, self.patience, "the peer has settled"
        )
        assert not state["faults"] and "wire.bug" not in state["events"]
        assert hub.spoilt(COUNT) == [], "slots were written after their batch had ended"
        assert set(hub.pull(peer.peer, COUNT).outcomes) == {DONE}
        self._settled(hub)

    def _judge(self, done: Completion, moment: Moment, *, late: bool = False) -> None:
        """What is DONE was looked at byte by byte already."""
        bad = {FAILED, LATE} if late else {FAILED}
        assert set(done.outcomes) <= (bad | {DONE} if moment.maybe else bad), done
        assert done.reason or set(done.outcomes) == {DONE}, done

    def _wait_in_quarantine(self, hub: Hub, batch: int, start_peer: StartsPeer) -> None:
        """The batch stays open beyond every deadline, its slots stay lent, and other peers are served meanwhile."""
        until(lambda: hub.wire._quarantined, self.patience, "the hung server is quarantined")
        assert batch not in hub.driver.ended
        other = start_peer(chunks=2, length=LENGTH, options=TIMES, incarnation="other")
        slot = 0
        served = hub.start(other.peer, 2, slot=slot)
        done = hub.end(served, 2, slot=slot)
        assert set(done.outcomes) == {DONE}, done
        hub.driver.poll()
        assert batch in hub.driver.under_way, "slots that the hung server may write were handed back"
        assert "hangs with slots" in hub.transport.healthy()

    def test_B11_a_quarantine_ends_with_the_process(self, open_hub: OpensHub, start_peer: StartsPeer) -> None:
        """A hung writer that is killed can write no more: its slots come back at once."""
        if self.path != "put" or self.fenced:
            self.leave_out("no peer of this path writes by itself, so none is waited for")
        hub = self._hub(open_hub)
        peer, batch, _, _ = self._stopped(hub, start_peer, {"step": "put", "nth": 2})
        self._wait_in_quarantine(hub, batch, start_peer)
        peer.kill()
        died = time.monotonic()
        done = hub.end(batch, COUNT, self.patience)
        assert time.monotonic() - died < KILLED_WITHIN and set(done.outcomes) == {LATE}
        assert hub.transport.healthy() == ""

    def test_B13_cancel_while_the_server_hangs(self, open_hub: OpensHub, start_peer: StartsPeer) -> None:
        """An aborted request ends within a second, even where the peer hangs, and its slots are safe."""
        hub = self._hub(open_hub)
        # Where the peer writes by itself it is stopped as soon as it said that it would not.
        fault = {"at": "before", "frame": "Offer"} if self.path != "put" else {"at": "after", "frame": "Commit"}
        peer = self._server(start_peer, {"fault": "stop", **fault})
        batch = hub.start(peer.peer, COUNT, 30.0)
        peer.wait_lost("stop")
        before = time.monotonic()
        hub.transport.cancel(batch)
        done = hub.end(batch, COUNT, self.patience)
        assert time.monotonic() - before < 1.0
        assert (set(done.outcomes) == {LATE} and done.reason == "cancelled") or self.path == "put"
        hub.hand_on(COUNT)
        peer.resume()
        peer.until(lambda now: not now["lent"], self.patience, "the peer has settled")
        assert hub.spoilt(COUNT) == []

    def test_B11_a_message_that_is_half_there(self, open_hub: OpensHub, start_peer: StartsPeer) -> None:
        """The rest of a message that was stopped half-way cannot reach a slot that is another request's by then."""
        if self.path != "message":
            self.leave_out("this path has no messages")
        half = 0
        for nth in (1, 2, 3, 5, 8):
            hub = open_hub(f"half {nth}", slots=2, slot_bytes=16 << 20, **TIMES)
            peer = start_peer(
                chunks=1, length=16 << 20, options=TIMES, fault={"fault": "stop", "step": "progress", "nth": nth}
            )
            batch = hub.start(peer.peer, 1, WITHIN)
            peer.wait_lost("stop")
            assert set(hub.end(batch, 1, self.patience).outcomes) <= {LATE, FAILED, DONE}
            half += bool(hub.spoilt(1))
            hub.hand_on(1)
            peer.resume()
            peer.until_idle(self.patience)
            assert hub.spoilt(1) == [], "the rest of a message landed after the batch had ended"
            if half:
                break
        assert half, "no message was stopped half-way, so nothing was shown"

    # -- the puller is lost

    def _pulled_from(self, open_hub: OpensHub, start_peer: StartsPeer, fault: dict[str, Any]) -> tuple[Hub, Process]:
        hub = self._hub(open_hub, transfer_timeout=WITHIN, poison=True)
        hub.offer(COUNT, LENGTH)
        puller = start_peer(chunks=0, length=LENGTH, slots=2 * COUNT, options=TIMES, fault=fault)
        puller.tell("pull", peer=[hub.transport.address(), hub.transport.context.incarnation], count=COUNT)
        return hub, puller

    def test_B07_the_puller_is_killed(self, open_hub: OpensHub, start_peer: StartsPeer, puller: Moment) -> None:
        """A decode that dies in any state frees the prefill's leases within a second."""
        hub, peer = self._pulled_from(open_hub, start_peer, {"fault": "kill", **puller.fault})
        died = peer.wait_lost("kill")
        until(lambda: not hub.source.lent and not hub.links, self.patience, "the leases of the dead are back")
        assert time.monotonic() - died < KILLED_WITHIN
        assert len(hub.source.returned) == len(hub.source.taken) <= 1

    def test_B07_B10_the_puller_is_stopped(self, open_hub: OpensHub, start_peer: StartsPeer, puller: Moment) -> None:
        """A decode that hangs keeps leases no longer than the deadline, and is told nothing wrong when it wakes."""
        hub, peer = self._pulled_from(open_hub, start_peer, {"fault": "stop", **puller.fault})
        began = peer.wait_lost("stop")
        until(lambda: not hub.source.lent, self.patience, "the leases of the hung puller are back")
        # From here on every slot that was lent holds something else.
        if puller.begun:
            assert time.monotonic() - began < WITHIN + STOP + CUT + KILLED_WITHIN
        peer.resume()
        heard = peer.read()
        assert heard["wrong"] == 0, heard
        assert set(heard["outcomes"]) <= {"DONE", "FAILED", "LATE"}, heard
        hub.offer(COUNT, LENGTH, first=COUNT)
        again = peer.ask(
            "pull", peer=[hub.transport.address(), hub.transport.context.incarnation], count=COUNT, first=COUNT
        )
        state = peer.ask("state")
        assert set(again["outcomes"]) == {"DONE"} and again["wrong"] == 0
        assert state["spoilt"] == 0 and "wire.bug" not in state["events"]

    # -- and whoever comes next

    def test_B17_a_successor_on_the_same_port(self, open_hub: OpensHub, start_peer: StartsPeer) -> None:
        """A process with other memory takes over the address: it is paired at once, and the old name is refused."""
        hub = self._hub(open_hub)
        first = self._server(start_peer)
        assert set(hub.pull(first.peer, COUNT).outcomes) == {DONE}
        first.kill()
        for _ in range(4):
            began = time.monotonic()
            done = hub.pull(first.peer, COUNT)
            assert set(done.outcomes) == {FAILED} and done.reason in ("refused", "peer")
            assert time.monotonic() - began < KILLED_WITHIN
        address = first.facts["address"]
        second = start_peer(
            chunks=COUNT, length=LENGTH, slots=3 * COUNT, options={**TIMES, "listen": address}, incarnation="second"
        )
        assert second.facts["address"] == address
        assert set(hub.pull(second.peer, COUNT).outcomes) == {DONE}
        done = hub.pull(first.peer, COUNT)
        assert set(done.outcomes) == {FAILED} and done.reason == "incarnation"
        assert set(hub.pull(second.peer, COUNT).outcomes) == {DONE}
