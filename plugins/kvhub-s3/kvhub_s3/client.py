"""`Client`: the calls on one bucket, each bounded in time and each ending in an answer or a `Failure`.

obstore's own retries are off: they know no deadline.  What may work in a moment is tried again here, a few times,
after a pause that grows and is drawn at random, and only while somebody waits.
"""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import attrs
import obstore
from obstore import exceptions
from obstore.store import S3Store

from kvhub.chunkfile import PayloadChecksum
from kvhub.store import Late
from kvhub_s3 import failures
from kvhub_s3.config import BucketConfig, Secrets
from kvhub_s3.download import Downloads, Empty, Found, Read
from kvhub_s3.rest import tls_of

ONE_PUT = 64 << 20
"""Bytes up to which an object goes up in one request."""
PIECE = 64 << 10
"""Bytes from which on a piece of an answer is handed over.  Small enough that little is joined and that a deadline is
seen in time; large enough that the calls cost little."""
MOST_TRIES = 4
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
SIGNED_FOR = timedelta(minutes=5)
"""How long the address of a download is good: for clocks that differ, since it is used at once."""
ASK_WHY_SECONDS = 10.0
"""How often at most a refusal without a word is asked for its reason."""

T = TypeVar("T")
_used_in: int | None = None
"""The process in which obstore's threads were started.  They do not survive a fork, and calls would hang for ever."""


def hold_to_process() -> None:
    """Raise `Forked` where obstore's threads were left behind in a parent."""
    global _used_in
    if _used_in is None:
        _used_in = os.getpid()
    if _used_in != os.getpid():
        raise failures.Forked("forked")


def _found(meta: obstore.ObjectMeta) -> Found:
    return Found(meta["size"], meta["e_tag"] or "", int(meta["last_modified"].timestamp()))


@attrs.define
class Client:
    """One bucket, from this process.  Connections are made at the first call.  Thread-safe."""

    config: BucketConfig
    secrets: Secrets | None
    time_left: Callable[[], float] = lambda: math.inf
    """Seconds that the caller's work may still take."""
    report: Callable[[str, int], None] = lambda name, count: None
    _reads: S3Store | None = attrs.field(default=None, init=False)
    _writes: S3Store | None = attrs.field(default=None, init=False)
    _downloads: Downloads | None = attrs.field(default=None, init=False)
    """The way of reads; None leaves them to obstore."""
    _bulk: S3Store | None = attrs.field(default=None, init=False)
    _asked_why: float = attrs.field(default=float("-inf"), init=False)

    def open(self) -> None:
        """Make ready; nothing is sent.  Raises OSError for a `ca_file` that cannot be read, ValueError for options."""
        hold_to_process()
        config = self.config
        self._reads = self._store(timeout=f"{config.load_timeout}s", read_timeout=f"{config.stall_timeout}s")
        self._writes = self._store(timeout=f"{config.save_timeout}s")
        base = urlsplit(config.base())
        if not {base.scheme, "all"} & getproxies().keys() or proxy_bypass(base.hostname or ""):
            self._downloads = Downloads(
                config.connect_timeout, config.stall_timeout, config.load_timeout, tls_of(config), self.time_left
            )

    def close(self) -> None:
        """Let go of the connections; calls under way end on their own."""
        self._reads = self._writes = self._bulk = None
        if self._downloads is not None:
            self._downloads.close()

    def choose_way(self, absent: str) -> None:
        """Leave reads to obstore where it can read and we cannot: it may trust other authorities, for instance.

        `absent` is a key without an object.  Raises `Failure` where neither can.
        """
        byte = memoryview(bytearray(1))
        try:
            self.read(absent, byte, byte[1:])
        except failures.Failure:
            self._downloads = None
            self.read(absent, byte, byte[1:])

    def head(self, key: str) -> Found | None:
        """The object, or None where there is none."""
        try:
            return self._tried(lambda: _absent_is_none(lambda: self._head(key)))
        except failures.Denied:
            if time.monotonic() - self._asked_why > ASK_WHY_SECONDS:
                self._asked_why = time.monotonic()
                # The answer to a HEAD has no body that says why; that to a GET has one, and raises it.
                byte = memoryview(bytearray(1))
                self.read(key, byte, byte[1:])
            raise

    def read(self, key: str, header: memoryview, payload: memoryview) -> Read | None:
        """Fill `header`, then `payload`, as far as the object goes; None where there is none."""
        return self._tried(lambda: _absent_is_none(lambda: self._read(key, header, payload)))

    def _head(self, key: str) -> Found | None:
        downloads = self._downloads
        if downloads is None:
            return _found(obstore.head(self._reading(), key))
        return downloads.head(obstore.sign(self._reading(), "HEAD", key, SIGNED_FOR))

    def _read(self, key: str, header: memoryview, payload: memoryview) -> Read | None:
        downloads = self._downloads
        if header.nbytes + payload.nbytes:
            try:
                if downloads is None:
                    return self._read_by_obstore(key, header, payload)
                return downloads.get(obstore.sign(self._reading(), "GET", key, SIGNED_FOR), header, payload)
            except Empty:
                pass
        found = self._head(key)
        return None if found is None else Read(found, b"")

    def put(self, key: str, *parts: bytes | memoryview, create: bool = False) -> bool:
        """Store the parts as one object; False where `create` and there is one.  They are not joined first."""
        if sum(memoryview(part).nbytes for part in parts) <= ONE_PUT:
            return self._tried(lambda: self._put(key, parts, create))
        return self._tried(lambda: self._put_in_parts(key, parts))

    def small(self, key: str, most: int = 1 << 20) -> tuple[bytes, Found] | None:
        """A small object's bytes, up to `most`; None where there is none."""
        data = memoryview(bytearray(most))
        there = self.read(key, data, data[most:])
        return None if there is None else (bytes(data[: there.found.size]), there.found)

    def piece(self, key: str, start: int, most: int) -> bytes | None:
        """Up to `most` bytes from `start` on, fewer only where the object ends; None where there is no object."""

        def fetch() -> bytes:
            try:
                return bytes(obstore.get_range(self._reading(), key, start=start, length=most))
            except exceptions.BaseError as error:
                if failures.unsatisfiable(error):
                    return b""
                raise

        return self._tried(lambda: _absent_is_none(fetch))

    def delete(self, key: str) -> None:
        """Remove an object; one that is not there is removed already."""
        self._tried(lambda: obstore.delete(self._writing(), key))

    def delete_all(self, keys: Sequence[str]) -> None:
        """Remove objects, up to 1000 in one request where the server knows how."""
        if self._bulk is None:
            self._bulk = self._store(timeout=f"{self.config.save_timeout}s", in_bulk=True)
        bulk = self._bulk
        try:
            self._tried(lambda: obstore.delete(bulk, list(keys)))
        except (failures.Refused, failures.ServerError):
            self._tried(lambda: obstore.delete(self._writing(), list(keys)))

    def listed(self, prefix: str, after: str = "") -> Iterator[tuple[str, Found]]:
        """Every object below `prefix`, a whole path, whose key is above `after`, in order of key; a page at a time."""
        pages: Iterator[Sequence[obstore.ObjectMeta]] | None = None

        def next_page() -> Sequence[obstore.ObjectMeta] | None:
            nonlocal pages
            if pages is None:
                pages = iter(obstore.list(self._reading(), prefix, offset=after or None, chunk_size=1000))
            try:
                return next(pages, None)
            except Exception:
                pages = None  # after an error it would end as if there were no more
                raise

        while page := self._tried(next_page):
            for meta in page:
                after = meta["path"]
                yield after, _found(meta)

    def folders(self, prefix: str) -> list[str]:
        """The paths directly below `prefix` that have objects below them."""
        return list(self._tried(lambda: obstore.list_with_delimiter(self._reading(), prefix))["common_prefixes"])

    def _store(self, *, in_bulk: bool = False, **times: str) -> S3Store:
        config = self.config
        address = config.address()
        base = config.base()
        by_path = config.by_path(address)
        options: dict[str, object] = {
            "region": config.region_name(),
            "unsigned_payload": True,  # TLS guards the way, and every chunk is verified where it is read
            "virtual_hosted_style_request": not by_path,
            "disable_bulk_delete": not in_bulk,
            "endpoint": base.rpartition("/")[0] if by_path else base,
        }
        # obstore prefers this variable to `endpoint`; saying it again keeps the environment from undoing the file.
        options["aws_endpoint_url_s3"] = options["endpoint"]
        if self.secrets is not None:
            keys = {
                "access_key_id": self.secrets.access_key_id,
                "secret_access_key": self.secrets.secret_access_key,
                "token": self.secrets.session_token or None,
                "expires_at": None,
            }
            options |= {"credential_provider": lambda: keys, "skip_signature": False}
        client: dict[str, object] = {
            **times,
            "connect_timeout": f"{config.connect_timeout}s",
            "allow_http": base.startswith("http:"),
            "allow_invalid_certificates": not config.verify_tls,
        }
        if config.ca_file is not None:
            client["root_certificate"] = config.ca_file.read_bytes()
        return S3Store(config.bucket, client_options=client, retry_config={"max_retries": 0}, **options)  # type: ignore[arg-type]

    def _reading(self) -> S3Store:
        return _open(self._reads)

    def _writing(self) -> S3Store:
        return _open(self._writes)

    def _tried(self, call: Callable[[], T]) -> T:
        """Run `call`; again, after a pause, where that may help and somebody waits.  Raises `Failure` and Late."""
        hold_to_process()
        for pause in (*_pauses(), None):
            try:
                return call()
            except Late:
                raise
            except Exception as error:
                failure = failures.of(error)
            if isinstance(failure, failures.SlowDown):
                self.report("throttled", 1)
            if pause is None or not failure.again or pause >= self.time_left():
                break
            self.report("retries", 1)
            time.sleep(pause)
        raise failure

    def _read_by_obstore(self, key: str, header: memoryview, payload: memoryview) -> Read:
        room, first = header.nbytes + payload.nbytes, header.nbytes
        checksum = PayloadChecksum()
        try:
            answer = obstore.get(self._reading(), key, options={"range": (0, room)})
        except exceptions.BaseError as error:
            if failures.unsatisfiable(error):
                raise Empty from None
            raise
        found = _found(answer.meta)
        got = 0
        for piece in answer.stream(PIECE):
            data = memoryview(piece)
            if self.time_left() <= 0:
                raise Late
            if got + data.nbytes > room:
                raise failures.Broken("more bytes than were asked for")
            if got < first:
                head = data[: first - got]
                header[got : got + head.nbytes] = head
                data, got = data[head.nbytes :], got + head.nbytes
            copied = payload[got - first : got - first + data.nbytes]
            copied[:] = data
            checksum.add(copied)
            got += data.nbytes
        if got != min(found.size, room):
            raise failures.Broken("fewer bytes than the object has")
        return Read(found, checksum.digest())

    def _put(self, key: str, parts: Sequence[bytes | memoryview], create: bool) -> bool:
        try:
            mode = "create" if create else "overwrite"
            obstore.put(self._writing(), key, parts, use_multipart=False, mode=mode)  # type: ignore[arg-type]
        except exceptions.AlreadyExistsError:
            if create:
                return False
            raise
        return True

    def _put_in_parts(self, key: str, parts: Sequence[bytes | memoryview]) -> bool:
        """obstore aborts an upload of which a part fails."""
        obstore.put(self._writing(), key, iter(parts), use_multipart=True, chunk_size=self.config.part_size)
        return True


def _open(store: S3Store | None) -> S3Store:
    if store is None:
        raise failures.Failure("closed")
    return store


def _absent_is_none(call: Callable[[], T]) -> T | None:
    try:
        return call()
    except FileNotFoundError as error:
        if failures.absent(error):
            return None
        raise


def _pauses() -> Iterator[float]:
    """Seconds between tries: doubling, each drawn from its upper half so that writers do not retry in step."""
    longest = FIRST_PAUSE
    for _ in range(MOST_TRIES - 1):
        yield longest * random.uniform(0.5, 1.0)
        longest = min(2 * longest, LONGEST_PAUSE)
