"""Do keys and headers come out here as they do everywhere?  Another key means another pool, silently."""

from __future__ import annotations

from kvhub import chunkfile
from kvhub.errors import Damaged
from kvhub.findings import Finding, failed, passed
from kvhub.keys import Chain, Context, Namespace

KEY = "9d52cf6c6f14b52d3cdd5e302f044f770a34ea2dfafa2bc4a6fb228a5161cb72"
"""The second key of tokens 0 to 127 in chunks of 64, by every release with this KEY_VERSION."""
_STEP = "reinstall kvhub and its dependencies from packages that you trust; report this if it stays"


def finding() -> Finding:
    """By known answers; what an engine's blocks mean is proved by its adapter at each start."""
    chain = Chain(Context().root(Namespace("canary", "1", "uint8", "canary")), 64)
    chain.extend(range(128))
    if chain.keys[1].hex() != KEY:
        return failed("layout canary", f"a key came out as {chain.keys[1].hex()[:16]}, not {KEY[:16]}", _STEP)
    payload = bytes(range(256))
    written = chunkfile.pack(chain.keys[1], chain.keys[0], payload)
    try:
        header = chunkfile.parse(written)
        chunkfile.check_payload(header, payload)
    except Damaged as error:
        return failed("layout canary", f"a chunk's header does not read back: {error.reason}", _STEP)
    return passed(
        "layout canary",
        "keys and headers come out as they must; an engine's own blocks are proved at its start, "
        "and `layout.opaque` in its log tells where they could not be",
    )
