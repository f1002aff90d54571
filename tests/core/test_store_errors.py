"""`BlockingStore`: whatever an author's method raises is an outcome, and what a caller does wrong raises."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator

import attrs
import pytest

from kvhub.errors import MisuseError
from kvhub.store import BlockingStore
from kvhub.testing.driver import Driver
from kvhub.testing.region import make_context, make_key, make_payload
from kvhub.types import Op, Outcome

DONE, CORRUPT, FAILED, FULL = Outcome.DONE, Outcome.CORRUPT, Outcome.FAILED, Outcome.FULL
KEY, OTHER, DATA = make_key("one"), make_key("two"), make_payload("one")


@attrs.frozen
class NoConfig:
    pass


class Fragile(BlockingStore):
    """A dictionary whose every method raises `raised` while there is one."""

    Config = NoConfig

    def __init__(self, config: NoConfig, context) -> None:
        super().__init__(config, context)
        self.objects: dict[str, bytes] = {}
        self.raised: BaseException | None = None

    def _break(self) -> None:
        if self.raised is not None:
            raise self.raised

    def has(self, name: str) -> bool:
        self._break()
        return name in self.objects

    def read(self, name: str, header: memoryview, payload: memoryview) -> int | None:
        self._break()
        data = self.objects.get(name)
        if data is None:
            return None
        head, rest = data[:4096], data[4096:][: payload.nbytes]
        header[: len(head)] = head
        payload[: len(rest)] = rest
        return len(data)

    def write(self, name: str, header: bytes, payload: memoryview) -> bool:
        self._break()
        self.objects[name] = header + payload
        return True

    def drop(self, name: str) -> None:
        self._break()
        self.objects.pop(name, None)


class Bench(Driver):
    member: Fragile

    def __init__(self, kind: type[Fragile]) -> None:
        self.counts: dict[str, int] = {}
        super().__init__(kind(NoConfig(), make_context("shelf", report=self._report)))
        self.attach()
        self.keep({KEY: DATA})

    def _report(self, name: str, count: int) -> None:
        self.counts[name] = self.counts.get(name, 0) + count


@pytest.fixture
def open_bench() -> Iterator[Callable[..., Bench]]:
    opened: list[Bench] = []

    def open_bench(kind: type[Fragile] = Fragile) -> Bench:
        opened.append(Bench(kind))
        return opened[-1]

    yield open_bench
    for bench in opened:
        bench.close()


@pytest.fixture
def bench(open_bench) -> Bench:
    return open_bench()


class Interrupted(BaseException):
    """Like asyncio.CancelledError: not an Exception."""


RAISED = [
    (OSError(errno.EIO, "x"), FAILED, "EIO"),
    (OSError(errno.ESTALE, "x"), FAILED, "ESTALE"),
    (OSError(errno.EMFILE, "x"), FAILED, "EMFILE"),
    (PermissionError(errno.EACCES, "x"), FAILED, "EACCES"),
    (OSError("a message without a number"), FAILED, "OSError"),
    (TimeoutError(), FAILED, "TimeoutError"),
    (ValueError("x"), FAILED, "ValueError"),
    (MemoryError(), FAILED, "MemoryError"),
    (Interrupted(), FAILED, "Interrupted"),
    (SystemExit(1), FAILED, "SystemExit"),
    (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), FULL, "ENOSPC"),
    (OSError(errno.EDQUOT, "x"), FULL, "EDQUOT"),
]


@pytest.mark.parametrize(("raised", "outcome", "reason"), RAISED, ids=[row[2] for row in RAISED])
def test_C18_whatever_a_method_raises_is_an_outcome(bench: Bench, raised, outcome, reason) -> None:
    keys = [KEY, *(make_key(n) for n in range(9))]
    bench.member.raised = raised
    for op in Op:
        done = bench.run(op, keys, range(10) if op in (Op.LOAD, Op.SAVE) else ())
        assert (done.outcomes, done.reason) == ((outcome,) * 10, reason)
    assert bench.counts == ({} if outcome is FULL else {"io_errors": 40})
    bench.member.raised = None
    assert bench.read([KEY]) == [DATA]
    assert bench.save({OTHER: DATA}).outcomes == (DONE,)


def test_C18_a_failing_removal_stays_corrupt(open_bench) -> None:
    class Sticky(Fragile):
        def drop(self, name: str) -> None:
            raise OSError(errno.EROFS, "x")

    bench = open_bench(Sticky)
    bench.member.objects[KEY.hex()] += b"x"
    assert bench.load([KEY]).outcomes == (CORRUPT,)
    assert bench.counts == {"integrity_errors": 1, "io_errors": 1}


@pytest.mark.parametrize(
    ("op", "keys", "slots", "lengths", "words"),
    [
        (Op.LOAD, [KEY], [0, 1], [1], "LOAD of 1 keys came with 2 slots"),
        (Op.SAVE, [KEY, OTHER], [0, 1], [1], "SAVE of 2 keys came with 1 lengths"),
        (Op.FIND, [KEY, OTHER], [0], [], "FIND of 2 keys came with 1 slots"),
        (Op.LOAD, [KEY[:31]], [0], [1], "a key has 32 bytes"),
        (Op.LOAD, [KEY], [64], [1], "slots run from 0 to 63"),
        (Op.SAVE, [KEY], [-1], [1], "slots run from 0 to 63"),
        (Op.SAVE, [KEY], [0], [32769], "lengths run from 0 to 32768 bytes"),
    ],
)
def test_misuse_raises_where_it_is_made(bench: Bench, op, keys, slots, lengths, words) -> None:
    with pytest.raises(MisuseError, match=f"^shelf: .*{words}"):
        bench.submit(op, keys, slots, lengths)
    bench.settle(0.01)
