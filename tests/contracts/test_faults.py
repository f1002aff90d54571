"""The wrappers misbehave as they say, and not otherwise."""

import contextlib
import threading
import time

import attrs
import pytest
from reference_store import ReferenceConfig, ReferenceStore

from kvhub.store import Store
from kvhub.testing import Driver, Dropping, Full, Hanging, Raising, Slow, Torn, make_context, make_key, make_payload
from kvhub.testing.faults import Faulty
from kvhub.testing.stage import Traces
from kvhub.transport import Transport
from kvhub.types import Op, Outcome

KEPT = {make_key(n): make_payload(n) for n in range(3)}
KEYS = [*KEPT]


@pytest.fixture
def store():
    return ReferenceStore(ReferenceConfig({}), make_context("inner"))


@pytest.fixture
def drive(store):
    drivers = []

    def drive(wrapper):
        driver = Driver(wrapper, patience=3.0)
        drivers.append(driver)
        driver.attach()
        return driver

    yield drive
    for driver in drivers:
        with contextlib.suppress(OSError):
            driver.close()


def test_a_wrapped_store_passes_for_a_store(store, drive):
    wrapper = Faulty(store)
    driver = drive(wrapper)
    assert isinstance(wrapper, Store) and isinstance(wrapper, Faulty) and not isinstance(wrapper, Transport)
    driver.keep(KEPT)
    assert driver.read(KEYS) == [*KEPT.values()]
    assert {key for key, _ in wrapper.scan()} == set(KEYS) and wrapper.used_bytes() > 0
    assert wrapper.capabilities == store.capabilities and wrapper.healthy() == ""
    assert [batch.op for batch in wrapper.batches] == [Op.SAVE, Op.LOAD]
    with pytest.raises(AttributeError):
        wrapper.address  # noqa: B018


def test_slow_is_late_but_true(store, drive):
    driver = drive(Slow(store, 0.15, ops=[Op.LOAD]))
    driver.keep(KEPT)
    before = time.monotonic()
    assert driver.read(KEYS) == [*KEPT.values()]
    assert 0.15 <= time.monotonic() - before < 1.0
    driver.woken.clear()
    driver.submit(Op.LOAD, KEYS, range(3))
    driver.poll()
    assert driver.woken.wait(2.0), "a slow completion wakes the hub"


def test_slow_leaves_no_thread_behind(store, drive):
    before = Traces()
    driver = drive(Slow(store, 30))
    driver.submit(Op.FIND, KEYS)
    time.sleep(0.05)
    driver.poll()
    driver.close()
    before.gone()
    assert threading.active_count() == len(before.threads)


@pytest.mark.parametrize("how", ["flip", "short"])
def test_torn_says_done(store, drive, how):
    wrapper = Torn(store, how)
    driver = drive(wrapper)
    driver.keep(KEPT)
    done = driver.load(KEYS)
    assert done.outcomes == (Outcome.DONE,) * 3
    found = [driver.bytes_of(driver.half + n, done.lengths[n]) for n in range(3)]
    for wrong, right in zip(found, KEPT.values(), strict=True):
        assert wrong != right
        assert len(wrong) == (len(right) if how == "flip" else len(right) // 2)
    wrapper.broken = False
    assert driver.read(KEYS) == [*KEPT.values()]


def test_torn_knows_two_ways(store):
    with pytest.raises(ValueError, match="'flip' or 'short', found 'tear'"):
        Torn(store, "tear")


def test_dropping_loses_completions(store, drive):
    wrapper = Dropping(store, every=2)
    driver = drive(wrapper)
    first, second = driver.submit(Op.FIND, KEYS), driver.submit(Op.FIND, KEYS)
    driver.wait(first)
    with pytest.raises(AssertionError, match="no completion within"):
        driver.wait(second, 0.2)
    assert [done.id for done in wrapper.dropped] == [second]


def test_full_drops_saves(store, drive):
    wrapper = Full(store)
    driver = drive(wrapper)
    done = driver.save(KEPT)
    assert done.outcomes == (Outcome.FULL,) * 3 and done.reason == "ENOSPC"
    assert driver.find(KEYS) == (Outcome.MISS,) * 3
    wrapper.broken = False
    driver.keep(KEPT)


@pytest.mark.parametrize("error", [OSError(5, "EIO"), ValueError("x"), MemoryError(), SystemExit(1)])
def test_raising_submit_takes_nothing(store, drive, error):
    wrapper = Raising(store, error, ops=[Op.LOAD])
    driver = drive(wrapper)
    driver.keep(KEPT)
    with pytest.raises(type(error)):
        driver.load(KEYS)
    wrapper.broken = False
    assert driver.read(KEYS) == [*KEPT.values()] and wrapper.raised == 1


def test_raising_poll_keeps_completions(store, drive):
    wrapper = Raising(store, OSError("poll"), at=["poll"])
    driver = drive(wrapper)
    batch = driver.submit(Op.FIND, KEYS)
    with pytest.raises(OSError, match="poll"):
        driver.wait(batch)
    wrapper.broken = False
    assert driver.wait(batch).outcomes == (Outcome.MISS,) * 3


@pytest.mark.parametrize("at", ["attach", "cancel", "close"])
def test_raising_elsewhere(store, drive, at):
    wrapper = Raising(store, OSError(at), at=[at])
    calls = {"cancel": lambda: wrapper.cancel(1), "close": wrapper.close, "attach": wrapper.healthy}
    with pytest.raises(OSError, match=at):
        drive(wrapper)
        calls[at]()


def test_hanging_writes_late(store, drive):
    wrapper = Hanging(store, ops=[Op.LOAD])
    driver = drive(wrapper)
    driver.keep(KEPT)
    batch = driver.submit(Op.LOAD, KEYS, range(40, 43), deadline=time.monotonic() + 0.01)
    wrapper.cancel(batch)
    with pytest.raises(AssertionError, match="no completion within"):
        driver.wait(batch, 0.1)
    assert driver.bytes_of(40, 8) == bytes(8)
    wrapper.release()
    assert driver.wait(batch).outcomes == (Outcome.DONE,) * 3
    assert driver.bytes_of(40, len(KEPT[KEYS[0]])) == KEPT[KEYS[0]]


def test_batches_are_plain_data(store, drive):
    wrapper = Faulty(store)
    drive(wrapper).keep(KEPT)
    assert attrs.asdict(wrapper.batches[0])["keys"] == tuple(KEYS)
