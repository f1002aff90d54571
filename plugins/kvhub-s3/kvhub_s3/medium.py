"""`BucketMedium`: a bucket as housekeeping sees it.

S3 notes no uses, so a chunk counts as last used when it was written; hubs write what they use anew, once a day
(`refresh`).  All times are the server's, to the second.
"""

from __future__ import annotations

import errno
import itertools
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

from kvhub.errors import KvhubError
from kvhub.pool.medium import SHARDS, SPACE, Entry, Leftover, Medium, Room, Space
from kvhub_s3 import failures, leases, probe, uploads
from kvhub_s3.client import Client
from kvhub_s3.config import BucketConfig, named_secrets
from kvhub_s3.download import Found
from kvhub_s3.names import Names, chunk_of
from kvhub_s3.rest import rest_of

CLOCK_SECONDS = 60.0
"""How long the difference to the server's clock is taken as known."""
LOOK_ONE_BY_ONE = 8
"""Objects of a shard up to which each is looked at; beyond it the shard is listed again, 1000 to a request."""
UPLOAD = "?uploadId="


class BucketMedium(Medium):
    """One bucket's prefix with all its namespaces."""

    def __init__(self, config: BucketConfig) -> None:
        self._place = f"s3://{config.bucket}" + (f"/{config.prefix}" if config.prefix else "")
        known = named_secrets(config, self._place)
        self._names = Names.below(config.prefix)
        self._client = Client(config, known)
        self._lock = threading.Lock()
        self._ahead, self._asked = 0.0, float("-inf")
        try:
            self._client.open()
            self._rest = rest_of(config, known)
            probe.look(self._client, self._names)
        except failures.Failure as failure:
            self._client.close()
            raise probe.refusal(self._place, config.bucket, config.base(), failure) from None
        except (OSError, ValueError) as error:
            raise KvhubError(f"{self._place}: cannot be opened: {error}; check endpoint and ca_file") from None
        self._many = ThreadPoolExecutor(config.workers, thread_name_prefix="kvhub-pool-s3")

    def describe(self) -> str:
        return self._place

    def now(self) -> float:
        with self._lock:
            asked = time.monotonic()
            if asked - self._asked > CLOCK_SECONDS:
                self._asked, self._ahead = asked, 0.0
                clock = self._names.scratch(secrets.token_hex(16))
                with suppress(failures.Failure):  # read-only: this machine's clock has to do
                    self._client.put(clock, b"")
                    found = self._client.head(clock)
                    self._client.delete(clock)
                    self._ahead = found.modified - time.time() if found else 0.0
            return time.time() + self._ahead

    def room(self) -> Room | None:
        return None

    def close(self) -> None:
        self._many.shutdown(wait=False, cancel_futures=True)
        self._client.close()

    # -- chunks ------------------------------------------------------------------------------------------------------

    def spaces(self) -> Iterator[Space]:
        with self._told():
            places = [self._names.namespaces(), *map(self._names.shard, SHARDS)]
            found: dict[str, list[str]] = {}
            for path in itertools.chain.from_iterable(self._many.map(self._client.folders, places)):
                found.setdefault(path.rpartition("/")[2], []).append(path)
            for space in sorted(name for name in found if SPACE.fullmatch(name)):
                text = self._text(space)
                # Some servers go on telling of a folder when the last object below it is gone.
                if text is not None or any(next(self._client.listed(path), None) for path in found[space]):
                    yield Space(space, text)

    def entries(self, space: str, shard: str, after: str = "") -> Iterator[Entry]:
        behind = self._names.chunk(space, after) if after[:2] == shard else ""
        if after[:2] > shard:
            return
        with self._told():
            for key, found in self._client.listed(self._names.part(space, shard), behind):
                name = chunk_of(key)
                if name is not None and key == self._names.chunk(space, name):
                    yield _entry(name, found)

    def read(self, space: str, name: str, into: memoryview) -> Entry | None:
        with self._told():
            there = self._client.read(self._names.chunk(space, name), into, into[len(into) :])
            return None if there is None else _entry(name, there.found)

    def remove(self, space: str, entries: Sequence[Entry]) -> list[Entry]:
        with self._told():
            there = self._seen_again(space, [entry.name for entry in entries])
            same = [entry for entry in entries if there.get(entry.name) == entry.identity]
            if same:
                self._client.delete_all([self._names.chunk(space, entry.name) for entry in same])
            return same

    def put(self, space: str, name: str, whole: memoryview) -> bool:
        key = self._names.chunk(space, name)
        with self._told():
            return self._client.head(key) is None and self._client.put(key, whole)

    def admit(self, space: Space) -> None:
        if space.text is not None:
            key = self._names.namespace_json(space.id)
            with self._told():
                probe.hold_to_namespace(self._client, self._place, self._place, key, space.text, writes=True)

    def forget(self, space: str) -> bool:
        with self._told():
            parts = [self._names.part(space, shard) for shard in SHARDS]
            if any(self._many.map(lambda part: next(self._client.listed(part), None), parts)):
                return False
            if any(f"/{space}/" in upload.key for upload in self._uploads()):
                return False
            self._client.delete(self._names.namespace_json(space))
            return True

    # -- unfinished objects ------------------------------------------------------------------------------------------

    def leftovers(self, older_than: float) -> Iterator[Leftover]:
        now = self.now()
        with self._told():
            for upload in self._uploads():
                if upload.age > older_than:
                    yield Leftover(f"{upload.key}{UPLOAD}{upload.id}", 0, now - upload.age)
            for key, found in self._client.listed(self._names.scratch()):
                if now - found.modified > older_than:
                    yield Leftover(key, found.size, found.modified)

    def clear(self, leftovers: Sequence[Leftover]) -> int:
        with self._told():
            return sum(self._cleared(left.name) for left in leftovers)

    # -- leases and notes --------------------------------------------------------------------------------------------

    def claim(self, lease: str, holder: str, seconds: float) -> bool:
        now = self.now()
        with self._told():
            return leases.claim(self._client, self._names.lease(lease), holder, seconds, now)

    def release(self, lease: str, holder: str) -> None:
        with self._told():
            leases.release(self._client, self._names.lease(lease), holder)

    def note(self, name: str) -> bytes | None:
        with self._told():
            there = self._client.small(self._names.note(name))
            return None if there is None else there[0]

    def put_note(self, name: str, data: bytes) -> None:
        with self._told():
            self._client.put(self._names.note(name), data)

    def drop_note(self, name: str) -> None:
        with self._told():
            self._client.delete(self._names.note(name))

    def _text(self, space: str) -> str | None:
        there = self._client.small(self._names.namespace_json(space))
        try:
            return None if there is None else there[0].decode()
        except UnicodeDecodeError:
            return None

    def _seen_again(self, space: str, names: Sequence[str]) -> dict[str, Found]:
        """What of `names` is there now."""
        seen: dict[str, Found] = {}
        for shard in sorted({name[:2] for name in names}):
            wanted = sorted(name for name in names if name[:2] == shard)
            if len(wanted) <= LOOK_ONE_BY_ONE:
                keys = [self._names.chunk(space, name) for name in wanted]
                found = zip(wanted, self._many.map(self._client.head, keys), strict=True)
                seen |= {name: each for name, each in found if each is not None}
                continue
            # Without its last digit: a listing begins above what it is told.
            for key, each in self._client.listed(
                self._names.part(space, shard), f"{self._names.part(space, shard)}/{wanted[0][:-1]}"
            ):
                name = chunk_of(key) or ""
                if name > wanted[-1]:
                    break
                seen[name] = each
        return seen

    def _uploads(self) -> Iterator[uploads.Upload]:
        """Unfinished uploads; none can be listed with credentials that only obstore has."""
        if self._rest is not None:
            yield from uploads.unfinished(self._rest, f"{self._names.root}/")

    def _cleared(self, name: str) -> bool:
        key, upload, identity = name.partition(UPLOAD)
        if upload:
            # An abort is answered alike whether there was one or not.
            if self._rest is None or all(each.id != identity for each in uploads.unfinished(self._rest, key)):
                return False
            return uploads.abort(self._rest, key, identity)
        if self._client.head(key) is None:
            return False
        self._client.delete(key)
        return True

    @contextmanager
    def _told(self) -> Iterator[None]:
        """What the bucket does instead, as the OSError that housekeeping knows."""
        try:
            yield
        except failures.Full as full:
            raise OSError(errno.ENOSPC, f"{self._place} {full.sentence()}") from None
        except failures.Failure as failure:
            raise _KINDS.get(type(failure), _kind(failure))(f"{self._place} {failure.sentence()}") from None


def _kind(failure: failures.Failure) -> type[OSError]:
    return PermissionError if isinstance(failure, failures.Denied) else OSError


_KINDS: dict[type[failures.Failure], type[OSError]] = {
    failures.Timeout: TimeoutError,
    failures.Unreachable: ConnectionError,
    failures.Broken: ConnectionError,
}


def _entry(name: str, found: Found) -> Entry:
    return Entry(name, found.size, float(found.modified), float(found.modified), found)
