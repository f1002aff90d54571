"""A whole hub retrieves a prompt by a role's route: lookup and loads, with whatever the steps add."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import cast

import attrs

from kvhub.bench import bounds
from kvhub.bench.members import Row
from kvhub.builtin.host import HostStore
from kvhub.config import Config, load
from kvhub.engine import EngineFacts
from kvhub.errors import KvhubError
from kvhub.hub import Hub
from kvhub.keys import Chain, Context, Namespace
from kvhub.plugins import Registry
from kvhub.rehearsal import Hand, clean_up, context_of, layout_of
from kvhub.roles import RoleConfig, Step
from kvhub.store import Store
from kvhub.transport import Transport
from kvhub.types import Held, Key, Op, Peer

PATIENCE = 60.0


def retrieve(config: Config, role: str, namespace: Namespace, chunk_bytes: int, chunks: int, registry: Registry) -> Row:
    """Store a prompt by a role that stores where this one retrieves, and retrieve it by a hub that has nothing yet."""
    what, name = "retrieve", f"route of {role}"
    config = _alone(config, chunks * (chunk_bytes + 8192) * 2)
    reads = {step.member for step in config.roles[role].retrieve if not _is_host(config, step)}
    if not reads:
        return Row(name, what, note="not measured: it retrieves from no store but the host tier")
    writer = next((each for each in config.roles.values() if reads & {step.member for step in each.store}), None)
    if writer is None:
        return Row(name, what, note="not measured: no role of the file stores where it retrieves")
    layout = layout_of(chunk_bytes, namespace.chunk_tokens)
    chain = Chain(Context().root(namespace), namespace.chunk_tokens)
    chain.extend(range(chunks * namespace.chunk_tokens))
    writes = {step.member for step in writer.store if not _is_host(config, step)}
    writes |= {target for step in config.roles[role].retrieve for target in step.promote}
    facts = EngineFacts("kvhub bench", writer.name, namespace, layout, namespace.chunk_tokens)
    try:
        _stored(Hub.open(config, facts, registry=registry), chain.keys, chunk_bytes)
        reader = Hub.open(config, attrs.evolve(facts, role=role), registry=registry)
        row = _retrieved(reader, chain, chunk_bytes, name, what)
        through = {
            member: config.encodings.by_store[member] for member in sorted(reads & set(config.encodings.by_store))
        }
        for member, codecs in through.items():
            row = attrs.evolve(row, note=f"{row.note}; {member} through {', '.join(codecs)}")
    except KvhubError as error:
        row = Row(name, what, note=f"not measured: {error}")
    finally:
        left = [_removed(config, member, namespace, chunk_bytes, chain.keys) for member in sorted(writes)]
    told = [each for each in left if each]
    return attrs.evolve(row, note=f"{row.note}; left behind: {', '.join(told)}") if told else row


def pulled(config: Config, name: str, namespace: Namespace, chunk_bytes: int, chunks: int, registry: Registry) -> Row:
    """A whole decode hub pulls a prompt from a whole prefill hub of this process, over one transport of the file."""
    what, entry = "pull, hub to hub", config.members[name]
    options = cast(type[Transport], entry.cls).rehearsal(entry.options)
    room = chunks * (chunk_bytes + 8192) * 2
    tree = {
        "kvhub": 1,
        "chunk_tokens": namespace.chunk_tokens,
        "stores": {"host": {"use": "host", "capacity": room}},
        "transports": {name: dict(config.plain["transports"][name])},
        "roles": {
            "prefill": {"store": ["host", name], "retrieve": ["host"]},
            "decode": {"store": ["host"], "retrieve": ["host", {"from": name, "deadline": f"{PATIENCE:.0f}s"}]},
        },
        "limits": {"staging": room},
    }
    layout = layout_of(chunk_bytes, namespace.chunk_tokens)
    chain = Chain(Context().root(namespace), namespace.chunk_tokens)
    chain.extend(range(chunks * namespace.chunk_tokens))
    prefill: Hub | None = None
    try:
        plain = load(tree, registry, environ={})
        hubs = []
        for role, given in zip(("prefill", "decode"), options, strict=True):
            facts = EngineFacts("kvhub bench", role, namespace, layout, namespace.chunk_tokens)
            members = dict(plain.members) | {name: attrs.evolve(plain.members[name], options=given)}
            hubs.append((attrs.evolve(plain, members=members), facts))
        prefill = Hub.open(*hubs[0], registry=registry)
        _filled(prefill, chain.keys, chunk_bytes)
        peer = prefill.promise(chain.keys)
        if peer is None:
            return Row(name, what, note="not measured: a hub with this transport promises nothing")
        return _retrieved(Hub.open(*hubs[1], registry=registry), chain, chunk_bytes, name, what, peer)
    except KvhubError as error:
        return Row(name, what, note=f"not measured: {error}")
    finally:
        if prefill is not None:
            prefill.close()


def _alone(config: Config, room: int) -> Config:
    """The same without transports, whose peers are not here, and with an arena of `room` bytes."""
    members = {name: entry for name, entry in config.members.items() if entry.kind == "store"}
    for name, entry in members.items():
        if issubclass(entry.cls, HostStore):
            members[name] = attrs.evolve(entry, options=attrs.evolve(entry.options, capacity=room))
    roles = {name: _without(role, members) for name, role in config.roles.items()}
    limits = attrs.evolve(config.limits, staging=room)
    return attrs.evolve(config, members=members, roles=roles, limits=limits)


def _without(role: RoleConfig, known: Collection[str]) -> RoleConfig:
    def kept(steps: Sequence[Step]) -> tuple[Step, ...]:
        # Conditions hold chunks back until they are seen again; what is measured is how fast they come.
        plain = (attrs.evolve(step, uses=1, prefix_chunks=0, part="", write="through", faster=0.0) for step in steps)
        return tuple(step for step in plain if step.member in known)

    return attrs.evolve(role, store=kept(role.store), retrieve=kept(role.retrieve))


def _is_host(config: Config, step: Step) -> bool:
    return issubclass(config.members[step.member].cls, HostStore)


def _filled(hub: Hub, keys: list[Key], chunk_bytes: int) -> None:
    slots = hub.reserve(keys)
    if -1 in slots:
        raise KvhubError(f"the arena has no room for {len(keys)} chunks; lower --prompt")
    data = bounds.payload(chunk_bytes)
    for slot in slots:
        hub.arena.region.slot(slot, chunk_bytes)[:] = data
    hub.commit([(key, Held(slot, chunk_bytes)) for key, slot in zip(keys, slots, strict=True)])


def _stored(hub: Hub, keys: list[Key], chunk_bytes: int) -> None:
    try:
        _filled(hub, keys, chunk_bytes)
        if not hub.flush(PATIENCE):
            raise KvhubError(f"storing {len(keys)} chunks took more than {PATIENCE:.0f} s")
    finally:
        hub.close()


def _retrieved(hub: Hub, chain: Chain, chunk_bytes: int, name: str, what: str, peer: Peer | None = None) -> Row:
    promised = chain.tokens if peer is not None else 0
    try:
        began = time.perf_counter()
        while (found := hub.lookup("bench", chain, peer=peer, promised=promised)) is None:
            _wait(began)
        looked = time.perf_counter() - began
        if not found.tokens:
            waited = f"the lookup ended after {1000 * looked:.0f} ms (limits.lookup) with nothing found"
            return Row(name, what, note=f"not measured: {waited}")
        fetch = hub.fetch("bench", computed=0, tokens=found.tokens)
        while fetch.over is None:
            _wait(began)
        took = time.perf_counter() - began
        size = fetch.over // chain.chunk_tokens * chunk_bytes
        note = f"{fetch.over} of {chain.tokens} tokens, the lookup took {1000 * looked:.1f} ms of {1000 * took:.0f}"
        return Row(name, what, size / took, took, took, note=note)
    finally:
        hub.release("bench")
        hub.close()


def _wait(began: float) -> None:
    if time.perf_counter() - began > PATIENCE:
        raise KvhubError(f"retrieving took more than {PATIENCE:.0f} s")
    time.sleep(0.0005)


def _removed(config: Config, name: str, namespace: Namespace, chunk_bytes: int, keys: list[Key]) -> str:
    """Remove the prompt from one store; what stays there, or ""."""
    entry = config.members[name]
    if issubclass(entry.cls, HostStore):
        return ""
    context = context_of(name, namespace, chunk_bytes, role="both", writes=True, counts={})
    hand = Hand(entry.cls(entry.options, context), 1, chunk_bytes)
    try:
        hand.attach()
        if hand.member.capabilities.removes:
            hand.run(Op.REMOVE, keys, seconds=PATIENCE)
    except KvhubError:
        return ""  # what does not open was not written to; the row tells why
    finally:
        hand.close()
    return clean_up(cast(type[Store], entry.cls), entry.options, namespace)
