"""A transport of the file: opened as an engine would open it, and pulled from by a second one on this machine."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import cast

from kvhub.doctor.bounded import of_error, of_fault
from kvhub.errors import KvhubError
from kvhub.findings import Finding, failed, passed
from kvhub.keys import Namespace
from kvhub.rehearsal import Hand, Shelf, bad, context_of, keys_of, namespace_of
from kvhub.settings import MemberConfig
from kvhub.transport import Transport
from kvhub.types import Held, Op, Outcome, Peer

CHUNK, CHUNKS = 64 << 10, 4
SECONDS = 10.0
_LANE = "lane_"


def findings(entry: MemberConfig, role: str, chunk_tokens: int) -> Iterator[Finding]:
    """How this transport is, in the order in which it is looked at."""
    namespace = namespace_of(chunk_tokens)
    server = _hand(entry, entry.options, role, namespace, {})
    try:
        opened = False
        try:
            server.attach()
            opened = True
            yield passed("start", "opens")
        except KvhubError as error:
            yield of_error("start", error)
        except Exception as error:
            yield of_fault("start", error)
        yield from server.member.diagnose()
        if opened:
            yield _pulled(entry, server, role, namespace)
    finally:
        server.close()


def _hand(entry: MemberConfig, options: object, role: str, namespace: Namespace, counts: dict[str, int]) -> Hand:
    context = context_of(entry.name, namespace, CHUNK, role=role, writes=True, counts=counts)
    # What one can map is no sign of what goes between machines.
    return Hand(entry.cls(options, context), CHUNKS, CHUNK, shared=False)


def _pulled(entry: MemberConfig, server: Hand, role: str, namespace: Namespace) -> Finding:
    """Pull chunks by a second member; which lanes they took."""
    what, step = "transport in use", "look into the transport's page for what this means"
    cls = cast(type[Transport], entry.cls)
    source = cast(Transport, server.member)
    address = source.address()
    if not address:
        return passed(what, "not tried: this member listens to nobody and only pulls")
    keys = keys_of(namespace, CHUNKS)
    payload = os.urandom(CHUNK)
    for slot in range(CHUNKS):
        server.region.slot(slot, CHUNK)[:] = payload
    source.serve(Shelf({key: Held(slot, CHUNK) for slot, key in enumerate(keys)}))
    counts: dict[str, int] = {}
    client = _hand(entry, cls.rehearsal(entry.options)[1], role, namespace, counts)
    try:
        client.attach()
        peer = Peer(address, source.context.incarnation)
        began = time.monotonic()
        done = client.run(Op.LOAD, keys, range(CHUNKS), CHUNK, seconds=SECONDS, peer=peer)
        took = time.monotonic() - began
        if problem := bad(done, Outcome.DONE):
            said = client.member.healthy()
            return failed(what, f"a pull from {address} ended as {problem}{f': {said}' if said else ''}", step)
        if any(client.region.slot(slot, CHUNK) != payload for slot in range(CHUNKS)):
            return failed(what, "the chunks that were pulled are not those that were offered", step)
    except KvhubError as error:
        return of_error(what, error)
    finally:
        client.close()
    lanes = ", ".join(sorted(name.removeprefix(_LANE) for name in counts if name.startswith(_LANE))) or "not told"
    took_by = f"{CHUNKS} chunks came from {address} in {1000 * took:.0f} ms, over {lanes}"
    return passed(what, f"{took_by}; the peer's arena was not mapped, as it cannot be from another machine")
