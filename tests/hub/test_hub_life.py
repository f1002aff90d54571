"""A hub's life: it starts whole or not at all, tells of what happens, and ends in bounded time with nothing left."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pytest

from hub.conftest import own_threads
from hub.rig import CHUNK, CHUNK_BYTES, Rig, chain_of, facts, flushed, hit, load, look, prompt, store, wait
from kvhub import hookimpl
from kvhub.errors import KvhubError
from kvhub.hub import Hub
from kvhub.observe import Observer
from kvhub.testing.faults import Faulty, Hanging, Raising, Slow
from kvhub.types import Op

# -- start or refuse


def test_a_member_that_cannot_attach_stops_the_start_and_leaves_nothing(rig: Rig) -> None:
    rig.wraps["cold"] = lambda inner: Raising(inner, KvhubError("cold: no such bucket"), at=("attach",))
    before, files = own_threads(), len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    stores = {"host": rig.host(), "pool": rig.pool(), "cold": rig.pool("cold")}
    both = ["host", "pool", "cold"]
    with pytest.raises(KvhubError, match="cold: no such bucket"):
        rig.open({"both": {"store": both, "retrieve": both}}, stores=stores)
    wait(lambda: own_threads() == before, "threads of the members that had attached")
    assert len(os.listdir("/proc/self/fd")) <= files  # noqa: PTH208


def test_C18_a_start_that_fails_says_why_even_if_closing_fails_too(rig: Rig) -> None:
    def wrap(inner: Any) -> Any:
        return Raising(inner, KvhubError("pool: down"), at=("attach", "close"))

    rig.wraps["pool"] = wrap
    with pytest.raises(KvhubError, match="pool: down"):
        rig.open()


def test_E20_chunks_that_are_no_multiple_of_a_block_are_refused(rig: Rig) -> None:
    other, route = attrs.evolve(facts(), block_tokens=12), {"both": {"store": ["host"], "retrieve": ["host"]}}
    with pytest.raises(KvhubError, match="chunk_tokens of 16 is no multiple of the engine's block of 12 tokens"):
        Hub.open({"kvhub": 1, "chunk_tokens": CHUNK, "stores": {"host": rig.host()}, "roles": route}, other)


class Small(Faulty):
    """A store for small objects."""

    @property
    def capabilities(self) -> Any:
        return attrs.evolve(self.inner.capabilities, max_chunk_bytes=CHUNK_BYTES - 1)


def test_A23_a_store_that_cannot_take_this_model_s_chunks_is_refused_by_name(rig: Rig) -> None:
    """A chunk is one payload with every layer and all that belongs to it, so there is no buffer to leave out."""
    rig.wraps["pool"] = Small
    with pytest.raises(KvhubError, match=f"pool: takes chunks of at most {CHUNK_BYTES - 1} bytes.*{CHUNK_BYTES}"):
        rig.open()


def test_C07_a_host_tier_larger_than_memory_is_refused(rig: Rig) -> None:
    with pytest.raises(KvhubError, match=r"host: capacity of .* bytes is more than the"):
        rig.open(stores={"host": {"use": "host", "capacity": "4000TiB"}, "pool": rig.pool()})


# -- hooks and observers


class Notes(Observer):
    def __init__(self) -> None:
        self.events: list[str] = []

    def on_event(self, event: str, fields: Any) -> None:
        self.events.append(event)


def watching(notes: Notes, told: list[Any], *, bad: bool) -> SimpleNamespace:
    def tell(what: str) -> None:
        told.append(what)
        if bad:
            raise ValueError("mine")

    @hookimpl
    def kvhub_register_observers(config: Any) -> list[Observer]:
        return [notes]

    @hookimpl
    def kvhub_hub_opened(hub: Any) -> None:
        tell("opened")

    @hookimpl
    def kvhub_member_changed(hub: Any, name: str, state: str, reason: str) -> None:
        tell(f"{name} {state}")

    @hookimpl
    def kvhub_hub_closing(hub: Any) -> None:
        assert not hub.members["pool"].closed
        tell("closing")

    return SimpleNamespace(
        kvhub_register_observers=kvhub_register_observers, kvhub_hub_opened=kvhub_hub_opened,
        kvhub_member_changed=kvhub_member_changed, kvhub_hub_closing=kvhub_hub_closing,
    )  # fmt: skip


@pytest.mark.parametrize("bad", [False, True], ids=["well", "raising"])
def test_F07_life_events_are_told_and_a_raising_plugin_changes_nothing(rig: Rig, bad: bool) -> None:
    notes, told = Notes(), []  # type: tuple[Notes, list[str]]
    rig.plugins["watch"] = watching(notes, told, bad=bad)
    rig.wraps["pool"] = lambda inner: Raising(inner, OSError("down"))
    hub = rig.open()
    for seed in range(4):
        assert hit(hub, chain_of(prompt(1, seed))) == 0
    wait(lambda: len(told) == 2)
    hub.members["pool"].broken = False  # type: ignore[attr-defined]
    hub.jobs.breaker("pool", Op.LOAD)._until = 0.0
    hub.wake()
    wait(lambda: len(told) == 3)
    hub.close()
    assert told == ["opened", "pool down", "pool up", "closing"]
    for event in ("hub.opened", "member.down", "member.up"):
        assert event in notes.events
    assert ("plugin.failed" in notes.events) == bad


# -- the end


CLOSING: dict[str, Any] = {
    "hanging": Hanging,
    "slow": lambda inner: Slow(inner, 30.0),
    "raising": lambda inner: Raising(inner, SystemExit(1), at=("close",)),
}


@pytest.mark.parametrize("wrap", CLOSING.values(), ids=CLOSING)
def test_F08_close_ends_in_bounded_time_whatever_members_do(rig: Rig, wrap: Any) -> None:
    rig.wraps["pool"] = wrap
    hub = rig.open()
    store(hub, chain_of(prompt(2)))
    hub.lookup("a", chain_of(prompt(2, seed=1)))
    start = time.monotonic()
    hub.close(grace=0.2)
    hub.close(grace=0.2)
    assert time.monotonic() - start < 5.0
    assert not hub.pump.is_alive()
    rig.hubs.remove(hub)


def test_F08_close_finishes_what_it_has_taken(rig: Rig) -> None:
    rig.wraps["pool"] = lambda inner: Slow(inner, 0.05, ops=(Op.SAVE,))
    hub = rig.open()
    chain = chain_of(prompt(20))
    for at in range(20):
        store(hub, chain, at + 1, first=at)
    hub.close(grace=10.0)
    rig.hubs.remove(hub)
    rig.wraps.clear()
    assert hit(rig.open(), chain) == 20 * CHUNK


def test_a_request_that_was_under_way_does_not_outlive_the_hub(rig: Rig) -> None:
    hub = rig.open()
    chain = chain_of(prompt(2))
    store(hub, chain)
    flushed(hub)
    look(hub, "a", chain)
    load(hub, "a")
    hub.close()
    assert hub._searches == {}
    rig.hubs.remove(hub)


def test_B19_a_hub_that_is_killed_leaves_nothing_that_the_next_one_trips_over(rig: Rig) -> None:
    """SIGKILL in the middle of its stores: no shared memory, no chunk that is not whole, no name for ever."""
    script = f"""
import sys
sys.path[:0] = {sys.path!r}
from pathlib import Path
from hub.rig import *
rig = Rig(Path({str(rig.root)!r}))
hub = rig.open(slots=512)
for seed in range(400):
    store(hub, chain_of(prompt(1, seed)))
    if seed == 20:
        print("going", flush=True)
import time
time.sleep(60)
"""

    def named() -> set[str]:
        return {path.name for path in Path("/dev/shm").iterdir()}

    def mapped(names: set[str]) -> set[str]:
        """Those that some live process uses: of other programs, which come and go beside this test."""
        used = ""
        for process in Path("/proc").glob("[0-9]*/maps"):
            with contextlib.suppress(OSError):
                used += process.read_text()
        return {name for name in names if f"/dev/shm/{name}" in used}

    before = named()
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        came = any("going" in line for line in process.stdout)
        assert came, process.stderr.read()
        process.send_signal(signal.SIGKILL)
        process.wait()
    # One look is not enough: another program may have made a name that it has not mapped yet, or taken it away since.
    wait(lambda: not (left := named() - before) - mapped(left), "shared memory of the killed hub is still there")
    hub = rig.open()
    hits = [hit(hub, chain_of(prompt(1, seed))) for seed in range(0, 400, 8)]
    assert set(hits) <= {0, CHUNK}
    assert hub.reports.total("integrity_errors") == 0
    home = next(path for path in (rig.root / "pool").iterdir())
    owners = list((home / ".tmp").iterdir())
    assert len(owners) == 1, "what the dead hub had begun is swept, and ours is there"


def test_everything_is_at_its_baseline_after_a_day_in_brief(rig: Rig) -> None:
    files = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    threads = own_threads()
    for _ in range(3):
        hub = rig.open()
        chain = chain_of(prompt(3))
        store(hub, chain)
        hit(hub, chain)
        hub.close()
        rig.hubs.clear()
    # What an earlier test left behind may end meanwhile, and a joined thread may be listed a moment longer.
    wait(lambda: own_threads() <= threads, "a thread is left")
    assert len(os.listdir("/proc/self/fd")) <= files  # noqa: PTH208
