"""Keys: read from the environment, named by what is in them, never shown."""

from __future__ import annotations

import base64
import binascii
import hmac
import os
import re
from hashlib import sha256

import attrs

from kvhub import KvhubError

KEY_BYTES = 32
ID_BYTES = 8
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _variable(value: str) -> str:
    if not isinstance(value, str) or not _VARIABLE.fullmatch(value):
        # Not repeated: somebody may have put the key itself there.
        raise ValueError("expected the name of an environment variable that holds the key, such as KV_KEY")
    return value


@attrs.frozen
class KeySource:
    """Where a key is: `{env: KV_KEY}`."""

    env: str = attrs.field(converter=_variable, metadata={"help": "environment variable with 32 bytes, base64 or hex"})


@attrs.frozen
class Secret:
    """A key and its name."""

    id: bytes
    """8 bytes that follow from the key: two keys cannot have one name, and the name tells nothing of the key."""
    key: bytes = attrs.field(repr=False)


def read(source: KeySource, where: str) -> Secret:
    """The key that the environment holds.  Raises KvhubError, which never says what was found there."""
    text = os.environ.get(source.env, "").strip()
    if not text:
        raise KvhubError(
            f"{where}: the environment has no {source.env}, which is to hold the key; "
            "set it to 32 random bytes in base64, as `openssl rand -base64 32` makes them"
        )
    key = _decoded(text)
    if key is None:
        raise KvhubError(
            f"{where}: {source.env} holds no key: expected {KEY_BYTES} bytes in base64 (44 characters) or hex (64); "
            "its value is not shown"
        )
    return Secret(hmac.digest(key, b"kvhub aes key id", sha256)[:ID_BYTES], key)


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
