"""A store of the file: opened as an engine would open it, and tried with a chunk where the role stores there."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from typing import cast

from kvhub.codec import Codec
from kvhub.doctor import filesystem
from kvhub.doctor.bounded import of_error, of_fault
from kvhub.errors import KvhubError
from kvhub.findings import Finding, failed, passed, warned
from kvhub.rehearsal import Hand, bad, clean_up, context_of, keys_of, namespace_of
from kvhub.settings import MemberConfig
from kvhub.store import Store
from kvhub.types import Op, Outcome

CHUNK = 64 << 10
SECONDS = 10.0


def findings(
    entry: MemberConfig, role: str, writes: bool, chunk_tokens: int, own: Sequence[Codec], codecs: Sequence[Codec]
) -> Iterator[Finding]:
    """How this store is, in the order in which it is looked at."""
    directory = entry.cls.directory(entry.options)
    if directory is not None:
        yield from filesystem.findings(directory)
    namespace = namespace_of(chunk_tokens)
    context = context_of(entry.name, namespace, CHUNK, role=role, writes=writes, counts={}, own=own, codecs=codecs)
    hand = Hand(entry.cls(entry.options, context), 2, CHUNK)
    try:
        opened = False
        try:
            hand.attach()
            opened = True
            only = ", and nothing was written: this role only retrieves there"
            yield passed("start", f"opens{'' if writes else only}")
        except KvhubError as error:
            yield of_error("start", error)
        except Exception as error:
            yield of_fault("start", error)
        yield from hand.member.diagnose()
        if opened:
            yield _tried(hand, keys_of(namespace, 2), writes)
    finally:
        hand.close()
        left = clean_up(cast(type[Store], entry.cls), entry.options, namespace) if writes else ""
        if left:
            yield warned("scratch namespace", f"left behind: {left}", "remove it with `kvhub pool purge --model`")


def _tried(hand: Hand, keys: list[bytes], writes: bool) -> Finding:
    what, key, absent = "round trip", keys[:1], keys[1:]
    step = "look into the plugin's page for what this means; `kvhub verify` runs the store's whole contract"
    if problem := bad(hand.run(Op.FIND, absent, seconds=SECONDS), Outcome.MISS):
        return failed(what, f"a chunk that nobody stored was looked up, and the answer is {problem}", step)
    if not writes:
        return passed(what, "a miss is told as one; nothing was stored, as this role does not store there")
    if not hand.member.capabilities.removes:
        return passed(what, "a miss is told as one; nothing was stored, as this store removes nothing")
    began = time.monotonic()
    payload = os.urandom(CHUNK)
    hand.region.slot(0, CHUNK)[:] = payload
    try:
        if problem := bad(hand.run(Op.SAVE, key, [0], CHUNK, seconds=SECONDS), Outcome.DONE):
            return failed(what, f"saving a chunk ended as {problem}", step)
        if problem := bad(hand.run(Op.LOAD, key, [1], CHUNK, seconds=SECONDS), Outcome.DONE):
            return failed(what, f"loading the chunk that was saved ended as {problem}", step)
        if hand.region.slot(1, CHUNK) != payload:
            return failed(what, "the chunk that was loaded is not the one that was saved", step)
    finally:
        removed = bad(hand.run(Op.REMOVE, key, seconds=SECONDS), Outcome.DONE)
    if removed:
        return failed(what, f"removing the chunk ended as {removed}", step)
    return passed(what, f"a chunk was saved, loaded and removed in {1000 * (time.monotonic() - began):.0f} ms")
