"""What a test of the hub needs: hubs over real directories, prompts, and an adapter's few moves in plain words."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs

from kvhub import hookimpl
from kvhub.engine import EngineFacts
from kvhub.hub import Hub
from kvhub.keys import Chain, Context, Namespace
from kvhub.layout import Layout
from kvhub.member import Member
from kvhub.plugins import Registry
from kvhub.testing.faults import Faulty
from kvhub.testing.region import make_payload
from kvhub.types import Batch, Found, Held, Key, Op
from kvhub_nfs import DirectoryStore

BLOCK = 4
CHUNK = 16
LAYOUT = Layout("attention", 2, BLOCK, 1, 4, 4, "float16", "lcthd", "lcthd")
CHUNK_BYTES = LAYOUT.payload_bytes(CHUNK)
SLOT_BYTES = 4096
NAMESPACE = Namespace("tiny", "r1", "float16", "one group", chunk_tokens=CHUNK)
PATIENCE = 20.0
"""Seconds after which a wait counts as hung; the machine may be busy with other things."""

Wrap = Callable[[Member], Member]


def facts(role: str = "both", namespace: Namespace = NAMESPACE, layout: Layout = LAYOUT) -> EngineFacts:
    return EngineFacts("fake 1.0", role, namespace, layout, BLOCK)


def spy(inner: Member) -> Faulty:
    """A member that only takes notes."""
    made = Faulty(inner)
    made.broken = False
    return made


def prompt(chunks: float, seed: int = 0) -> list[int]:
    """Token ids of so many chunks; prompts of different seeds share no token."""
    return [seed * 100_000 + at for at in range(int(chunks * CHUNK))]


def chain_of(tokens: Sequence[int], context: Context | None = None, namespace: Namespace = NAMESPACE) -> Chain:
    context = context or Context()
    chain = Chain(context.root(namespace), CHUNK, context.items)
    chain.extend(tokens)
    return chain


def wait(predicate: Callable[[], Any], what: str = "") -> Any:
    """The predicate's first true value.  Fails after PATIENCE."""
    end = time.monotonic() + PATIENCE
    while not (found := predicate()):
        assert time.monotonic() < end, f"nothing came of it within {PATIENCE} s: {what}"
        time.sleep(0.0001)
    return found


class Rig:
    """Opens hubs; `wraps` says by member name what stands around the real store."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.wraps: dict[str, Wrap] = {}
        self.transports: list[type] = []
        self.hubs: list[Hub] = []
        self.plugins: dict[str, Any] = {}
        self.checks_baseline = True

    def pool(self, name: str = "pool", **more: Any) -> dict[str, Any]:
        """The configuration of a directory store of its own."""
        root = self.root / name
        root.mkdir(exist_ok=True)
        return {"use": "dir", "root": str(root), **more}

    def registry(self) -> Registry:
        wraps = self.wraps

        class Wrapped(DirectoryStore):
            kind = ""

            def __new__(cls, config: Any, context: Any) -> Any:
                inner = DirectoryStore(config, context)
                wrap = wraps.get(context.name)
                return inner if wrap is None else wrap(inner)

        @hookimpl
        def kvhub_register_stores() -> tuple[type, ...]:
            return (Wrapped,)

        made = Registry()
        made.add("dir", SimpleNamespace(kvhub_register_stores=kvhub_register_stores))
        for name, plugin in self.plugins.items():
            made.add(name, plugin)
        return made

    def open(
        self,
        roles: Mapping[str, Any] | None = None,
        *,
        role: str = "both",
        slots: int = 64,
        stores: Mapping[str, Any] | None = None,
        transports: Mapping[str, Any] | None = None,
        limits: Mapping[str, Any] | None = None,
        codecs: Mapping[str, Any] | None = None,
        namespace: Namespace = NAMESPACE,
    ) -> Hub:
        """A hub; without words a role that stores to and retrieves from host tier and pool."""
        source = {
            "kvhub": 1,
            "chunk_tokens": CHUNK,
            "stores": stores or {"host": self.host(slots), "pool": self.pool()},
            "transports": transports or {},
            "codecs": codecs or {},
            "roles": roles or {"both": {"store": ["host", "pool"], "retrieve": ["host", "pool"]}},
            "limits": {"lookup": "2s", **(limits or {})},
        }
        hub = Hub.open(source, facts(role, namespace), registry=self.registry())
        self.hubs.append(hub)
        return hub

    @staticmethod
    def host(slots: int = 64) -> dict[str, Any]:
        return {"use": "host", "capacity": slots * SLOT_BYTES}

    def member(self, hub: Hub, name: str = "pool") -> Any:
        return hub.members[name]

    def close(self) -> dict[str, int]:
        """Close every hub; what was still open in one of them once its members behaved."""
        left: dict[str, int] = {}
        for hub in self.hubs:
            for member in hub.members.values():
                behave(member)
            if self.checks_baseline:
                try:
                    wait(lambda hub=hub: not any(hub.counts().values()))
                except AssertionError:
                    left |= {name: count for name, count in hub.counts().items() if count}
            hub.close(grace=1.0 if self.checks_baseline else 0.0)
        return left


def behave(member: Member) -> None:
    """Let a wrapped member work from now on."""
    if isinstance(member, Faulty) or hasattr(member, "broken"):
        release = getattr(member, "release", None)
        release() if release else setattr(member, "broken", False)


# -- what an adapter does


def store(hub: Hub, chain: Chain, chunks: int | None = None, *, first: int = 0, generated: int = 0) -> list[Key]:
    """Reserve, fill and commit chunks; the keys that got a slot."""
    keys = chain.keys[first:chunks]
    chunks_in = []
    for key, slot in zip(keys, hub.reserve(keys), strict=True):
        if slot >= 0:
            write(hub, slot, key)
            chunks_in.append((key, Held(slot, CHUNK_BYTES, "", generated)))
    hub.commit(chunks_in)
    return [key for key, _ in chunks_in]


def write(hub: Hub, slot: int, key: Key, length: int = CHUNK_BYTES) -> None:
    hub.arena.region.slot(slot, length)[:] = make_payload(key.hex(), length)


def flushed(hub: Hub) -> Hub:
    """The same hub, once its background stores have ended and given back their slots."""
    assert hub.flush(PATIENCE)
    turned = threading.Event()
    hub.pump.call(turned.set)  # run between two turns of the pump, so after the one that ended the last store
    assert turned.wait(PATIENCE)
    return hub


def look(hub: Hub, request: str, chain: Chain, **more: Any) -> Found:
    """Ask until there is an answer."""
    answer: Found = wait(lambda: hub.lookup(request, chain, **more), "lookup")
    return answer


def load(hub: Hub, request: str, *, computed: int = 0, tokens: int = 1 << 30) -> int:
    """Fetch what was found; how many leading tokens are in slots."""
    fetch = hub.fetch(request, computed=computed, tokens=tokens)
    wait(lambda: fetch.over is not None, "fetch")
    assert fetch.over is not None
    return fetch.over


def holds(hub: Hub, request: str, chain: Chain) -> bool:
    """Whether every slot of a request's fetch has the bytes that were stored under its chunk's key."""
    fetch = hub.fetch(request, computed=0, tokens=0)
    region = hub.arena.region
    return all(
        region.slot(held.slot, held.length) == make_payload(chain.keys[at].hex(), held.length)
        for at, held in fetch.helds.items()
        if at < len(chain.keys)
    )


def hit(hub: Hub, chain: Chain, request: str = "", **more: Any) -> int:
    """Tokens that a request finds, loads and checks; then it ends."""
    request = request or f"hit-{time.monotonic_ns()}"
    found = look(hub, request, chain, **more)
    got = load(hub, request, computed=more.get("computed", 0)) if found.tokens else 0
    if found.tokens:
        assert holds(hub, request, chain), "wrong bytes under a key"
    hub.release(request)
    return got


def forget_all(hub: Hub) -> None:
    """Empty the host tier, as a restart would."""
    ready = hub.arena.keys()
    for key in ready:
        hub.arena.forget(key)


def batches(member: Any, op: Op) -> list[Batch]:
    """What a wrapped member was asked to do."""
    return [batch for batch in member.batches if batch.op is op]


def keys_of(member: Any, op: Op) -> list[Key]:
    return [key for batch in batches(member, op) for key in batch.keys]


def evolve(namespace: Namespace = NAMESPACE, **changes: Any) -> Namespace:
    return attrs.evolve(namespace, **changes)
