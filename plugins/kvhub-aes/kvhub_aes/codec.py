"""`AesCodec`: AES-256-GCM (NIST SP 800-38D) over whole payloads.

    offset  size  field
         0     1  form (1 or 2)
         1     7  zero
         8     8  key id
        16    12  nonce, random for each payload
        28   ...  the encrypted payload, then GCM's tag of 16 bytes

The associated data binds a payload to its chunk: what was encrypted as one chunk is refused as another.

    form 1  "kvhub aes 1", key (32 bytes), namespace (32), payload bytes (u64), generated tokens (u32),
            layout text (UTF-8)
    form 2  "kvhub aes 2", the same up to generated tokens, tenant's tag (16, zero for none), how many codecs made the
            payload before (u8), these (1 byte each), layout text

Form 2 is stored where tenants have keys of their own, and behind other codecs.
"""

from __future__ import annotations

import os
import struct

import attrs

from kvhub.codec import About, Codec, Scratch
from kvhub.errors import Foreign
from kvhub_aes import keys
from kvhub_aes.keys import ID_BYTES, KeySource
from kvhub_aes.tenants import Ring, TenantKeys

FORM, FORM_BOUND = 1, 2
NONCE_BYTES = 12
TAG_BYTES = 16
_HEAD = struct.Struct(f"<B7x{ID_BYTES}s{NONCE_BYTES}s")
_LENGTHS = struct.Struct("<QI")
_BEFORE = struct.Struct("<16sB")
GROWTH = _HEAD.size + TAG_BYTES


@attrs.frozen
class AesConfig:
    """The options of `use: aes`."""

    key: KeySource = attrs.field(metadata={"help": "where the key is that chunks are encrypted with: {env: NAME}"})
    old: tuple[KeySource, ...] = attrs.field(
        default=(), metadata={"help": "where earlier keys are, with which chunks are still read"}
    )
    tenants: TenantKeys | None = attrs.field(
        default=None,
        metadata={"help": "where tenants' keys are: {file: PATH} or {env: NAME}, {derive: true} or both"},
    )


class AesCodec(Codec):
    """Exact, and sealed: a store with it keeps and reads nothing in plain."""

    name, code, seals = "aes", 4, True
    Config = AesConfig
    config: AesConfig

    def __init__(self, config: AesConfig, name: str) -> None:
        super().__init__(config, name)
        common = [keys.read(config.key, f"codecs.{name}.key")]
        common += [keys.read(source, f"codecs.{name}.old[{at}]") for at, source in enumerate(config.old)]
        self._ring = Ring(common, config.tenants, f"codecs.{name}")
        self._memory = Scratch()

    def encode(self, payload: memoryview, about: About) -> memoryview:
        key = self._ring.writing(about.tenant)
        form = FORM_BOUND if self.config.tenants is not None or about.encoded else FORM
        # New memory would cost more than encrypting: its pages are filled with zeros first.
        made = self._memory.take(payload.nbytes)[: payload.nbytes + GROWTH]
        nonce = os.urandom(NONCE_BYTES)
        _HEAD.pack_into(made, 0, form, key.id, nonce)
        key.cipher.encrypt_into(nonce, payload, _bound(form, about), made[_HEAD.size :])
        return made

    def decode(self, stored: memoryview, room: memoryview, about: About) -> int:
        form, key_id, nonce = _HEAD.unpack_from(stored)
        if form not in (FORM, FORM_BOUND):
            raise Foreign("form")
        key = self._ring.reading(key_id, about.tenant)
        if key is None:
            raise Foreign("key-id")
        if stored.nbytes != room.nbytes + GROWTH:
            raise ValueError(f"{stored.nbytes} bytes stored for {room.nbytes}")
        return key.cipher.decrypt_into(nonce, stored[_HEAD.size :], _bound(form, about), room)


def _bound(form: int, about: About) -> bytes:
    """What a payload is bound to; every part has one reading, since only the last has no length before it."""
    lengths = _LENGTHS.pack(about.payload_bytes, about.generated)
    parts = [b"kvhub aes %d" % form, about.key, about.namespace, lengths]
    if form == FORM_BOUND:
        parts += [_BEFORE.pack(about.tenant, len(about.encoded)), bytes(about.encoded)]
    elif about.encoded:
        raise ValueError("a form that is bound to no codec before it")
    return b"".join([*parts, about.layout.encode()])
