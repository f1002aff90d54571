"""Looking at single chunks: what a header says, and whether the object is what its name says."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import Any

from kvhub import chunkfile


def header_facts(header: chunkfile.Header) -> dict[str, Any]:
    """What a header says, for people and for JSON."""
    return {
        "key": header.key.hex(),
        "namespace": header.namespace.hex(),
        "payload_bytes": header.payload_bytes,
        "stored_bytes": header.stored_bytes,
        "generated_tokens": header.generated,
        "created": datetime.fromtimestamp(header.created_ns / 1e9, UTC).isoformat(timespec="seconds"),
        "writer": header.writer.rstrip(b"\0").decode("ascii", "backslashreplace"),
        "codec": header.codec,
        "codecs": list(header.codecs),
        "tenant": header.tenant.hex(),
        "layout": header.layout,
    }


def check_head(space: str, name: str, head: bytes | bytearray | memoryview, size: int) -> chunkfile.Header:
    """The header of an object of `size` bytes that lies under `name`.  Raises Damaged or Foreign."""
    try:
        header = chunkfile.parse(memoryview(head)[: min(size, chunkfile.HEADER_BYTES)])
    except UnicodeDecodeError as error:
        raise chunkfile.Damaged("header") from error
    namespace = header.namespace if header.namespace.hex().startswith(space) else b""
    # Stored payloads are verified as they are: no codec is needed, and none is known here.
    chunkfile.check(header, bytes.fromhex(name), namespace, size, sys.maxsize, range(256))
    return header


def check_whole(space: str, name: str, whole: memoryview) -> chunkfile.Header:
    """The same, and the payload."""
    header = check_head(space, name, whole, whole.nbytes)
    chunkfile.check_payload(header, whole[chunkfile.HEADER_BYTES :])
    return header
