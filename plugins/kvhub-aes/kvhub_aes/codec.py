"""`AesCodec`: AES-256-GCM (NIST SP 800-38D) over whole payloads.

    offset  size  field
         0     1  form (1)
         1     7  zero
         8     8  key id
        16    12  nonce, random for each payload
        28   ...  the encrypted payload, then GCM's tag of 16 bytes

The associated data binds a payload to its chunk: what was encrypted as one chunk is refused as another.

    "kvhub aes 1", key (32 bytes), namespace (32), payload bytes (u64), generated tokens (u32), layout text (UTF-8)
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping

import attrs
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from kvhub import KvhubError
from kvhub.codec import About, Codec, Scratch
from kvhub.errors import Foreign
from kvhub_aes import keys
from kvhub_aes.keys import ID_BYTES, KeySource

FORM = 1
NONCE_BYTES = 12
TAG_BYTES = 16
_HEAD = struct.Struct(f"<B7x{ID_BYTES}s{NONCE_BYTES}s")
_LENGTHS = struct.Struct("<QI")
GROWTH = _HEAD.size + TAG_BYTES


@attrs.frozen
class AesConfig:
    """The options of `use: aes`."""

    key: KeySource = attrs.field(metadata={"help": "where the key is that chunks are encrypted with: {env: NAME}"})
    old: tuple[KeySource, ...] = attrs.field(
        default=(), metadata={"help": "where earlier keys are, with which chunks are still read"}
    )


class AesCodec(Codec):
    """Exact, and sealed: a store with it keeps and reads nothing in plain."""

    name, code, seals = "aes", 4, True
    Config = AesConfig
    config: AesConfig

    def __init__(self, config: AesConfig, name: str) -> None:
        super().__init__(config, name)
        secrets = [keys.read(config.key, f"codecs.{name}.key")]
        secrets += [keys.read(source, f"codecs.{name}.old[{at}]") for at, source in enumerate(config.old)]
        self._id = secrets[0].id
        self._memory = Scratch()
        self._ciphers: Mapping[bytes, AESGCM] = {secret.id: AESGCM(secret.key) for secret in secrets}
        if len(self._ciphers) != len(secrets):
            raise KvhubError(f"codecs.{name}: two of its keys are the same; leave one out")

    def encode(self, payload: memoryview, about: About) -> memoryview:
        # New memory would cost more than encrypting: its pages are filled with zeros first.
        made = self._memory.take(payload.nbytes)[: payload.nbytes + GROWTH]
        nonce = os.urandom(NONCE_BYTES)
        _HEAD.pack_into(made, 0, FORM, self._id, nonce)
        self._ciphers[self._id].encrypt_into(nonce, payload, _bound(about), made[_HEAD.size :])
        return made

    def decode(self, stored: memoryview, room: memoryview, about: About) -> int:
        form, key_id, nonce = _HEAD.unpack_from(stored)
        if form != FORM:
            raise Foreign("form")
        cipher = self._ciphers.get(key_id)
        if cipher is None:
            raise Foreign("key-id")
        if stored.nbytes != room.nbytes + GROWTH:
            raise ValueError(f"{stored.nbytes} bytes stored for {room.nbytes}")
        return cipher.decrypt_into(nonce, stored[_HEAD.size :], _bound(about), room)


def _bound(about: About) -> bytes:
    """What a payload is bound to; every part has one reading, since only the last has no fixed length."""
    lengths = _LENGTHS.pack(about.payload_bytes, about.generated)
    return b"".join([b"kvhub aes 1", about.key, about.namespace, lengths, about.layout.encode()])
