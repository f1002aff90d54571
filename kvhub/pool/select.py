"""Which chunks a command is about: by namespace, model, key, age, tenant."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import attrs

from kvhub import chunkfile, names
from kvhub.errors import ConfigError
from kvhub.pool.medium import Entry, Medium, Space


@attrs.frozen
class Selection:
    """Filters; what is left at its default does not filter."""

    namespace: str = ""
    """First hex digits of a namespace's digest."""
    model: str = ""
    """The namespace's model, in full."""
    prefix: str = ""
    """First hex digits of the key."""
    unused_for: float = 0.0
    """Seconds."""
    older_than: float = 0.0
    """Seconds since it was written."""
    tenant: bytes = b""
    """Tag of a tenant (`kvhub.keys.Context.tenant`)."""

    @property
    def everything(self) -> bool:
        return self == Selection()

    @property
    def whole_spaces(self) -> bool:
        return not (self.prefix or self.unused_for or self.older_than or self.tenant)

    @property
    def by_header(self) -> bool:
        """Whether headers have to be read, since listings do not tell."""
        return bool(self.tenant or self.older_than)

    def shard(self, shard: str) -> bool:
        return shard.startswith(self.prefix[:2])

    def spaces(self, medium: Medium) -> list[Space]:
        """Those that are meant.  Raises ConfigError where a word names none: a typo must not look like no chunks."""
        found = list(medium.spaces())
        ids = [space.id for space in found]
        models = {facts(space).get("model", "") for space in found} - {""}
        problems = []
        if self.namespace and not any(space.startswith(self.namespace) for space in ids):
            problems.append(f"--namespace {self.namespace}: none here; {names.hint(self.namespace, ids)}")
        if self.model and self.model not in models:
            problems.append(f"--model {self.model}: none here; {names.hint(self.model, models)}")
        if problems:
            raise ConfigError(problems, where=medium.describe())
        return [
            space
            for space in found
            if space.id.startswith(self.namespace) and self.model in ("", facts(space).get("model"))
        ]

    def wants(self, medium: Medium, space: str, entry: Entry, now: float) -> bool:
        """Whether the chunk is meant; reads its header where only that tells whose it is or when it was written.

        Callable from several threads at once.
        """
        return self.looked(medium, space, entry, now)[0]

    def looked(self, medium: Medium, space: str, entry: Entry, now: float) -> tuple[bool, chunkfile.Header | None]:
        """The same, and the header where it had to be read and could be."""
        if not entry.name.startswith(self.prefix) or entry.used > now - self.unused_for:
            return False, None
        created, header = entry.created, None
        if self.tenant or (self.older_than and created is None):
            header = read_header(medium, space, entry)
            if header is None or (self.tenant and header.tenant != self.tenant):
                return False, header
            created = header.created_ns / 1e9 if created is None else created
        return not self.older_than or (created is not None and created <= now - self.older_than), header


def read_header(medium: Medium, space: str, entry: Entry) -> chunkfile.Header | None:
    """A listed chunk's header; None where it has gone, or nothing can be believed of it."""
    head = bytearray(chunkfile.HEADER_BYTES)
    if medium.read(space, entry.name, memoryview(head)) is None:
        return None
    try:
        header = chunkfile.parse(head)
    except (chunkfile.Damaged, chunkfile.Foreign):
        return None
    return header if header.key.hex() == entry.name else None


def facts(space: Space) -> dict[str, Any]:
    """What the namespace says of itself; empty where nothing can be read."""
    try:
        found = json.loads(space.text) if space.text else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
