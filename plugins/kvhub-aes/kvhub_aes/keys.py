"""Keys: read from the environment, named by what is in them, never shown."""

from __future__ import annotations

import base64
import binascii
import hmac
import os
import re
from hashlib import sha256

import attrs
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from kvhub import KvhubError

KEY_BYTES = 32
ID_BYTES = 8
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def variable(value: str) -> str:
    """The name of a variable.  Raises ValueError."""
    if not isinstance(value, str) or not _VARIABLE.fullmatch(value):
        # Not repeated: somebody may have put the key itself there.
        raise ValueError("expected the name of an environment variable that holds the key, such as KV_KEY")
    return value


@attrs.frozen
class KeySource:
    """Where a key is: `{env: KV_KEY}`."""

    env: str = attrs.field(converter=variable, metadata={"help": "environment variable with 32 bytes, base64 or hex"})


@attrs.frozen
class Secret:
    """A key, ready for use, and its name."""

    id: bytes
    """8 bytes that follow from the key: two keys cannot have one name, and the name tells nothing of the key."""
    key: bytes = attrs.field(repr=False)
    cipher: AESGCM = attrs.field(repr=False, eq=False)

    @classmethod
    def of(cls, key: bytes) -> Secret:
        return cls(hmac.digest(key, b"kvhub aes key id", sha256)[:ID_BYTES], key, AESGCM(key))


def read(source: KeySource, where: str) -> Secret:
    """The key that the environment holds.  Raises KvhubError, which never says what was found there."""
    text = os.environ.get(source.env, "").strip()
    if not text:
        raise KvhubError(
            f"{where}: the environment has no {source.env}, which is to hold the key; "
            "set it to 32 random bytes in base64, as `openssl rand -base64 32` makes them"
        )
    return parse(text, f"{where}: {source.env}")


def parse(text: str, what: str) -> Secret:
    """The key that a text spells.  Raises KvhubError, which names `what` and never the text."""
    key = _decoded(text.strip())
    if key is None:
        raise KvhubError(
            f"{what} holds no key: expected {KEY_BYTES} bytes in base64 (44 characters) or hex (64); "
            "its value is not shown"
        )
    return Secret.of(key)


def _decoded(text: str) -> bytes | None:
    try:
        key = (
            bytes.fromhex(text) if len(text) == 2 * KEY_BYTES else base64.b64decode(text, altchars=b"-_", validate=True)
        )
    except (ValueError, binascii.Error):
        try:
            key = base64.b64decode(text, validate=True)
        except (ValueError, binascii.Error):
            return None
    return key if len(key) == KEY_BYTES else None
