"""`BucketStore`: one object per chunk in an S3 bucket that other hubs share."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar, TypeVar

from kvhub.chunkfile import HEADER_BYTES
from kvhub.errors import KvhubError
from kvhub.findings import Finding
from kvhub.member import Bare
from kvhub.pool.medium import SHARDS
from kvhub.store import BlockingStore, Seen
from kvhub.types import MemberContext
from kvhub_s3 import failures, probe, uploads
from kvhub_s3.client import Client
from kvhub_s3.config import BucketConfig, named_secrets
from kvhub_s3.download import Found
from kvhub_s3.names import Names, chunk_of
from kvhub_s3.refresh import Refresher
from kvhub_s3.rest import Rest, rest_of

if TYPE_CHECKING:
    from kvhub.pool.medium import Medium

T = TypeVar("T")


class BucketStore(BlockingStore):
    """Chunks as objects: found by key alone, put whole in one request or in parts, so a reader sees all or nothing.

    Nothing is listed while serving.  No refusal and no lost connection ever removes anything.
    """

    kind: ClassVar[str] = ""
    Config = BucketConfig
    persistent = True
    shared = True
    config: BucketConfig

    def __init__(self, config: BucketConfig, context: MemberContext) -> None:
        super().__init__(config, context)
        self.workers = config.workers
        self._names = Names.below(config.prefix)
        self._space = context.namespace.hex()[:32]
        self._client: Client | None = None
        self._refuses_to_overwrite = False
        self._sweeper: threading.Thread | None = None
        self._trouble = ""
        self._refresher: Refresher | None = None

    @classmethod
    def medium(cls, config: BucketConfig) -> Medium:
        from kvhub_s3.medium import BucketMedium  # no hub needs it

        return BucketMedium(config)

    @classmethod
    def bare(cls, config: BucketConfig) -> Bare | None:
        from kvhub_s3.bare import connect  # no hub needs it

        return connect(config)

    def open(self) -> None:
        name, config = self.context.name, self.config
        secrets = named_secrets(config, name)
        try:
            base = config.base()
        except ValueError as error:
            raise KvhubError(f"{name}: endpoint: {error}") from None
        client = Client(config, secrets, self.time_left, self.context.report)
        try:
            client.open()
            probe.look(client, self._names)
            if self.context.writes:
                self._refuses_to_overwrite = probe.write_read_delete(client, self._names)
            beside = self._names.namespace_json(self._space)
            probe.hold_to_namespace(
                client, name, config.bucket, beside, self.context.namespace_json, writes=self.context.writes
            )
        except failures.Failure as failure:
            client.close()
            raise probe.refusal(name, config.bucket, base, failure) from None
        except OSError as error:
            raise KvhubError(f"{name}: ca_file {config.ca_file} cannot be read: {error.strerror}; check it") from None
        except BaseException:
            client.close()
            raise
        self._client = client
        if self.context.writes and config.refresh:
            self._refresher = Refresher(
                name, client, self._key, self._space, config.refresh, self.context.chunk_bytes, self.context.report
            )
        rest = rest_of(config, secrets)
        if self.context.writes and rest is not None:
            self._sweeper = threading.Thread(target=self._sweep, args=(rest,), name=f"kvhub-{name}-sweep", daemon=True)
            self._sweeper.start()

    def diagnose(self) -> Iterable[Finding]:
        from kvhub_s3.diagnosis import findings  # no hub needs it

        return findings(self.config)

    def shut(self) -> None:
        if self._refresher is not None:
            self._refresher.close(1.0)
        client, self._client = self._client, None
        if client is not None:
            client.close()
        if self._sweeper is not None:
            self._sweeper.join(1.0)

    def healthy(self) -> str:
        return self._trouble or super().healthy()

    def has(self, name: str) -> bool:
        found = self._noted(lambda client: client.head(self._key(name)))
        # Shorter than a header is a damaged object, which a save may replace.
        return found is not None and found.size >= HEADER_BYTES

    def read(self, name: str, header: memoryview, payload: memoryview) -> int | None:
        there = self._noted(lambda client: client.read(self._key(name), header, payload))
        return None if there is None else Seen(there.found.size, there.found, there.checksum)

    def write(self, name: str, header: bytes, payload: memoryview) -> bool:
        create = self._refuses_to_overwrite
        return self._noted(lambda client: client.put(self._key(name), header, payload, create=create))

    def replace(self, name: str, header: bytes, payload: memoryview) -> bool:
        return self._noted(lambda client: client.put(self._key(name), header, payload))

    def drop(self, name: str) -> None:
        self._noted(lambda client: client.delete(self._key(name)))

    def drop_seen(self, name: str, seen: int, header: bytes) -> None:
        """Look again, and remove what still is that object: S3 has no removal under a condition that all servers keep.

        A good object that comes between the look and the removal is lost, which costs a miss.
        """
        if not self.context.writes or not isinstance(seen, Seen) or not isinstance(seen.identity, Found):
            return
        if self._noted(lambda client: client.head(self._key(name))) == seen.identity:
            self.drop(name)

    def used(self, name: str, seen: int) -> None:
        if self._refresher is not None and isinstance(seen, Seen) and isinstance(seen.identity, Found):
            self._refresher.note(name, seen.identity)

    def names(self) -> Iterator[tuple[str, int]]:
        client = self._connected()
        for shard in SHARDS:
            for key, found in client.listed(self._names.part(self._space, shard)):
                name = chunk_of(key)
                if name is not None:
                    yield name, found.size

    def _key(self, name: str) -> str:
        return self._names.chunk(self._space, name)

    def _connected(self) -> Client:
        if self._client is None:
            raise failures.Failure("closed")
        return self._client

    def _noted(self, call: Callable[[Client], T]) -> T:
        """Run `call` and keep what it says of the bucket for `healthy`."""
        try:
            answer = call(self._connected())
        except failures.Denied as denied:
            self.context.report("denied", 1)
            if denied.explained or not self._trouble:
                self._trouble = f"bucket {self.config.bucket} {denied.sentence()}"
            raise
        except failures.Full as full:
            raise OSError(errno.ENOSPC, full.sentence()) from None
        self._trouble = ""
        return answer

    def _sweep(self, rest: Rest) -> None:
        with suppress(failures.Failure):
            self.context.report("swept_uploads", uploads.sweep(rest, f"{self._names.root}/", uploads.AGE_SECONDS))
