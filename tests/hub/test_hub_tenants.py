"""Whose a chunk is: from a prompt's salt to the header of every chunk, part and tail that it leaves."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from format import toys

from hub.rig import Rig, chain_of, flushed, forget_all, hit, prompt, store, wait
from kvhub import chunkfile, hookimpl
from kvhub.codec import Codec
from kvhub.errors import Foreign
from kvhub.hub import Hub
from kvhub.keys import Chain, Context
from kvhub.plan import Report
from kvhub.session import Session

ANNA = Context(salt="anna")


def headers(rig: Rig, name: str = "pool") -> list[chunkfile.Header]:
    return [chunkfile.parse(path.read_bytes()) for path in sorted((rig.root / name).rglob("*.kv"))]


def serve(hub: Hub, tokens: list[int], context: Context) -> None:
    """One request from begin to end, as an adapter sees it, with a worker that copies nothing."""
    session = Session(hub)
    blocks = list(range(64))
    session.begin("one", tokens, context)
    wait(lambda: session.lookup("one", 0) is not None)
    session.allocated("one", blocks, 0)
    session.advance("one", len(tokens), blocks)
    session.finish("one", len(tokens), blocks, aborted=False)
    plan = session.plan()
    session.done(Report(tuple(copy.id for copy in plan.gathers)))
    flushed(hub)


def test_a_request_s_chunks_and_tail_carry_its_tenant_s_tag(rig: Rig) -> None:
    hub = rig.open()
    serve(hub, prompt(2.5), ANNA)
    found = headers(rig)
    assert len(found) == 3 and {header.tenant for header in found} == {ANNA.tenant}
    serve(hub, prompt(1.5, 7), Context())
    assert sorted(header.tenant for header in headers(rig)) == [b""] * 2 + [ANNA.tenant] * 3


def test_a_copy_by_promotion_keeps_the_tag(rig: Rig) -> None:
    roles = {"both": {"store": ["host", "cold"], "retrieve": ["host", "pool", {"from": "cold", "promote": ["pool"]}]}}
    stores = {"host": rig.host(), "cold": rig.pool("cold"), "pool": rig.pool()}
    serve(rig.open(roles, stores=stores), prompt(2.5), ANNA)
    other = rig.open(roles, stores=stores)
    chain = Chain(ANNA.root(other.facts.namespace), 16, (), ANNA.tenant)
    chain.extend(prompt(2.5))
    other.lookup("two", chain)
    wait(lambda: other.lookup("two", chain))
    fetch = other.fetch("two", computed=0, tokens=100)
    wait(lambda: fetch.over is not None)
    other.release("two")
    flushed(other)
    assert [header.tenant for header in headers(rig)] == [ANNA.tenant] * 2


class Picky(toys.Turn):
    """Takes chunks of no tenant."""

    def encode(self, payload: memoryview, about: Any) -> bytes | None:
        if about.tenant:
            raise Foreign("no-key")
        return super().encode(payload, about)


@hookimpl
def kvhub_register_codecs() -> tuple[type[Codec], ...]:
    return (Picky,)


def test_a_tenant_that_is_not_kept_here_costs_nobody_the_store(rig: Rig) -> None:
    """However many of its chunks come: no breaker opens, and others are stored."""
    rig.plugins["toy"] = SimpleNamespace(kvhub_register_codecs=kvhub_register_codecs)
    hub = rig.open({"both": {"store": ["host", {"to": "pool", "codec": "toy"}], "retrieve": ["host", "pool"]}})
    for seed in range(6):
        serve(hub, prompt(2, seed), ANNA)
    assert headers(rig) == []
    assert hub.reports.total("codec_declined", member="pool") == 12
    assert hub.reports.total("faults", member="pool") == 0
    store(hub, chain_of(prompt(2, 9)))
    flushed(hub)
    assert len(headers(rig)) == 2
    forget_all(hub)
    assert hit(hub, chain_of(prompt(2, 9))) == 32


def test_a_tag_follows_from_the_salt_alone() -> None:
    assert Context(salt="anna", adapter="x").tenant == ANNA.tenant and len(ANNA.tenant) == 16
    assert ANNA.tenant.hex() == "f27a046a0c6d1d6ec301e55797f799b4"
    assert Context().tenant == b"" != Context(salt="").tenant
    assert Context(salt="\ud800").tenant != Context(salt="?").tenant
