"""Transport laws, level "safe": wrong, dead, slow and hostile peers cost time, never a wrong byte and never a slot."""

from __future__ import annotations

import contextlib
import random
import socket
import time

import pytest

from kvhub.testing import under
from kvhub.testing.driver import names
from kvhub.testing.guard import fast
from kvhub.testing.region import CHUNK_BYTES, make_key
from kvhub.testing.stage import CLOSE_WITHIN_S, most_bytes, until
from kvhub.testing.store_basic import chunks
from kvhub.testing.store_time import NEVER_S, PROMPT_S, spent
from kvhub.testing.transport_basic import DONE, FAILED, LATE, MISS, OpensSite, Site, Sites
from kvhub.types import Op, Outcome, Peer

PATTERN = b"\x3c"


def dead_port() -> int:
    """A loopback port where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


class SafetyLaws(Sites):
    """Promises 1 to 3 and 7, on the wire."""

    @pytest.fixture
    def ours(self, open_site: OpensSite) -> Site:
        return open_site("ours")

    @pytest.fixture
    def theirs(self, open_site: OpensSite) -> Site:
        return open_site("theirs")

    def _hang(self, ours: Site, theirs: Site, seconds: float = 30.0, count: int = 4) -> int:
        """A pull under way that cannot end by itself: its keys are being filled."""
        kept = chunks(count, "never ready")
        theirs.source.begin(*kept)
        asked = len(theirs.source.taken)
        batch = ours.pull([*kept], theirs.peer(), seconds)
        until(lambda: len(theirs.source.taken) > asked, self.patience, "the peer's source is asked")
        return batch

    # -- time

    def test_one_completion_each(self, ours: Site, theirs: Site) -> None:
        """A batch that ends twice frees a slot that is in use; one that never ends keeps it for ever."""
        kept = chunks(4)
        theirs.offer(kept)
        for n in range(10):
            ours.pull([*kept][: n % 5], theirs.peer())
        ours.driver.wait_all()
        ours.driver.settle(0.1)

    @fast
    def test_many_batches_at_once(self, ours: Site, theirs: Site) -> None:
        """Requests come together; each batch's answer is its own, in whatever order they end."""
        kept = chunks(30, length=3000)
        theirs.offer(kept)
        driver, peer = ours.driver, theirs.peer()
        batches = [driver.submit(Op.LOAD, [key], [32 + n], [3000], peer=peer) for n, key in enumerate(kept)]
        for n, (batch, data) in reversed([*enumerate(zip(batches, kept.values(), strict=True))]):
            assert driver.wait(batch).outcomes == (DONE,)
            assert driver.bytes_of(32 + n, 3000) == data

    @fast
    @under.without_meaning(hanging=under.NOT_THERE)
    def test_a_slow_batch_does_not_stop_others(self, ours: Site, theirs: Site) -> None:
        """One prompt whose prefill is not done yet must not hold up those that are."""
        slow, kept = self._hang(ours, theirs), chunks(4)
        theirs.offer(kept)
        batch = ours.driver.submit(Op.LOAD, [*kept], range(8, 12), peer=theirs.peer())
        assert ours.driver.wait(batch, self.soon).outcomes == (DONE,) * 4
        assert slow in ours.driver.under_way
        theirs.source.abandon(*chunks(4, "never ready"))
        assert ours.driver.wait(slow).outcomes == (MISS,) * 4

    @fast
    def test_B18_calls_return_at_once(self, ours: Site, theirs: Site) -> None:
        """The engine's thread calls them, also for peers that do not answer."""
        kept, nobody = chunks(16), Peer(f"127.0.0.1:{dead_port()}", "nobody", "promise")
        theirs.offer(kept)
        theirs.source.begin(make_key("never ready"))
        transport = ours.transport
        times: dict[str, list[float]] = {"submit": [spent(ours.pull, [make_key("never ready")], theirs.peer(), 1.0)]}
        for n in range(5):
            for peer in (theirs.peer(f"promise {n}"), nobody):
                for call in (transport.connect, transport.fulfil):
                    times.setdefault(call.__name__, []).append(spent(call, peer))
                times.setdefault("submit", []).append(spent(ours.pull, [*kept], peer, 3.0))
                times.setdefault("poll", []).append(spent(ours.driver.poll))
            ours.driver.wait_all()
        times["forget"] = [spent(transport.forget, peer) for peer in (nobody, theirs.peer(), nobody)]
        for name, took in times.items():
            assert min(took) < PROMPT_S and max(took) < NEVER_S, f"{name} took {min(took):.4f} to {max(took):.4f} s"

    @fast
    @under.without_meaning(hanging=under.NO_WAKE)
    def test_wake_is_called(self, ours: Site, theirs: Site) -> None:
        """The pump sleeps until it is woken; without `wake` every load lasts a polling interval longer."""
        kept = chunks(1)
        theirs.offer(kept)
        ours.driver.read([*kept], peer=theirs.peer())
        ours.driver.settle()
        ours.driver.woken.clear()
        batch = ours.pull([*kept], theirs.peer())
        give_up = time.monotonic() + self.patience
        while batch not in ours.driver.ended:
            assert ours.driver.woken.wait(max(0.0, give_up - time.monotonic())), "wake was never called"
            ours.driver.woken.clear()
            ours.driver.poll()

    def test_deadline_in_the_past(self, ours: Site, theirs: Site) -> None:
        """Nobody waits for this batch: it ends soon, LATE or already done."""
        kept = chunks(2)
        theirs.offer(kept)
        done = ours.driver.wait(ours.pull([*kept], theirs.peer(), -1.0), self.soon)
        assert set(done.outcomes) <= {LATE, DONE}, names(done)

    def test_deadline_while_filling(self, ours: Site, theirs: Site) -> None:
        """A prefill that never ends costs the deadline and no more."""
        kept = chunks(1)
        theirs.offer(kept)
        before = time.monotonic()
        theirs.source.begin(make_key("never ready"))
        batch = ours.pull([*kept, make_key("never ready")], theirs.peer(), 0.4)
        done = ours.driver.wait(batch, 0.4 + 2.0)
        assert time.monotonic() - before > 0.3, "ended long before its deadline"
        assert done.outcomes[0] in (DONE, LATE) and done.outcomes[1] in (LATE, MISS), names(done)
        until(lambda: not theirs.source.lent, self.soon, "the peer's leases come back after the deadline")

    @under.without_meaning(dropping=under.GIVEN_UP, hanging=under.NOT_THERE)
    def test_B05_cancel_ends_the_batch(self, ours: Site, theirs: Site) -> None:
        """An aborted request's slots come back soon, here and at the peer."""
        batch = self._hang(ours, theirs)
        assert spent(ours.transport.cancel, batch) < NEVER_S
        done = ours.driver.wait(batch, self.soon)
        assert set(done.outcomes) <= {LATE, MISS}, names(done)
        theirs.source.abandon(*chunks(4, "never ready"))
        until(lambda: not theirs.source.lent, self.soon, "the peer's leases come back after a cancel")
        for unknown in (batch, 0, 2**62):
            ours.transport.cancel(unknown)
        ours.driver.settle(0.05)

    def test_B11_no_write_after_the_completion(self, ours: Site, theirs: Site) -> None:
        """Once a pull has ended, also LATE or cancelled, its slots are another request's."""
        driver, kept = ours.driver, chunks(16, length=most_bytes(ours.driver))
        theirs.offer(kept)
        pattern = PATTERN * driver.region.slot_bytes
        for n in range(6):
            batch = ours.pull([*kept], theirs.peer(), (0.001, 0.003, 30.0)[n % 3])
            driver.member.cancel(batch)
            driver.wait(batch, self.soon)
            for slot in range(driver.half, driver.half + 16):
                driver.fill(slot, pattern)
            time.sleep(0.05)
            spoilt = [s for s in range(driver.half, driver.half + 16) if driver.bytes_of(s) != pattern]
            assert not spoilt, f"slots {spoilt} were written after the batch had ended"

    # -- wrong and missing peers

    def test_unknown_peer_fails(self, ours: Site) -> None:
        """Nobody listens there: FAILED in bounded time, not at some time-out of the system's."""
        batch = ours.pull([make_key(1)], Peer(f"127.0.0.1:{dead_port()}", "nobody"))
        done = ours.driver.wait(batch, self.soon)
        assert done.outcomes == (FAILED,) and done.reason, names(done)

    @pytest.mark.parametrize("address", ["", "nonsense", "127.0.0.1", "127.0.0.1:0", "[::1:5", "127.0.0.1:99999"])
    def test_impossible_address_fails(self, ours: Site, address: str) -> None:
        """The address comes with a request, from another machine: rubbish in it must not raise in the engine."""
        done = ours.driver.wait(ours.pull([make_key(1)], Peer(address, "nobody"), 3.0), self.soon)
        assert set(done.outcomes) <= {FAILED, LATE}, names(done)

    def test_a_silent_peer_costs_the_deadline(self, ours: Site) -> None:
        """A port that accepts and never answers, as a stopped process does."""
        with socket.create_server(("127.0.0.1", 0)) as silent:
            peer = Peer(f"127.0.0.1:{silent.getsockname()[1]}", "silent")
            done = ours.driver.wait(ours.pull([make_key(1)], peer, 0.5), 0.5 + self.soon)
        assert set(done.outcomes) <= {FAILED, LATE}, names(done)

    def test_B17_wrong_incarnation_fails(self, ours: Site, theirs: Site) -> None:
        """A restarted peer on the same address has another arena: what the old one promised is not there."""
        kept = chunks(1)
        theirs.offer(kept)
        for _ in range(2):
            done = ours.driver.load([*kept], peer=theirs.peer(incarnation="the one before"))
            assert done.outcomes == (FAILED,), names(done)
            assert ours.driver.read([*kept], peer=theirs.peer()) == [*kept.values()]

    def test_A02_another_namespace_is_refused(self, ours: Site, open_site: OpensSite) -> None:
        """Same keys, another model: refused when pairing, and no byte is moved."""
        stranger, kept = open_site("stranger", namespace="another model"), chunks(2)
        stranger.offer(kept)
        ours.driver.fill(ours.driver.half, PATTERN * CHUNK_BYTES)
        done = ours.driver.load([*kept], peer=stranger.peer())
        assert done.outcomes == (FAILED,) * 2 and done.reason, names(done)
        assert ours.driver.bytes_of(ours.driver.half, CHUNK_BYTES) == PATTERN * CHUNK_BYTES
        assert not stranger.source.taken, "the peer's chunks were asked for before the namespaces were compared"

    @under.without_meaning(dropping=under.GIVEN_UP, hanging=under.NOT_THERE)
    def test_forget_ends_loads(self, ours: Site, theirs: Site) -> None:
        """A peer that is known to be gone must not hold loads until their deadline."""
        batch = self._hang(ours, theirs)
        ours.transport.forget(theirs.peer())
        done = ours.driver.wait(batch, self.soon)
        assert set(done.outcomes) <= {FAILED, LATE}, names(done)
        theirs.source.abandon(*chunks(4, "never ready"))
        until(lambda: not theirs.source.lent, self.soon, "the peer's leases come back after a forget")

    def test_forgotten_is_not_banned(self, ours: Site, theirs: Site) -> None:
        """The next request pairs anew; forgetting whom one never met is nothing."""
        kept = chunks(2)
        theirs.offer(kept)
        ours.transport.forget(theirs.peer())
        for _ in range(3):
            assert ours.driver.read([*kept], peer=theirs.peer()) == [*kept.values()]
            ours.transport.forget(theirs.peer())

    def test_connect_before_a_pull(self, ours: Site, theirs: Site) -> None:
        """Pairing ahead saves time and changes nothing; doing it again is harmless."""
        kept = chunks(2)
        theirs.offer(kept)
        for _ in range(3):
            ours.transport.connect(theirs.peer())
        assert ours.driver.read([*kept], peer=theirs.peer()) == [*kept.values()]

    def test_fulfil_of_an_unknown_peer(self, ours: Site, theirs: Site) -> None:
        """Best effort: a peer that is gone needs no telling, and its absence harms nobody else."""
        kept = chunks(1)
        theirs.offer(kept)
        for promise in ("", "p"):
            ours.transport.fulfil(Peer(f"127.0.0.1:{dead_port()}", "nobody", promise))
        assert ours.driver.read([*kept], peer=theirs.peer()) == [*kept.values()]

    # -- ends and errors

    @under.without_meaning(hanging=under.NOT_THERE)
    def test_the_puller_closes(self, ours: Site, theirs: Site, open_site: OpensSite) -> None:
        """A decode that ends in the middle gives the prefill's leases back, and the prefill serves on."""
        self._hang(ours, theirs)
        assert ours.driver.close() < CLOSE_WITHIN_S
        theirs.source.abandon(*chunks(4, "never ready"))
        until(lambda: not theirs.source.lent, self.soon, "leases taken for a peer that is gone come back")
        kept = chunks(2)
        theirs.offer(kept)
        assert open_site("next").driver.read([*kept], peer=theirs.peer()) == [*kept.values()]

    @under.without_meaning(hanging=under.NOT_THERE)
    def test_the_server_closes(self, ours: Site, theirs: Site) -> None:
        """A prefill that ends in the middle fails its pulls; nobody waits for the deadline."""
        batch, peer = self._hang(ours, theirs, 60.0), theirs.peer()
        assert theirs.driver.close() < CLOSE_WITHIN_S
        done = ours.driver.wait(batch, self.soon)
        assert set(done.outcomes) <= {FAILED, LATE}, names(done)
        done = ours.driver.wait(ours.pull([make_key(1)], peer, 10.0), self.soon)
        assert set(done.outcomes) <= {FAILED, LATE}, names(done)

    def test_C18_a_source_that_raises(self, ours: Site, theirs: Site) -> None:
        """A fault of the serving hub is that pull's failure, and not the end of the transport."""
        kept = chunks(1)
        theirs.offer(kept)
        theirs.source.error = RuntimeError("a fault in the hub")
        done = ours.driver.wait(ours.pull([*kept], theirs.peer(), 5.0), 5.0 + self.soon)
        assert set(done.outcomes) <= {FAILED, MISS, LATE}, names(done)
        theirs.source.error = None
        assert ours.driver.read([*kept], peer=theirs.peer()) == [*kept.values()]

    def test_rubbish_on_the_port(self, ours: Site, theirs: Site) -> None:
        """Port scanners and lost clients knock: the hub serves on."""
        host, port = split(theirs.transport.address())
        for size in (0, 1, 100, 100_000):
            # The hub may hang up, which is its right.
            with socket.create_connection((host, port), timeout=2.0) as knock, contextlib.suppress(OSError):
                knock.sendall(random.Random(size).randbytes(size))
        kept = chunks(2)
        theirs.offer(kept)
        assert ours.driver.read([*kept], peer=theirs.peer()) == [*kept.values()]
        assert theirs.transport.healthy() == ""

    @fast
    def test_flood(self, ours: Site, theirs: Site) -> None:
        """More than the wire takes: every submit returns, every batch ends, and afterwards all is well."""
        kept = chunks(4)
        theirs.offer(kept)
        batches = [
            ours.driver.submit(Op.LOAD, [*kept], range(32 + n % 8 * 4, 36 + n % 8 * 4), peer=theirs.peer())
            for n in range(200)
        ]
        for batch in batches:
            done = ours.driver.wait(batch, 30.0)
            assert set(done.outcomes) <= {DONE, Outcome.FULL, LATE}, names(done)
        assert ours.driver.read([*kept], peer=theirs.peer()) == [*kept.values()]
        until(lambda: not theirs.source.lent, self.soon, "all leases are given back")
