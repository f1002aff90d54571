"""Store laws, level "safe": whatever is slow, full or cancelled, the engine does not wait and slots are not lost."""

from __future__ import annotations

import time

import pytest

from kvhub.testing import under
from kvhub.testing.driver import Driver, names
from kvhub.testing.guard import fast
from kvhub.testing.region import make_key
from kvhub.testing.stage import Opens, Stage, most_bytes, until
from kvhub.testing.store_basic import chunks
from kvhub.types import Op, Outcome

DONE, LATE = Outcome.DONE, Outcome.LATE
PROMPT_S = 0.004
"""Best of several calls; the contract says a millisecond, a busy test machine takes its share."""
NEVER_S = 0.5
"""No single call may take this long, however busy the machine."""


def spent(call: object, *arguments: object) -> float:
    before = time.perf_counter()
    call(*arguments)  # type: ignore[operator]
    return time.perf_counter() - before


class TimeLaws(Stage):
    """Promise 2: the engine never waits because of a member."""

    @pytest.fixture
    def store(self, open_member: Opens) -> Driver:
        return open_member()

    def test_one_completion_each(self, store: Driver) -> None:
        """A batch that ends twice frees a slot that is in use; one that never ends keeps it for ever."""
        kept = chunks(4)
        store.start_save(kept)
        for n in range(10):
            store.submit(Op.FIND, [*kept][: n % 4])
            store.submit(Op.LOAD, [*kept], range(32 + n % 4 * 4, 36 + n % 4 * 4))
        store.wait_all()
        store.settle(0.1)

    @fast
    def test_many_batches_at_once(self, store: Driver) -> None:
        """Requests come together; each batch's answer is its own, in whatever order they end."""
        kept = chunks(30, length=2000)
        store.keep(kept)
        keys = [*kept]
        batches = [store.submit(Op.LOAD, [key], [32 + n], [2000]) for n, key in enumerate(keys)]
        for n, batch in reversed([*enumerate(batches)]):
            assert store.wait(batch).outcomes == (DONE,)
            assert store.bytes_of(32 + n, 2000) == kept[keys[n]]

    @fast
    def test_B18_submit_returns_at_once(self, store: Driver) -> None:
        """`submit` is called from the engine's thread, in every step."""
        kept = chunks(32)
        times = []
        for n in range(6):
            times.append(spent(store.start_save, chunks(1, f"warm {n}")))
            times.append(spent(lambda: store.submit(Op.FIND, [*kept])))
            times.append(spent(lambda: store.submit(Op.LOAD, [*kept], range(32, 64))))
            store.wait_all()
        assert min(times) < PROMPT_S and max(times) < NEVER_S, f"submit took {min(times):.4f} to {max(times):.4f} s"

    @fast
    def test_poll_never_blocks(self, store: Driver) -> None:
        """One pump polls all members: whoever blocks in `poll` stops all of them."""
        idle = [spent(store.member.poll) for _ in range(20)]
        assert min(idle) < PROMPT_S and max(idle) < NEVER_S, f"an idle poll took {min(idle):.4f} to {max(idle):.4f} s"
        busy = []
        for n in range(6):
            store.start_save(chunks(16, f"busy {n}"))
            busy.append(spent(store.poll))
            store.wait_all()
        assert min(busy) < PROMPT_S and max(busy) < NEVER_S, f"a busy poll took {min(busy):.4f} to {max(busy):.4f} s"

    @fast
    @pytest.mark.parametrize("op", [Op.FIND, Op.LOAD, Op.SAVE])
    @under.without_meaning(hanging=under.NO_WAKE)
    def test_wake_is_called(self, store: Driver, op: Op) -> None:
        """The pump sleeps until it is woken; without `wake` every load lasts a polling interval longer."""
        kept = chunks(2)
        store.keep(kept)
        store.settle()
        store.woken.clear()
        slots = [] if op is Op.FIND else [40, 41]
        batch = store.submit(op, [*kept], slots, [len(data) for data in kept.values()][: len(slots)])
        give_up = time.monotonic() + self.patience
        while batch not in store.ended:
            assert store.woken.wait(max(0.0, give_up - time.monotonic())), "wake was never called"
            store.woken.clear()
            store.poll()

    @pytest.mark.parametrize("op", [Op.FIND, Op.LOAD, Op.SAVE])
    def test_deadline_in_the_past(self, store: Driver, op: Op) -> None:
        """Nobody waits for this batch: it ends soon, LATE or already done."""
        kept = chunks(4)
        store.keep(kept)
        slots = [] if op is Op.FIND else range(40, 44)
        lengths = [len(data) for data in kept.values()][: len(slots)]
        batch = store.submit(op, [*kept], slots, lengths, deadline=time.monotonic() - 1)
        done = store.wait(batch, self.soon)
        assert all(o in (LATE, DONE, Outcome.KEPT) for o in done.outcomes), names(done)

    def test_late_is_not_lost(self, store: Driver) -> None:
        """A SAVE that ended LATE may be saved again, and then it is there."""
        kept = chunks(4)
        store.wait(store.start_save(kept, deadline=time.monotonic() - 1), self.soon)
        store.keep(kept)
        assert store.read([*kept]) == [*kept.values()]

    def test_deadline_during_work(self, store: Driver) -> None:
        """A deadline that passes under way ends the batch about then, chunk by chunk in truth."""
        kept = chunks(32, length=most_bytes(store))
        batch = store.start_save(kept, deadline=time.monotonic() + 0.002)
        done = store.wait(batch, self.soon)
        for key, data, outcome in zip(kept, store.read([*kept]), done.outcomes, strict=True):
            assert outcome.good or outcome is LATE, names(done)
            assert data in ((kept[key],) if outcome.good else (kept[key], None))

    def test_cancel_ends_the_batch(self, store: Driver) -> None:
        """An aborted request's slots come back soon, and with exactly one completion."""
        kept = chunks(32)
        batches = [store.start_save(kept), store.submit(Op.LOAD, [*kept], range(32, 64))]
        for batch in batches:
            assert spent(store.member.cancel, batch) < NEVER_S
            store.member.cancel(batch)
        for batch in batches:
            done = store.wait(batch, self.soon)
            strange = [o for o in done.outcomes if not o.good and o not in (LATE, Outcome.MISS)]
            assert not strange, names(done)
        store.settle(0.1)
        store.keep(kept)
        assert store.read([*kept]) == [*kept.values()]

    def test_B13_cancel_of_an_unknown_batch(self, store: Driver) -> None:
        """Cancel and completion cross: a batch that has ended already is none of anyone's business."""
        kept = chunks(1)
        store.keep(kept)
        for batch in (0, -1, 1, 2**62):
            store.member.cancel(batch)
        store.settle()
        assert store.read([*kept]) == [*kept.values()]

    def test_B11_no_write_after_the_completion(self, store: Driver) -> None:
        """Once a LOAD has ended, also LATE or cancelled, its slots are another request's."""
        kept = chunks(16, length=most_bytes(store))
        store.keep(kept)
        pattern = b"\x3c" * store.region.slot_bytes
        for n in range(6):
            deadline = time.monotonic() + (0.001 if n % 2 else 60)
            batch = store.submit(Op.LOAD, [*kept], range(40, 56), deadline=deadline)
            store.member.cancel(batch)
            store.wait(batch, self.soon)
            for slot in range(40, 56):
                store.fill(slot, pattern)
            time.sleep(0.03)
            spoilt = [slot for slot in range(40, 56) if store.bytes_of(slot) != pattern]
            assert not spoilt, f"slots {spoilt} were written after the batch had ended"

    @fast
    def test_B18_flood(self, store: Driver) -> None:
        """More than the queue takes: every submit returns, every batch ends, and afterwards all is well."""
        kept = chunks(4)
        store.keep(kept)
        batches, slowest = [], 0.0
        for n in range(400):
            before = time.perf_counter()
            batches.append(store.submit(Op.LOAD, [*kept], range(32 + n % 8 * 4, 36 + n % 8 * 4)))
            slowest = max(slowest, time.perf_counter() - before)
        assert slowest < NEVER_S, f"a submit took {slowest:.3f} s"
        for batch in batches:
            done = store.wait(batch, 30.0)
            assert all(o in (DONE, Outcome.FULL, LATE) for o in done.outcomes), names(done)
        assert store.read([*kept]) == [*kept.values()]

    def test_full_is_an_outcome(self, store: Driver) -> None:
        """What has no room is dropped and said so; a chunk that was refused is not half there."""
        kept = chunks(32, "full", most_bytes(store))
        for _ in range(3):
            done = store.save(kept)
            assert all(o.good or o is Outcome.FULL for o in done.outcomes), names(done)
        for key, data in zip(kept, store.read([*kept]), strict=True):
            assert data in (kept[key], None)

    def test_completions_outlive_a_wait(self, store: Driver) -> None:
        """A pump that comes late still gets every completion."""
        batch = store.submit(Op.FIND, [make_key("late pump")])
        time.sleep(0.1)
        assert store.wait(batch).outcomes == (Outcome.MISS,)

    def test_wait_is_not_forever_after_close(self, open_member: Opens) -> None:
        """Closing with work queued is the normal end of an engine: bounded, and without an exception."""
        store = open_member("short-lived")
        store.start_save(chunks(32, length=most_bytes(store)))
        for _ in range(50):
            store.submit(Op.LOAD, [make_key(n) for n in range(16)], range(32, 48))
        assert store.close() < 5.0
        until(lambda: store.close() < 0.5, 1.0, "a second close returns at once")
