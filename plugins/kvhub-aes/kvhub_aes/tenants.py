"""`Ring`: which key a chunk is encrypted with, and which ones it may have been encrypted with.

Tenants are known by the tags that chunks carry (`kvhub.keys.Context.tenant`), never by their salts.  A list of tenants'
keys is a JSON object: tag (32 hex digits) to a key, or to a list of keys of which the first encrypts and all decrypt.
An empty list refuses the tenant.
"""

from __future__ import annotations

import json
import logging
import os
import re
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from kvhub import KvhubError
from kvhub.errors import Foreign
from kvhub_aes import keys
from kvhub_aes.keys import KEY_BYTES, Secret

LOOK_SECONDS = 5.0
"""How often at most a file of keys is looked at for changes."""
MOST_FILE = 16 << 20
"""Bytes of a list of keys: 150,000 tenants."""
MOST_DERIVED = 4096
"""Derived keys that are kept; one costs some 20 microseconds."""
_TAG = re.compile(r"[0-9a-f]{32}")
_log = logging.getLogger("kvhub_aes")

Listed = Mapping[bytes, tuple[Secret, ...]]


@attrs.frozen
class TenantKeys:
    """Where tenants' keys are: listed in a file or a variable, derived from the common key, or both."""

    file: Path | None = attrs.field(
        default=None, metadata={"help": "a JSON file with keys by tenant's tag; changes are taken up while running"}
    )
    env: str | None = attrs.field(
        default=None,
        converter=attrs.converters.optional(keys.variable),
        metadata={"help": "a variable with the same JSON"},
    )
    derive: bool = attrs.field(
        default=False,
        metadata={"help": "tenants that are not listed have a key derived from the common one (HKDF-SHA-256)"},
    )

    def __attrs_post_init__(self) -> None:
        if self.file is not None and self.env is not None:
            raise ValueError("expected one list of keys: file or env, not both")
        if self.file is None and self.env is None and not self.derive:
            raise ValueError("says nothing of where tenants' keys are; give file, env, or derive: true")


class Ring:
    """Thread-safe; `writing` and `reading` may look at a file, so they are for worker threads."""

    def __init__(self, common: Sequence[Secret], tenants: TenantKeys | None, where: str) -> None:
        """`common` has the key for chunks of no tenant, then earlier ones.  Raises KvhubError."""
        if len({secret.id for secret in common}) != len(common):
            raise KvhubError(f"{where}: two of its keys are the same; leave one out")
        self._common = tuple(common)
        self._tenants = tenants
        self._where = f"{where}.tenants"
        self._derived: dict[tuple[bytes, bytes], Secret] = {}
        self._looking = threading.Lock()
        self._look_at = float("inf")
        self._seen: tuple[int, int, int] | None = None
        self._listed: Listed = {}
        if tenants is not None and tenants.env is not None:
            self._listed = _parsed(os.environ.get(tenants.env, ""), f"{self._where}.env: {tenants.env}")
        elif tenants is not None and tenants.file is not None:
            self._read(tenants.file)

    def writing(self, tenant: bytes) -> Secret:
        """The key for a new chunk.  Raises Foreign for a tenant that has none."""
        if self._tenants is None or not tenant:
            return self._common[0]
        for key in self._own(tenant):
            return key
        raise Foreign("no-key")

    def reading(self, key_id: bytes, tenant: bytes) -> Secret | None:
        """The key of this name, if it is common or the tenant's."""
        own = self._own(tenant) if self._tenants is not None and tenant else ()
        return next((key for key in (*self._common, *own) if key.id == key_id), None)

    def _own(self, tenant: bytes) -> Sequence[Secret]:
        """A tenant's keys; those that are listed stand in the place of derived ones."""
        self._refresh()
        listed = self._listed.get(tenant)
        if listed is not None:
            return listed
        derives = self._tenants is not None and self._tenants.derive
        return [self._derive(secret, tenant) for secret in self._common] if derives else ()

    def _derive(self, secret: Secret, tenant: bytes) -> Secret:
        found = self._derived.get((secret.id, tenant))
        if found is None:
            if len(self._derived) >= MOST_DERIVED:
                self._derived.clear()
            kdf = HKDF(SHA256(), KEY_BYTES, salt=b"kvhub aes tenant 1", info=tenant)
            found = self._derived[secret.id, tenant] = Secret.of(kdf.derive(secret.key))
        return found

    def _refresh(self) -> None:
        """Take up a file that changed.  One that cannot be read leaves the keys as they were, and is told."""
        if time.monotonic() < self._look_at or not self._looking.acquire(blocking=False):
            return
        try:
            assert self._tenants is not None and self._tenants.file is not None
            self._read(self._tenants.file)
        except KvhubError as error:
            _log.warning("%s; the keys that were known stay in use", error)
        finally:
            self._looking.release()

    def _read(self, file: Path) -> None:
        self._look_at = time.monotonic() + LOOK_SECONDS
        try:
            with file.open("rb") as opened:
                status = os.fstat(opened.fileno())
                seen = (status.st_ino, status.st_mtime_ns, status.st_size)
                if seen == self._seen:
                    return
                data = opened.read(MOST_FILE + 1)
        except OSError as error:
            raise KvhubError(f"{self._where}.file: {file} cannot be read: {error.strerror}; check it") from error
        if len(data) > MOST_FILE:
            raise KvhubError(f"{self._where}.file: {file} has more than {MOST_FILE} bytes; list fewer tenants in it")
        self._listed = _parsed(data.decode("utf-8", "replace"), f"{self._where}.file: {file}")
        self._seen = seen


def _parsed(text: str, what: str) -> Listed:
    """Keys by tag.  Raises KvhubError, which never says what was found in the place of a key."""
    try:
        plain = json.loads(text)
    except ValueError:
        plain = None
    if not isinstance(plain, dict):
        raise KvhubError(f'{what} holds no list of keys: expected JSON, {{"TAG": "KEY"}}; its value is not shown')
    listed: dict[bytes, tuple[Secret, ...]] = {}
    for tag, value in plain.items():
        if not _TAG.fullmatch(tag):
            raise KvhubError(
                f"{what}: expected tags of 32 hex digits, as `kvhub pool tag` prints them; found one of another form"
            )
        texts = value if isinstance(value, list) else [value]
        if not all(isinstance(each, str) for each in texts):
            raise KvhubError(f"{what}: {tag}: expected a key or a list of keys, in quotes")
        listed[bytes.fromhex(tag)] = tuple(keys.parse(each, f"{what}: {tag}") for each in texts)
    return listed
