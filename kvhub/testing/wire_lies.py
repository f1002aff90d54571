"""Laws of the wire: a peer that was let in says what it must not, and is believed in nothing."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import msgspec
import pytest

from kvhub.testing.stage import until
from kvhub.testing.wire_hub import Hub, OpensHub, Wired
from kvhub.types import Outcome
from kvhub.wire import frames, link

COUNT, LENGTH = 6, 4096
WITHIN = 0.3
DONE, FAILED = Outcome.DONE, Outcome.FAILED
OPTIONS: dict[str, Any] = {"stop_timeout": 0.1, "transfer_timeout": WITHIN}
_TRIES = 5
Twist = Callable[[frames.Message], list[frames.Message]]


@attrs.frozen
class Lie:
    """What a side says instead of `of`."""

    name: str
    of: type
    twist: Callable[[Any], list[frames.Message]]
    paths: tuple[str, ...] = ("message", "put", "mapped")
    harmless: bool = False
    """The pull may succeed all the same."""
    races: bool = False
    """The other side may have come to the end before it hears of it: then it is told again."""


def _with(**changes: Any) -> Callable[[Any], list[frames.Message]]:
    """The message with other fields; a callable is given the old value."""

    def twist(message: Any) -> list[frames.Message]:
        new = {name: change(getattr(message, name)) if callable(change) else change for name, change in changes.items()}
        return [msgspec.structs.replace(message, **new)]

    return twist


def _numbers(kind: str, value: int) -> Callable[[bytes], bytes]:
    """All numbers of a field replaced by one value."""
    return lambda data: array(kind, [value] * (len(data) // array(kind).itemsize)).tobytes()


def _flip(data: bytes) -> bytes:
    return bytes([data[0] ^ 1]) + data[1:] if data else b"\1" * 16


_HELLO, _CARD = frames.Hello(frames.VERSION, bytes(32)), frames.Card("x", bytes(32), "{}", "")
_EITHER = (
    _HELLO,
    frames.Challenge(frames.VERSION, bytes(32), False),
    _CARD,
    frames.Ready("mapped"),
    frames.Join("put"),
    frames.Refused("a", "b"),
    frames.Attach(bytes(32), bytes(32)),
)
_PULLERS = (
    *_EITHER,
    frames.Pull(1, bytes(32), bytes(8), 1.0),
    frames.Go(1),
    frames.Stop(1),
    frames.Ping(),
    frames.Fulfilled("p"),
    frames.Ack(1, 1),
)
_SERVERS = (
    *_EITHER,
    frames.Offer(1, bytes(8), b"", [], b""),
    frames.Stopped(1, 0),
    frames.Broken(1, "x"),
    frames.Pong(),
    frames.Commit(1, 1, bytes(16)),
    frames.Landed(1, bytes(16)),
)
OFFER, COMMIT, PULL = frames.Offer, frames.Commit, frames.Pull

BY_SERVERS = (
    Lie("a commit of a chunk more", COMMIT, _with(count=lambda n: n + 1)),
    Lie("a commit of nothing", COMMIT, _with(count=0)),
    Lie("a commit with another digest", COMMIT, _with(digest=_flip)),
    Lie("a commit with other checks", COMMIT, _with(checks=_flip)),
    Lie("a commit with a check too much", COMMIT, _with(checks=lambda data: data + bytes(16))),
    Lie("a commit with half a check", COMMIT, _with(checks=lambda data: data + bytes(7))),
    Lie("a commit without checks", COMMIT, _with(checks=b""), harmless=True),
    Lie("a commit before its offer", OFFER, lambda m: [COMMIT(m.transfer, COUNT, bytes(16)), m]),
    Lie("a commit with its offer", OFFER, lambda m: [m, COMMIT(m.transfer, COUNT, bytes(16))]),
    Lie("a commit of nothing with its offer", OFFER, lambda m: [m, COMMIT(m.transfer, 0, bytes(16))]),
    Lie("two commits", COMMIT, lambda m: [m, m], harmless=True),
    Lie("no commit", COMMIT, lambda m: []),
    Lie("another's commit", COMMIT, _with(transfer=lambda n: n + 7)),
    Lie("two offers", OFFER, lambda m: [m, m]),
    Lie("an offer and another one", OFFER, lambda m: [m, *_with(lengths=_numbers("q", 1))(m)]),
    Lie("no offer", OFFER, lambda m: []),
    Lie("another's offer", OFFER, _with(transfer=lambda n: n + 7)),
    Lie("lengths beyond the rooms", OFFER, _with(lengths=_numbers("q", LENGTH + 1))),
    Lie("lengths beyond everything", OFFER, _with(lengths=_numbers("q", (1 << 63) - 1))),
    Lie("lengths below everything", OFFER, _with(lengths=_numbers("q", -(1 << 63)))),
    Lie("shorter lengths", OFFER, _with(lengths=_numbers("q", 5))),
    Lie("lengths of nothing", OFFER, _with(lengths=_numbers("q", 0))),
    Lie("too few lengths", OFFER, _with(lengths=lambda data: data[:-8])),
    Lie("no lengths", OFFER, _with(lengths=b"")),
    Lie("lengths that are cut", OFFER, _with(lengths=lambda data: data[:-1])),
    Lie("all of it absent, then all of it", OFFER, lambda m: [*_with(lengths=_numbers("q", -1))(m), m]),
    Lie("too few numbers of tokens", OFFER, _with(generated=bytes(3))),
    Lie("a layout that is not named", OFFER, _with(which=array("H", [5] * COUNT).tobytes())),
    Lie("layouts for fewer", OFFER, _with(layouts=["a", "b"], which=bytes(2))),
    Lie("slots beyond the arena", OFFER, _with(slots=_numbers("Q", 1 << 20)), ("mapped",)),
    Lie("slots beyond everything", OFFER, _with(slots=_numbers("Q", (1 << 64) - 1)), ("mapped",)),
    Lie("too few slots", OFFER, _with(slots=lambda data: data[:-8]), ("mapped",)),
    Lie("no slots", OFFER, _with(slots=b""), ("mapped",)),
    Lie("broken after its offer", OFFER, lambda m: [m, frames.Broken(m.transfer, "x" * 256)]),
    Lie("broken before its offer", OFFER, lambda m: [frames.Broken(m.transfer, "x"), m]),
    Lie("stopped unasked", OFFER, lambda m: [m, frames.Stopped(m.transfer, 0)]),
    Lie("stopped beyond the end", OFFER, lambda m: [m, frames.Stopped(m.transfer, 1 << 40)]),
    Lie("stopped before the start", OFFER, lambda m: [frames.Stopped(m.transfer, -5), m]),
    Lie("landed before the offer", OFFER, lambda m: [frames.Landed(m.transfer, bytes(16)), m]),
    Lie("landed where nothing could", OFFER, lambda m: [m, frames.Landed(m.transfer, bytes(16))]),
    Lie("half a check landed", OFFER, lambda m: [m, frames.Landed(m.transfer, bytes(7))], ("put", "mapped")),
    Lie("more landed than was offered", OFFER, lambda m: [m, frames.Landed(m.transfer, bytes(16 * 500))]),
    *(
        Lie(f"what servers never say: {type(one).__name__}", OFFER, lambda m, one=one: [one, m])  # type: ignore[misc]
        for one in _PULLERS
    ),
)  # fmt: skip
BY_PULLERS = (
    Lie("two pulls of one number", PULL, lambda m: [m, m]),
    Lie("keys that are cut", PULL, _with(keys=lambda data: data[:-1])),
    Lie("keys for fewer", PULL, _with(keys=lambda data: data[:-32])),
    Lie("no keys", PULL, _with(keys=b"")),
    Lie("nothing at all", PULL, _with(keys=b"", rooms=b"", slots=b"")),
    Lie("rooms for fewer", PULL, _with(rooms=lambda data: data[:-8])),
    Lie("no room", PULL, _with(rooms=_numbers("Q", 0))),
    Lie("more room than there is", PULL, _with(rooms=_numbers("Q", (1 << 64) - 1)), harmless=True),
    Lie("slots where none are due", PULL, _with(slots=lambda data: data + bytes(8))),
    Lie("slots for fewer", PULL, _with(slots=lambda data: data[:-8]), ("put",)),
    Lie("slots beyond the region", PULL, _with(slots=_numbers("Q", 1 << 20)), ("put",)),
    Lie("slots beyond everything", PULL, _with(slots=_numbers("Q", (1 << 64) - 1)), ("put",)),
    Lie("less than no time", PULL, _with(within=-1.0)),
    Lie("no time", PULL, _with(within=0.0), harmless=True),
    Lie("a time that is no number", PULL, _with(within=float("nan"))),
    Lie("all the time there is", PULL, _with(within=float("inf")), harmless=True),
    Lie("go before the offer", PULL, lambda m: [m, frames.Go(m.transfer)], harmless=True),
    Lie("go twice", frames.Go, lambda m: [m, m], ("message", "mapped"), harmless=True),
    Lie("no go", frames.Go, lambda m: [], ("message", "mapped")),
    Lie("another's go", frames.Go, _with(transfer=lambda n: n + 7), ("message", "mapped")),
    Lie("go again after the end", frames.Ack, lambda m: [m, frames.Go(m.transfer)], harmless=True),
    Lie("acknowledged before it came", PULL, lambda m: [m, frames.Ack(m.transfer, 1)], races=True),
    Lie("acknowledged before it was said", PULL, lambda m: [frames.Ack(m.transfer, 1), m], harmless=True),
    Lie("acknowledged twice", frames.Ack, lambda m: [m, m], harmless=True),
    Lie("never acknowledged", frames.Ack, lambda m: [], harmless=True),
    Lie("stopped at once", PULL, lambda m: [m, frames.Stop(m.transfer)], harmless=True),
    Lie("stopped before it began", PULL, lambda m: [frames.Stop(m.transfer), m], harmless=True),
    Lie("stopped three times", PULL, lambda m: [m, *[frames.Stop(m.transfer)] * 3], harmless=True),
    Lie("stopped after the end", frames.Ack, lambda m: [m, frames.Stop(m.transfer)], harmless=True),
    Lie("many promises fulfilled", PULL, lambda m: [*[frames.Fulfilled("p" * 1024)] * 100, m], harmless=True),
    *(
        Lie(f"what pullers never say: {type(one).__name__}", PULL, lambda m, one=one: [one, m])  # type: ignore[misc]
        for one in _SERVERS
    ),
)  # fmt: skip


@contextmanager
def lying(hub: Hub, lie: Lie) -> Iterator[list[frames.Message]]:
    """While it lasts, a hub of this process says something else; yields what it would have said."""
    real, meant = link.Link.say, list[frames.Message]()

    def say(self: link.Link, message: frames.Message) -> None:
        if self.wire is hub.wire and isinstance(message, lie.of):
            meant.append(message)
            for one in lie.twist(message):
                real(self, one)
        else:
            real(self, message)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(link.Link, "say", say)
        yield meant


class LieLaws(Wired):
    """Every frame, wrong in every way that a decoder lets through."""

    def _liars(self, open_hub: OpensHub) -> tuple[Hub, Hub]:
        ours = open_hub("ours", slots=4 * COUNT, slot_bytes=LENGTH, **OPTIONS)
        theirs = open_hub("theirs", slots=4 * COUNT, slot_bytes=LENGTH, **OPTIONS)
        theirs.offer(COUNT, LENGTH)
        return ours, theirs

    def _try(self, ours: Hub, theirs: Hub, liar: Hub, lies: tuple[Lie, ...]) -> None:
        """Each lie once: nothing wrong is believed, both sides let go, and the next honest pull succeeds."""
        for lie in lies:
            if self.path not in lie.paths:
                continue
            for _ in range(_TRIES):
                with lying(liar, lie) as meant:
                    done = ours.end(ours.start(theirs.peer(), COUNT, WITHIN), COUNT)
                    until(lambda: not theirs.source.lent, self.patience, f"leases are back after {lie.name}")
                # On a busy machine a pull may be over before its moment comes.
                if meant and not (lie.races and DONE in done.outcomes):
                    break
            assert meant, f"{lie.name}: the moment for it never came"
            assert lie.harmless or DONE not in done.outcomes, f"{lie.name}: {done}"
            # The puller's first reconnect may meet a link that is just being cut.
            for last in (False, True):
                done = ours.pull(theirs.peer(), COUNT)
                if set(done.outcomes) == {DONE}:
                    break
                assert not last, f"after {lie.name}: {done}"
        assert not theirs.source.faults

    def test_a_server_that_lies(self, open_hub: OpensHub) -> None:
        """Offers and commits that cannot be end their pull, and none of its bytes is called good."""
        ours, theirs = self._liars(open_hub)
        self._try(ours, theirs, theirs, BY_SERVERS)

    def test_B13_a_puller_that_lies(self, open_hub: OpensHub) -> None:
        """Requests that cannot be, or end twice, cost the server a link at most; no lease stays out."""
        ours, theirs = self._liars(open_hub)
        self._try(ours, theirs, ours, BY_PULLERS)

    def test_A30_a_payload_that_changed(self, open_hub: OpensHub, monkeypatch: pytest.MonkeyPatch) -> None:
        """One flipped bit is CORRUPT for that chunk, and for no other one."""
        from kvhub.wire import groups

        if self.path == "mapped":
            self.leave_out("the puller reads the very memory that the server vouches for")
        ours, theirs = self._liars(open_hub)
        real, wrong = groups.check, theirs.source.region.slot(2, LENGTH)

        def check(key: bytes, data: memoryview, *more: Any) -> bytes:
            made = real(key, data, *more)
            if data.obj is theirs.driver.region.view.obj and data == wrong:
                # After the server has vouched for it: the wire, or its memory, changes a bit.
                wrong[100] ^= 1
            return made

        monkeypatch.setattr(groups, "check", check)
        done = ours.end(ours.start(theirs.peer(), COUNT), COUNT)
        monkeypatch.setattr(groups, "check", real)
        expected = [DONE] * COUNT
        # Chunks are asked for backwards.
        expected[COUNT - 1 - 2] = Outcome.CORRUPT
        assert done.outcomes == tuple(expected), done
        assert done.reason == "checksum" and ours.counts["pull_errors"] == 1

    def test_A30_chunks_under_each_other_s_name(self, open_hub: OpensHub, monkeypatch: pytest.MonkeyPatch) -> None:
        """Two whole payloads that changed places are both found out."""
        from kvhub.testing.region import make_key
        from kvhub.wire import groups

        options: dict[str, Any] = {"checksum": "always"}
        ours, theirs = (open_hub(n, slots=24, slot_bytes=LENGTH, **options) for n in ("ours", "theirs"))
        theirs.offer(COUNT, LENGTH)
        real, swap = groups.check, {make_key(0): make_key(1), make_key(1): make_key(0)}

        def check(key: bytes, data: memoryview, *more: Any) -> bytes:
            own = data.obj is theirs.driver.region.view.obj
            return real(swap.get(key, key) if own else key, data, *more)

        monkeypatch.setattr(groups, "check", check)
        done = ours.end(ours.start(theirs.peer(), COUNT), COUNT)
        assert [one is DONE for one in done.outcomes] == [True] * (COUNT - 2) + [False] * 2, done
