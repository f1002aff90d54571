"""The plain data that crosses between the hub and its members.

Everything here is frozen and made of bytes, ints and strings.  No tensor, no engine object and no file handle
crosses this boundary, so a member can be written without knowing any engine.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from kvhub.codec import Codecs
    from kvhub.layout import Layout

Key = bytes
"""32 bytes: the digest of every token up to the chunk's end, inside a namespace (see `kvhub.keys`)."""

KEY_BYTES = 32
MOST_GROWTH = 4096
"""Bytes by which a codec may make a stored payload longer than what it decodes to."""
MOST_CODECS = 4
"""Codecs that one payload may have passed through."""
SEVERAL = 5
"""The codec's byte in the header of a payload that more than one codec made; another field tells which."""


class Op(enum.IntEnum):
    """What a batch asks of a member."""

    FIND = 1
    """Say which keys are there.  No slots.  DONE or MISS; a hint, the load decides."""
    LOAD = 2
    """Bring each chunk into its slot, verified."""
    SAVE = 3
    """Keep each slot's payload under its key; visible whole or not at all."""
    REMOVE = 4
    """Forget each key; DONE also when it was not there.  Only for members whose capabilities claim it."""


class Outcome(enum.IntEnum):
    """How one chunk of a batch ended."""

    DONE = 0
    """FIND: there.  LOAD: the slot holds verified bytes.  SAVE: visible.  REMOVE: gone."""
    KEPT = 1
    """SAVE: the same chunk was there already and nothing was written."""
    MISS = 2
    """The chunk is not there (or is of another namespace or format, which is the same thing).  SAVE: it is none of
    those that are kept here, as where a codec has no key for its tenant; no fault of the medium."""
    CORRUPT = 3
    """The chunk is there and failed a check; the member removed that very object if it may."""
    FAILED = 4
    """An I/O error or a refusal; says nothing about whether the chunk exists."""
    LATE = 5
    """The deadline passed, or the batch was cancelled."""
    FULL = 6
    """No room: the medium's, the quota's or the queue's.  The chunk was dropped."""

    @property
    def good(self) -> bool:
        return self in (Outcome.DONE, Outcome.KEPT)


@attrs.frozen
class Peer:
    """Another hub, as the engine-specific request parameters name it."""

    address: str
    """`host:port` of the peer's transport; IPv6 literals in brackets."""
    incarnation: str
    """Changes whenever the peer process restarts, so that old pairings are not trusted."""
    promise: str = ""
    """What the peer leased for this request; the transport tells the peer when it may be ended."""
    streaming: bool = attrs.field(default=False, kw_only=True)
    """The peer may still be computing what it promised, or not have begun: a miss may come yet."""


@attrs.frozen
class Batch:
    """One order to one member.  Parallel tuples: `keys[i]` belongs to `slots[i]` and `lengths[i]`."""

    id: int
    op: Op
    keys: tuple[Key, ...]
    slots: tuple[int, ...] = ()
    """Slots of the attached region: LOAD destinations, SAVE sources.  Empty for FIND and REMOVE."""
    lengths: tuple[int, ...] = ()
    """SAVE: payload bytes in each slot.  LOAD: the most bytes that the slot may take."""
    deadline: float = float("inf")
    """`time.monotonic()` after which nobody waits for this batch any more."""
    layouts: tuple[str, ...] | None = None
    """SAVE: layout text of each payload ("" for the hub's own); None means that all are the hub's own."""
    generated: tuple[int, ...] | None = None
    """SAVE: how many tokens of each chunk were generated rather than given; None means none were."""
    peer: Peer | None = None
    """For transports: whose chunks."""
    replace: bool = False
    """SAVE: put this in the place of what is under the key (the latest tail); otherwise what is there is KEPT."""
    tenants: tuple[bytes, ...] | None = None
    """SAVE: tag of the tenant that each chunk is of (`kvhub.keys.Context.tenant`); None means of none."""


@attrs.frozen
class Completion:
    """The end of a batch: exactly one per submitted batch, whatever happened."""

    id: int
    outcomes: tuple[Outcome, ...]
    lengths: tuple[int, ...] = ()
    """LOAD: payload bytes now in each slot (0 where the outcome is not DONE)."""
    layouts: tuple[str, ...] | None = None
    """LOAD: layout text of each payload ("" for the hub's own); None means that all are the hub's own."""
    generated: tuple[int, ...] | None = None
    """LOAD: how many tokens of each chunk were generated, as its writer said; None means none were."""
    moved: int = 0
    """Payload bytes that really crossed to or from the medium."""
    reason: str = ""
    """Short and without keys or secrets: `ENOSPC`, `checksum`, `timeout`.  A metric label: few distinct values."""


@attrs.frozen
class Capabilities:
    """What a member can do.  Conservative by default, fixed once attached, probed rather than guessed."""

    persistent: bool = False
    """Chunks outlive this process."""
    shared: bool = False
    """Other hubs see the chunks that this one saves."""
    removes: bool = False
    """`Op.REMOVE` works.  Without this claim a REMOVE batch is misuse and raises."""
    scans: bool = False
    """`Store.scan` lists what is there."""
    arena: bool = False
    """The member *is* the hub's arena: a chunk in a slot is already stored.  Only the host tier."""
    device_direct: bool = False
    """Transports: regions in device memory can be registered."""
    codecs: bool = False
    """Stores: payloads are encoded and decoded by `MemberContext.codecs`.  Without this claim a file that names a codec
    for the store is refused."""
    max_chunk_bytes: int | None = None
    """The largest payload that the member takes; None means no limit."""


@attrs.frozen
class Region:
    """The arena as a member sees it: equal slots in one stretch of shared memory.

    Slot `i` is `view[i * slot_bytes:(i + 1) * slot_bytes]`, also at `address + i * slot_bytes`.  The region lives
    until the member's `close` has returned.
    """

    view: memoryview
    address: int
    slot_bytes: int
    slots: int
    name: str = ""
    """Name of the shared memory, for members that map it in another process."""
    memory: str = "host"
    """Kind of memory: `host`, or a device's as in `cuda:0`; then `view` is empty and only `device_direct` members can
    be attached to it."""

    def slot(self, index: int, length: int | None = None) -> memoryview:
        """The bytes of one slot, cut to `length` if given.  A view, never a copy."""
        start = index * self.slot_bytes
        return self.view[start : start + (self.slot_bytes if length is None else length)]


@attrs.frozen
class MemberContext:
    """What a member is told when it is built, besides its own configuration."""

    name: str
    """The member's name in the YAML: `pool`."""
    namespace: bytes
    """32-byte digest of everything that makes KV unusable by another (see `kvhub.keys.Namespace`)."""
    namespace_json: str
    """The same, readable; stores keep it beside the data."""
    chunk_bytes: int
    """Payload bytes of a full chunk in the hub's own layout.  A tail may have any length up to `slot_bytes`."""
    layout: Layout
    """What those bytes mean."""
    incarnation: str
    """Identity of this hub's process life: random, new at every start."""
    role: str = "both"
    writes: bool = True
    """Whether this role's routes store here.  Where not, `attach` must probe without writing, and damaged chunks are
    left to those who store them: a role's locations hold for probes and repairs, too."""
    report: Callable[[str, int], None] = attrs.field(default=lambda name, count: None)
    """Add `count` to this member's counter `name`; never blocks, callable from any thread."""
    codecs: Codecs | None = None
    """Stores that claim `codecs`: what every payload passes through, probes and copies by promotion included."""


@attrs.frozen
class Held:
    """A chunk in a slot."""

    slot: int
    length: int
    """Payload bytes."""
    layout: str = ""
    """Layout text; "" for the hub's own."""
    generated: int = 0
    """How many of its tokens were generated rather than given."""
    number: int = -1
    """Which chunk of its prompt it is, from 0; -1 where that is not known."""
    tenant: bytes = b""
    """Tag of the tenant whose it is; empty for none."""


@attrs.frozen
class Found:
    """What a lookup promises: the first `tokens` tokens can be supplied."""

    tokens: int
    chunks: int
    """Full chunks of the leading run, counted from the start of the prompt."""
    tail: int = 0
    """Tokens of the partial chunk after them."""
    sources: tuple[tuple[str, int], ...] = ()
    """(member name, tokens) for tokens beyond what the engine has, in route order; each token counted once."""
    generated: int = 0
    """How many of the promised tokens were written by a decode as generated tokens."""
