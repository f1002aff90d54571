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

VERSION = 1
SEAL_BYTES = 16
HEAD = struct.Struct(">IB")
GREETING_LIMIT = 128 * 1024
"""Most bytes of a frame from a peer that has not proved itself."""
FRAME_LIMIT = 32 * 1024 * 1024

_Nonce = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
_Digest = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
_Word = Annotated[str, msgspec.Meta(max_length=256)]
_Text = Annotated[str, msgspec.Meta(max_length=4096)]
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
    """Who one is, both ways.  Its seal proves the secret; nothing of UCX has been said so far."""

    incarnation: _Word
    namespace: _Digest
    namespace_json: Annotated[str, msgspec.Meta(max_length=64 * 1024)]
    layout: _Text


class Join(Message, frozen=True, tag=4):
    """Puller to server: where to send."""

    address: Annotated[bytes, msgspec.Meta(min_length=1, max_length=16 * 1024)]


class Ready(Message, frozen=True, tag=5):
    """Server to puller; a probe on the data lane follows."""

    address: Annotated[bytes, msgspec.Meta(min_length=1, max_length=16 * 1024)]


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


class Offer(Message, frozen=True, tag=8):
    """Server to puller: what will come after `Go`."""

    transfer: _Transfer
    lengths: bytes
    """int64 each; ABSENT or OVERSIZE where nothing will come."""
    generated: bytes
    """uint32 each; empty when all are 0."""
    layouts: Annotated[list[_Text], msgspec.Meta(max_length=1024)]
    which: bytes
    """uint16 each: index into `layouts`; empty when all are 0."""


class Go(Message, frozen=True, tag=9):
    """Puller to server: all receives are posted."""

    transfer: _Transfer


class Stop(Message, frozen=True, tag=10):
    """Puller to server: send no more of it."""

    transfer: _Transfer


class Stopped(Message, frozen=True, tag=11):
    """Server to puller: the first `groups` messages were sent, no other will be."""

    transfer: _Transfer
    groups: int


class Broken(Message, frozen=True, tag=12):
    """Server to puller, before any `Offer`: this pull cannot be served."""

    transfer: _Transfer
    reason: _Word


class Fulfilled(Message, frozen=True, tag=13):
    """Puller to server: nothing more is needed of this promise."""

    promise: Annotated[str, msgspec.Meta(max_length=1024)]


class Ping(Message, frozen=True, tag=14):
    """Puller to server: are you still there?"""


class Pong(Message, frozen=True, tag=15):
    """Server to puller: yes."""


Any = (
    Hello | Challenge | Card | Join | Ready | Refused | Pull | Offer | Go | Stop | Stopped | Broken | Fulfilled
    | Ping | Pong
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
        self._key = hmac.digest(secret, b"kvhub-ucx 1 " + direction + nonces, "sha256")
        self._number = 0

    def next(self, body: bytes | memoryview) -> bytes:
        """The seal of the next frame."""
        state = hashlib.blake2b(self._number.to_bytes(8, "little"), key=self._key, digest_size=SEAL_BYTES)
        state.update(body)
        self._number += 1
        return state.digest()


def encode(message: Message, seal: Seal | None) -> bytes:
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
