"""Chunks through one member, as a hub would send them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import cast

import attrs

from kvhub.bench import bounds
from kvhub.builtin.host import HostStore
from kvhub.codec import Codec
from kvhub.errors import KvhubError
from kvhub.keys import Namespace
from kvhub.rehearsal import Hand, Shelf, bad, clean_up, context_of, keys_of
from kvhub.settings import MemberConfig
from kvhub.store import Store
from kvhub.transport import Transport
from kvhub.types import Held, Key, Op, Outcome, Peer

BATCH = 8
"""Chunks of a batch."""
HOST_CHUNKS = 64
IN_FLIGHT = 4
"""Batches under way at once."""
MOST_SAVED, MOST_BYTES = 512, 1 << 30
"""Chunks and bytes that lie in a store until the end, at most."""
MOST_ALONE = 50
FEW = 8
"""Single saves, so that most of what may be saved is left for batches."""


@attrs.frozen
class Row:
    """One thing measured."""

    member: str
    what: str
    """`save`, `load`, `find`, `pull`, `retrieve`."""
    rate: float = 0.0
    """Payload bytes per second; of `find` keys per second."""
    first: float = 0.0
    """Seconds that one chunk alone takes, the middle of several."""
    worst: float = 0.0
    """The longest of them."""
    bound: float = 0.0
    """Bytes per second of what it is held against, in the same run; 0 for none."""
    against: str = ""
    """What that is."""
    note: str = ""
    """Why there are no figures, or what is to be known of them."""

    @property
    def part(self) -> float:
        """Of its bound."""
        return self.rate / self.bound if self.bound else 0.0


@attrs.frozen
class Bench:
    """What one member is measured with."""

    entry: MemberConfig
    namespace: Namespace
    chunk_bytes: int
    seconds: float
    """For all of this member, bounds included."""
    own: tuple[Codec, ...] = ()
    codecs: Sequence[Codec] = ()

    def hand(self, options: object, *, shared: bool = True) -> Hand:
        context = context_of(
            self.entry.name, self.namespace, self.chunk_bytes, role="both", writes=True, counts={},
            own=self.own, codecs=self.codecs,
        )  # fmt: skip
        return Hand(self.entry.cls(options, context), BATCH * IN_FLIGHT, self.chunk_bytes, shared=shared)


def store(bench: Bench) -> list[Row]:
    """Rows `save`, `load` and `find` of a store; what cannot be measured is a row with a note."""
    entry, options = bench.entry, bench.entry.options
    is_host = issubclass(entry.cls, HostStore)
    if is_host:
        # Not the tier's own size, whose memory an engine beside this one may have.
        options = attrs.evolve(options, capacity=2 * HOST_CHUNKS * (bench.chunk_bytes + 8192))
    hand = bench.hand(options)
    saved: list[Key] = []
    try:
        hand.attach()
        if hand.member.capabilities.removes:
            most = HOST_CHUNKS if is_host else min(MOST_SAVED, max(4 * BATCH, MOST_BYTES // bench.chunk_bytes))
            rows = _store(bench, hand, saved, most)
        else:
            rows = [Row(entry.name, "save", note="not measured: it removes nothing, so it could not be cleaned up")]
    except (KvhubError, OSError) as error:
        rows = [Row(entry.name, "save", note=f"not measured: {error}")]
    finally:
        left = _removed(hand, saved)
        hand.close()
        left = clean_up(cast(type[Store], entry.cls), options, bench.namespace) or left
    return [*rows, Row(entry.name, "clean up", note=f"left behind: {left}")] if left else rows


def _removed(hand: Hand, saved: list[Key]) -> str:
    """Remove what was saved; what stays, or ""."""
    problems = [bad(hand.run(Op.REMOVE, saved[at : at + BATCH]), Outcome.DONE) for at in range(0, len(saved), BATCH)]
    return f"chunks, since REMOVE ended as {max(problems)}" if any(problems) else ""


def _store(bench: Bench, hand: Hand, saved: list[Key], most: int) -> list[Row]:
    name, size, share = bench.entry.name, bench.chunk_bytes, bench.seconds / 8
    data = bounds.payload(size)
    for slot in range(hand.region.slots):
        hand.region.slot(slot, size)[:] = data
    directory = bench.entry.cls.directory(bench.entry.options)
    if directory is not None:
        write_bound, read_bound = bounds.files(directory, memoryview(data), 2 * share)
        against = "plain files"
    elif issubclass(bench.entry.cls, HostStore):
        view = hand.region
        write_bound = read_bound = bounds.memory(view.slot(0, size), view.slot(1, size), share)
        against = "memcpy"
    else:
        found = bounds.bucket(lambda: bench.entry.cls.bare(bench.entry.options), memoryview(data), 2 * share)
        write_bound, read_bound = found or (0.0, 0.0)
        against = "plain requests" if found else ""
    keys = keys_of(bench.namespace, most)

    def fresh(count: int) -> list[Key]:
        chosen = keys[len(saved) : len(saved) + count]
        saved.extend(chosen)
        return chosen

    first, worst = _alone(hand, Op.SAVE, size, share, lambda: fresh(1), most=FEW)
    rate = _together(hand, Op.SAVE, size, share, lambda number: fresh(BATCH))
    rows = [Row(name, "save", rate, first, worst, write_bound, against)]
    cycle = saved[: len(saved) - len(saved) % BATCH] or saved

    def again(number: int) -> list[Key]:
        at = number * BATCH % len(cycle)
        return cycle[at : at + BATCH]

    turn = iter(range(1 << 30))
    first, worst = _alone(hand, Op.LOAD, size, share, lambda: [saved[next(turn) % len(saved)]])
    rate = _together(hand, Op.LOAD, size, share, again)
    rows.append(Row(name, "load", rate, first, worst, read_bound, against))
    first, worst = _alone(hand, Op.FIND, 0, share / 2, lambda: [saved[next(turn) % len(saved)]])
    rate = _together(hand, Op.FIND, 1, share / 2, again)
    return [*rows, Row(name, "find", rate, first, worst)]


def transport(bench: Bench, *, shared: bool) -> Row:
    """Pulls from a second member on this machine; `shared` memory can be mapped, other goes as between machines."""
    entry, size, share = bench.entry, bench.chunk_bytes, bench.seconds / 3
    what = "pull, mapped" if shared else "pull, sockets"
    cls = cast(type[Transport], entry.cls)
    serving, pulling = cls.rehearsal(entry.options)
    server, client = bench.hand(serving, shared=shared), bench.hand(pulling, shared=shared)
    try:
        server.attach()
        client.attach()
        source = cast(Transport, server.member)
        count = server.region.slots
        data = bounds.payload(size)
        for slot in range(count):
            server.region.slot(slot, size)[:] = data
        keys = keys_of(bench.namespace, count)
        source.serve(Shelf({key: Held(slot, size) for slot, key in enumerate(keys)}))
        peer = Peer(source.address(), source.context.incarnation)
        if problem := bad(client.run(Op.LOAD, keys[:1], [0], size, peer=peer), Outcome.DONE):
            said = client.member.healthy()
            return Row(entry.name, what, note=f"not measured: the first pull ended as {problem}. {said}".rstrip(". "))
        bound = (
            bounds.memory(server.region.slot(0, size), client.region.slot(0, size), share)
            if shared
            else bounds.loopback(share)
        )
        turn = iter(range(1 << 30))
        first, worst = _alone(client, Op.LOAD, size, share, lambda: [keys[next(turn) % count]], peer)
        rate = _together(client, Op.LOAD, size, share, lambda number: _cycle(keys, number), peer)
        against = "memcpy" if shared else "a bare socket"
        return Row(entry.name, what, rate, first, worst, bound, against, "both ends in this one process")
    except KvhubError as error:
        return Row(entry.name, what, note=f"not measured: {error}")
    finally:
        client.close()
        server.close()


def _cycle(keys: list[Key], number: int) -> list[Key]:
    at = number * BATCH % len(keys)
    return keys[at : at + BATCH]


def _alone(
    hand: Hand,
    op: Op,
    size: int,
    seconds: float,
    keys: Callable[[], list[Key]],
    peer: Peer | None = None,
    most: int = MOST_ALONE,
) -> tuple[float, float]:
    """(middle, longest) seconds of single chunks, one at least.  Raises KvhubError."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while not times or (time.perf_counter() < end and len(times) < most):
        chosen = keys()
        began = time.perf_counter()
        done = hand.run(op, chosen, [0] if size else [], size, peer=peer)
        times.append(time.perf_counter() - began)
        _hold(hand, op, bad(done, Outcome.DONE))
    times.sort()
    return times[len(times) // 2], times[-1]


def _together(
    hand: Hand, op: Op, size: int, seconds: float, keys: Callable[[int], list[Key]], peer: Peer | None = None
) -> float:
    """Units per second, `size` of them to a chunk, with `IN_FLIGHT` batches under way.  Raises KvhubError."""
    under_way: list[tuple[tuple[int, float], int]] = []
    moved, number, began = 0, 0, time.perf_counter()
    while True:
        late = time.perf_counter() - began >= seconds and number > 0
        chosen = [] if late else keys(number)
        if chosen:
            first = BATCH * (number % IN_FLIGHT)
            slots = range(first, first + len(chosen)) if op in (Op.LOAD, Op.SAVE) else ()
            under_way.append((hand.start(op, chosen, slots, size if slots else 0, peer=peer), len(chosen)))
            number += 1
        if not under_way:
            break
        if len(under_way) == IN_FLIGHT or not chosen:
            started, count = under_way.pop(0)
            _hold(hand, op, bad(hand.wait(started), Outcome.DONE))
            moved += count * size
    took = time.perf_counter() - began
    return moved / took if took > 0 else 0.0


def _hold(hand: Hand, op: Op, problem: str) -> None:
    if problem:
        raise KvhubError(f"{hand.member.context.name}: {op.name} ended as {problem}; `kvhub doctor` tells more")
