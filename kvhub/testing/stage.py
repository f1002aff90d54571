"""What the contracts stand on: how members are opened for a law and that all of them are closed behind it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar, Protocol

import pytest

from kvhub.layout import Layout
from kvhub.member import Member
from kvhub.testing import under
from kvhub.testing.driver import Driver
from kvhub.testing.guard import Guarded
from kvhub.testing.region import LAYOUT, REGION_NAME, SLOT_BYTES, make_context
from kvhub.types import MemberContext

CLOSE_WITHIN_S = 5.0
MemberFactory = Callable[[MemberContext], Member]


class Opens(Protocol):
    """The fixture `open_member`: a new member of the factory, attached to a region of its own."""

    def __call__(
        self,
        name: str = "member",
        *,
        namespace: str = "tests",
        layout: Layout = LAYOUT,
        attach: bool = True,
        slots: int | None = None,
    ) -> Driver: ...


class Stage(Guarded):
    """Settings and fixtures that both contracts share."""

    slots: ClassVar[int] = 64
    slot_bytes: ClassVar[int] = SLOT_BYTES
    patience: ClassVar[float] = 10.0
    """Seconds after which a batch without a completion counts as lost; raise it for a slow medium."""

    @property
    def soon(self) -> float:
        """What "in bounded time" means where no deadline says so, in seconds."""
        return self.patience / 2

    @pytest.fixture
    def member_factory(self) -> MemberFactory:
        """Override: a callable that makes a new, un-attached member on the same medium at each call."""
        raise NotImplementedError(
            f"{type(self).__name__}: define the fixture member_factory, a callable (context) -> new member"
        )

    @pytest.fixture
    def counts(self) -> dict[str, int]:
        """What members reported through their context in this law."""
        return {}

    @pytest.fixture
    def open_member(self, member_factory: MemberFactory, counts: dict[str, int], kvhub_fault: str) -> Iterator[Opens]:
        opened: list[Driver] = []
        lock = threading.Lock()

        def report(name: str, count: int) -> None:
            with lock:
                counts[name] = counts.get(name, 0) + count

        def open_member(
            name: str = "member",
            *,
            namespace: str = "tests",
            layout: Layout = LAYOUT,
            attach: bool = True,
            slots: int | None = None,
        ) -> Driver:
            context = make_context(name, namespace=namespace, layout=layout, report=report)
            member = member_factory(context)
            assert isinstance(member, Member), f"member_factory returned a {type(member).__name__}, not a Member"
            if kvhub_fault:
                member = under.Retried(under.FAULTS[kvhub_fault].wrap(member))
            driver = Driver(member, slots=slots or self.slots, slot_bytes=self.slot_bytes, patience=self.patience)
            opened.append(driver)
            if attach:
                driver.attach()
            return driver

        yield open_member
        slow = [driver.member.context.name for driver in opened if driver.close() > CLOSE_WITHIN_S]
        assert not slow, f"close took more than {CLOSE_WITHIN_S:g} s: {', '.join(slow)}"


def most_bytes(store: Driver) -> int:
    """The longest payload that fits both a slot and the member."""
    limit = store.member.capabilities.max_chunk_bytes
    return min(store.region.slot_bytes, limit if limit is not None else store.region.slot_bytes)


def until(true: Callable[[], object], seconds: float, what: str) -> None:
    """Wait for a condition; an AssertionError with `what` after `seconds`."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"{what}: not so within {seconds:g} s"
        time.sleep(0.005)


def _target(entry: Path) -> str:
    try:
        return str(entry.readlink())
    except OSError:
        return ""


class Traces:
    """Threads, descriptors and children of this process, to be compared before and after a life."""

    def __init__(self) -> None:
        self.threads = set(threading.enumerate())
        self.descriptors = self._descriptors()

    @staticmethod
    def _descriptors() -> int | None:
        folder = Path("/proc/self/fd")
        if not folder.is_dir():
            return None
        # A test's regions are its own, not the member's.
        return sum(REGION_NAME not in _target(entry) for entry in folder.iterdir())

    def gone(self, seconds: float = 2.0) -> None:
        """Assert that nothing is left that was not there before; gives dying threads a moment."""
        end = time.monotonic() + seconds
        while left := self._left():
            assert time.monotonic() < end, f"a closed member leaves behind: {', '.join(left)}"
            time.sleep(0.01)

    def _left(self) -> list[str]:
        left = [f"thread {t.name}" for t in set(threading.enumerate()) - self.threads if t.is_alive()]
        now = self._descriptors()
        if now is not None and self.descriptors is not None and now > self.descriptors:
            left.append(f"{now - self.descriptors} open descriptors")
        return left
