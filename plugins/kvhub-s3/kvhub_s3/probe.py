"""What a hub tries at start, on the way that chunks take; one sentence where it fails."""

from __future__ import annotations

import json
import os
import secrets

from kvhub.chunkfile import HEADER_BYTES
from kvhub.errors import KvhubError
from kvhub_s3 import failures
from kvhub_s3.client import Client
from kvhub_s3.names import Names


def refusal(member: str, bucket: str, base: str, failure: failures.Failure) -> KvhubError:
    """The sentence for an operator whose bucket failed."""
    return KvhubError(f"{member}: bucket {bucket} at {base} {failure.sentence()}")


def look(client: Client, names: Names) -> None:
    """See that a miss is told from a refusal; writes nothing.  Raises `Failure`."""
    absent = names.scratch(secrets.token_hex(16))
    try:
        # A GET first: its answer has a body that says why, a HEAD's has none.
        client.choose_way(absent)
        client.head(absent)
    except failures.Denied as denied:
        if type(denied) is failures.Denied and "AccessDenied" in str(denied):
            raise failures.NoListing(str(denied)) from None
        raise


def write_read_delete(client: Client, names: Names) -> bool:
    """Store an object, read it back and delete it; whether a PUT that must not overwrite is refused as it should be.

    Raises `Failure`.
    """
    key = names.scratch(secrets.token_hex(16))
    header, payload = os.urandom(HEADER_BYTES), memoryview(os.urandom(HEADER_BYTES))
    try:
        client.put(key, header, payload)
        back, rest = memoryview(bytearray(HEADER_BYTES)), memoryview(bytearray(HEADER_BYTES))
        if client.read(key, back, rest) is None or back != header or rest != payload:
            raise failures.Refused("what was read is not what was written")
        return _refuses_to_overwrite(client, key)
    finally:
        client.delete(key)


def _refuses_to_overwrite(client: Client, key: str) -> bool:
    try:
        return not client.put(key, b"kvhub", create=True)
    except failures.Failure:
        return False


def hold_to_namespace(client: Client, member: str, where: str, key: str, mine: str, *, writes: bool) -> None:
    """Compare with the namespace that is written beside its chunks, or write it.  Raises KvhubError and `Failure`."""
    there = client.small(key)
    if there is None:
        if writes:
            client.put(key, mine.encode())
        return
    try:
        theirs = json.loads(there[0])
    except ValueError:
        theirs = None
    if not isinstance(theirs, dict):
        raise KvhubError(f"{member}: {where}/{key} is no JSON object; delete that one object, then start again")
    own = json.loads(mine)
    if differing := sorted(name for name in {*theirs, *own} if theirs.get(name) != own.get(name)):
        raise KvhubError(
            f"{member}: {where}/{key} tells of another namespace than this hub's: {', '.join(differing)} differ; its "
            "chunks cannot be told from ours, so delete that namespace or set another prefix"
        )
