"""What two hubs say to each other on the control connection, and how each frame looks on it.

    4 bytes  length of what follows, big endian
    1 byte   0 plain, 1 sealed
    n bytes  message: MessagePack array, first item the number of its kind
   16 bytes  seal, if sealed: keyed BLAKE2b over the frame's ordinal number and the message

Arrays of numbers travel as bytes (little endian), not as lists: a pull may name ten thousand chunks.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from typing import Annotated

import msgspec

VERSION = 2
SEAL_BYTES = 16
HEAD = struct.Struct(">IB")
GREETING_LIMIT = 128 * 1024
"""Most bytes of a frame from a peer that has not proved itself."""
FRAME_LIMIT = 32 * 1024 * 1024

_Nonce = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
_Digest = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
_Word = Annotated[str, msgspec.Meta(max_length=256)]
_Text = Annotated[str, msgspec.Meta(max_length=4096)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_Address = Annotated[bytes, msgspec.Meta(max_length=16 * 1024)]
_Transfer = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]


class Message(msgspec.Struct, frozen=True, array_like=True):
    """Later versions may append fields with defaults; an older reader skips them."""


class Hello(Message, frozen=True, tag=1):
    """Puller to server, plain."""

    version: int
    nonce: _Nonce


class Challenge(Message, frozen=True, tag=2):
    """Server to puller, plain.  From here on both sides seal, with keys made of the secret and both nonces."""

    version: int
    nonce: _Nonce
    keyed: bool


class Card(Message, frozen=True, tag=3):
    """Who one is, both ways.  Its seal proves the secret; nothing of a data lane has been said so far."""

    incarnation: _Word
    namespace: _Digest
    namespace_json: Annotated[str, msgspec.Meta(max_length=64 * 1024)]
    layout: _Text
    arena: _Word = ""
    """Server only: name of its shared memory, for a puller on the same machine; "" when it is not to be mapped."""
    arena_id: Annotated[bytes, msgspec.Meta(max_length=64)] = b""
    """What tells that memory from every other one, of this machine and of all others."""
    slots: _Count = 0
    slot_bytes: _Count = 0


class Join(Message, frozen=True, tag=4):
    """Puller to server: how payloads may come (`mapped`: the puller reads them itself), and where to."""

    path: _Word
    address: _Address = b""
    ticket: _Address = b""
    """Puts: what the server needs to write into the puller's region, beside `base`."""
    base: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Puts: address of the puller's region in its own process."""
    slots: _Count = 0
    slot_bytes: _Count = 0
    heartbeat: Annotated[float, msgspec.Meta(ge=0, le=86400)] = 2.0
    """Seconds after which the puller says something even when there is nothing to say."""
    checked: bool = False
    """The puller wants the check of every payload, also where the server would not make it."""


class Ready(Message, frozen=True, tag=5):
    """Server to puller: how payloads will come; a probe on the data lane follows unless they are read by the puller."""

    path: _Word
    address: _Address = b""
    checked: bool = True
    """Whether payloads are checked; where not, zeros stand for their checks."""
    lanes: Annotated[list[_Word], msgspec.Meta(max_length=64)] = []
    """`transport/device` of what carries them, as the side that sends sees it."""
    fenced: bool = True
    """Whether the end of the puller's lane keeps the server from writing, see `Lane.fenced`."""


class Refused(Message, frozen=True, tag=6):
    """No pairing, and why; may be plain, since it leads to nothing but an error message."""

    reason: _Word
    text: _Text


class Pull(Message, frozen=True, tag=7):
    """Puller to server: these chunks, please."""

    transfer: _Transfer
    keys: bytes
    """32 bytes each."""
    rooms: bytes
    """uint64 each: the most bytes that the chunk may have."""
    within: float
    """Seconds from now; clocks are never compared."""
    slots: bytes = b""
    """Puts: uint64 each, where in the puller's region it goes."""


class Offer(Message, frozen=True, tag=8):
    """Server to puller: what there is."""

    transfer: _Transfer
    lengths: bytes
    """int64 each; ABSENT or OVERSIZE where nothing will come."""
    generated: bytes
    """uint32 each; empty when all are 0."""
    layouts: Annotated[list[_Text], msgspec.Meta(max_length=1024)]
    which: bytes
    """uint16 each: index into `layouts`; empty when all are 0."""
    slots: bytes = b""
    """Mapped: uint64 each, where in the server's arena it lies."""


class Go(Message, frozen=True, tag=9):
    """Puller to server.  Messages: all receives are posted.  Mapped: everything was read."""

    transfer: _Transfer


class Stop(Message, frozen=True, tag=10):
    """Puller to server: send no more of it."""

    transfer: _Transfer


class Stopped(Message, frozen=True, tag=11):
    """Server to puller: the first `groups` messages were sent, no other will be; of puts, none is under way."""

    transfer: _Transfer
    groups: int


class Broken(Message, frozen=True, tag=12):
    """Server to puller: this pull cannot be served."""

    transfer: _Transfer
    reason: _Word


class Fulfilled(Message, frozen=True, tag=13):
    """Puller to server: nothing more is needed of this promise."""

    promise: Annotated[str, msgspec.Meta(max_length=1024)]


class Ping(Message, frozen=True, tag=14):
    """Puller to server: are you still there?"""


class Pong(Message, frozen=True, tag=15):
    """Server to puller: yes."""


class Commit(Message, frozen=True, tag=16):
    """Server to puller: everything was sent, and was leased until now.  Nothing counts before it."""

    transfer: _Transfer
    count: _Count
    """Chunks that it speaks for."""
    digest: Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
    """See `groups.seal_of`."""
    checks: bytes = b""
    """16 bytes for each part in order; empty where they came before, with the payloads, or were not asked for."""


class Landed(Message, frozen=True, tag=19):
    """Server to puller, puts only: the next parts are in the puller's memory, and may be checked already."""

    transfer: _Transfer
    checks: bytes
    """16 bytes for each."""


class Ack(Message, frozen=True, tag=17):
    """Puller to server: the commit was heard, its chunks are visible or discarded; the leases may end."""

    transfer: _Transfer
    good: _Count
    """Chunks that proved right."""


class Attach(Message, frozen=True, tag=18):
    """First frame of a second connection: it is the data lane of the link that was told this token."""

    token: _Nonce
    proof: _Digest
    """HMAC-SHA256 of the token under the secret: who saw a token on the network cannot use it."""


Any = (
    Hello | Challenge | Card | Join | Ready | Refused | Pull | Offer | Go | Stop | Stopped | Broken | Fulfilled
    | Ping | Pong | Commit | Landed | Ack | Attach
)  # fmt: skip

ABSENT, OVERSIZE = -1, -2

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Any)


class BadFrame(Exception):
    """Bytes that no peer of ours sends; `reason` is one word."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class Seal:
    """Proves that a frame was made by a holder of the key, and is the next one of its connection."""

    def __init__(self, secret: bytes, direction: bytes, nonces: bytes) -> None:
        self._key = hmac.digest(secret, b"kvhub-wire 2 " + direction + nonces, "sha256")
        self._number = 0

    def next(self, body: bytes | memoryview) -> bytes:
        """The seal of the next frame."""
        state = hashlib.blake2b(self._number.to_bytes(8, "little"), key=self._key, digest_size=SEAL_BYTES)
        state.update(body)
        self._number += 1
        return state.digest()


def lane_proof(secret: bytes, token: bytes) -> bytes:
    """What an `Attach` proves."""
    return hmac.digest(secret or b"-", b"kvhub-wire lane" + token, "sha256")


def encode(message: Message, seal: Seal | None) -> bytes:
    """The frame of a message, its length first; sealed where a seal is given."""
    body = _encoder.encode(message)
    if seal is None:
        return HEAD.pack(len(body) + 1, 0) + body
    return HEAD.pack(len(body) + 1 + SEAL_BYTES, 1) + body + seal.next(body)


def decode(frame: bytes, seal: Seal | None) -> Any:
    """The message of a frame without its length.  Raises BadFrame.

    Where a seal is due, only a refusal may come without one: a peer that has another secret cannot seal it.
    """
    sealed, body = frame[:1] == b"\1", frame[1:]
    if sealed and seal is not None:
        body, found = body[:-SEAL_BYTES], body[-SEAL_BYTES:]
        if not hmac.compare_digest(seal.next(body), found):
            raise BadFrame("secret", "its seal is wrong: the two hubs have different secrets, or it was replayed")
    elif sealed:
        raise BadFrame("secret", "it is sealed, and this hub has no secret")
    try:
        message = _decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadFrame("protocol", f"it is no message of this protocol ({error})") from error
    if seal is not None and not sealed and not isinstance(message, Refused):
        raise BadFrame("secret", "it is not sealed, and this hub has a secret")
    return message
