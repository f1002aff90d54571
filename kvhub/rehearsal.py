"""Members at work without an engine: what `kvhub doctor` and `kvhub bench` try them with.

All of it is in a scratch namespace of its own, whose name is random: no chunk of any engine can be met or touched.
"""

from __future__ import annotations

import itertools
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kvhub import claims
from kvhub.arena import Arena, slot_bytes_for
from kvhub.builtin.host import HostStore
from kvhub.codec import Codec, Codecs
from kvhub.errors import KvhubError
from kvhub.keys import Chain, Context, Namespace
from kvhub.layout import Layout
from kvhub.member import Member
from kvhub.store import Store
from kvhub.types import Batch, Completion, Held, Key, MemberContext, Op, Outcome, Peer, Region

MODEL = "kvhub scratch"
"""The model of every scratch namespace, by which `kvhub pool purge --model` finds what a killed run left."""
GRACE = 5.0
"""Seconds beyond a batch's deadline after which a member is given up."""


def namespace_of(chunk_tokens: int) -> Namespace:
    """A namespace that nobody else has."""
    return Namespace(MODEL, secrets.token_hex(16), "uint8", "scratch", chunk_tokens=chunk_tokens)


def layout_of(chunk_bytes: int, chunk_tokens: int) -> Layout:
    """Opaque bytes of that size to a chunk."""
    return Layout("opaque", 1, chunk_tokens, opaque_bytes=chunk_bytes, tag=MODEL)


def keys_of(namespace: Namespace, count: int, first: int = 0) -> list[Key]:
    """Keys by the one function that makes all keys, of a prompt of so many chunks."""
    chain = Chain(Context().root(namespace), namespace.chunk_tokens)
    chain.extend(range(first, first + count * namespace.chunk_tokens))
    return chain.keys


def context_of(
    name: str,
    namespace: Namespace,
    chunk_bytes: int,
    *,
    role: str,
    writes: bool,
    counts: dict[str, int],
    own: Sequence[Codec] = (),
    codecs: Sequence[Codec] = (),
) -> MemberContext:
    """What a hub would tell a member; its counters go to `counts`."""

    def report(counter: str, amount: int) -> None:
        counts[counter] = counts.get(counter, 0) + amount

    layout = layout_of(chunk_bytes, namespace.chunk_tokens)
    incarnation = secrets.token_hex(16)
    given = Codecs(own, codecs)
    return MemberContext(
        name, namespace.digest, namespace.json, chunk_bytes, layout, incarnation, role, writes, report, given
    )


class Hand:
    """One member and the memory that it works on."""

    def __init__(self, member: Member, slots: int, chunk_bytes: int, *, shared: bool = True) -> None:
        """With `shared=False` other members cannot map the memory, as if they were on another machine."""
        self.member = member
        slot_bytes = slot_bytes_for(chunk_bytes)
        self._arena = Arena(slots * slot_bytes, slot_bytes, name=member.context.name, huge_pages=False)
        region = self._arena.region
        self.region = region if shared else Region(region.view, region.address, region.slot_bytes, region.slots)
        self._woken = threading.Event()
        self._numbers = itertools.count(1)
        self._ended: dict[int, Completion] = {}

    def attach(self) -> None:
        """Raises KvhubError, as the start of a hub would."""
        self.member.attach(self.region, self._woken.set)
        claims.check(self.member.context.name, self.member, HostStore)

    def start(
        self,
        op: Op,
        keys: Sequence[Key],
        slots: Sequence[int] = (),
        length: int = 0,
        *,
        seconds: float = 30.0,
        peer: Peer | None = None,
    ) -> tuple[int, float]:
        """Submit; what `wait` takes."""
        until = time.monotonic() + seconds
        batch = Batch(next(self._numbers), op, tuple(keys), tuple(slots), (length,) * len(slots), until, peer=peer)
        self.member.submit(batch)
        return batch.id, until

    def wait(self, started: tuple[int, float]) -> Completion:
        """The completion of what `start` began.  Raises KvhubError for a member that does not end it."""
        number, until = started
        while number not in self._ended:
            self._woken.clear()
            for completion in self.member.poll():
                self._ended[completion.id] = completion
            if number not in self._ended:
                if time.monotonic() > until + GRACE:
                    raise KvhubError(
                        f"{self.member.context.name}: an order had not ended {GRACE:.0f} s after its deadline; "
                        "this is a fault of the plugin, tell its authors"
                    )
                self._woken.wait(0.02)
        return self._ended.pop(number)

    def run(self, op: Op, keys: Sequence[Key], slots: Sequence[int] = (), length: int = 0, **more: Any) -> Completion:
        """Submit and wait."""
        return self.wait(self.start(op, keys, slots, length, **more))

    def close(self) -> None:
        """Close the member, then the memory."""
        self.member.close()
        self._arena.close()


class Shelf:
    """A `kvhub.transport.Source` of slots that are all ready."""

    def __init__(self, held: Mapping[Key, Held]) -> None:
        self._held = held
        self._tickets = itertools.count(1)

    def take(self, keys: Sequence[Key], deadline: float, ready: Callable[[int, list[Held | None]], None]) -> int:
        ticket = next(self._tickets)
        ready(ticket, [self._held.get(key) for key in keys])
        return ticket

    def give_back(self, ticket: int) -> None:
        """Nothing is lent: nobody else wants the slots."""

    def fulfilled(self, promise: str) -> None:
        """Nothing was promised."""


def clean_up(cls: type[Store], options: Any, namespace: Namespace) -> str:
    """Take away what is left of a scratch namespace, after its member was closed; what stays, or ""."""
    space = namespace.digest.hex()[:32]
    try:
        medium = cls.medium(options)
    except KvhubError:
        return ""
    try:
        with medium:
            if medium.forget(space) or all(each.id != space for each in medium.spaces()):
                return ""
            return f"namespace {space} of model '{MODEL}' in {medium.describe()}"
    except OSError as error:
        return f"namespace {space} of model '{MODEL}' in {medium.describe()}: {error}"


def bad(completion: Completion, *good: Outcome) -> str:
    """The first outcome of a batch that is not as wanted, with its reason; or ""."""
    for outcome in completion.outcomes:
        if outcome not in good:
            return outcome.name + (f" ({completion.reason})" if completion.reason else "")
    return ""
