"""`s3://bucket/key` for `kvhub inspect`: an object as a file that is fetched range by range, as it is read."""

from __future__ import annotations

import errno
import io
from collections.abc import Mapping
from typing import Any, BinaryIO, cast
from urllib.parse import unquote, urlsplit

from kvhub.errors import KvhubError
from kvhub.options import build
from kvhub_s3 import failures, probe
from kvhub_s3.client import Client
from kvhub_s3.config import BucketConfig, named_secrets

SCHEME = "s3"
PIECE = 8 << 20
"""The most that is asked for at once by a read of all the rest."""


def open_url(url: str, config: Mapping[str, Any]) -> BinaryIO | None:
    """The object of an s3 URL, None for other URLs.  Nothing is fetched before it is read.

    How to reach the bucket is what a store of `config` with that bucket says, the one with the longest prefix that the
    key has; without one, the environment.  Raises KvhubError for a URL or options that cannot be used.
    """
    parts = urlsplit(url)
    if parts.scheme != SCHEME:
        return None
    bucket, key = parts.netloc, unquote(parts.path.removeprefix("/"))
    if not bucket or not key or parts.query or parts.fragment:
        raise KvhubError(f"{url}: expected s3://BUCKET/KEY, without query or fragment")
    options = _options(url, bucket, key, config)
    client = Client(options, named_secrets(options, url))
    try:
        client.open()
    except (OSError, ValueError) as error:
        raise KvhubError(f"{url}: {error}") from None
    return cast(BinaryIO, _Object(client, options, url, key))


def _options(url: str, bucket: str, key: str, config: Mapping[str, Any]) -> BucketConfig:
    stores = config.get("stores", {})
    mine = [
        given
        for given in (stores.values() if isinstance(stores, Mapping) else ())
        if isinstance(given, Mapping)
        and str(given.get("use", "")).partition("/")[0] == SCHEME
        and given.get("bucket") == bucket
        and key.startswith(str(given.get("prefix", "")))
    ]
    best = max(mine, key=lambda given: len(str(given.get("prefix", ""))), default={"bucket": bucket})
    problems: list[str] = []
    given = {str(name): value for name, value in best.items() if name != "use"}
    made: BucketConfig | None = build(BucketConfig, given, "", lambda path, why: problems.append(f"{path}: {why}"))
    if made is None:
        raise KvhubError(f"{url}: {'; '.join(problems)}")
    return made


class _Object(io.RawIOBase):
    """One object, read forwards.  Two reads may see two versions of it, which the checksum then tells."""

    def __init__(self, client: Client, options: BucketConfig, url: str, key: str) -> None:
        self._client, self._options, self._url, self._key = client, options, url, key
        self._at = 0

    def readable(self) -> bool:
        return True

    def readinto(self, room: Any) -> int:
        view = memoryview(room).cast("B")
        piece = self._fetch(view.nbytes) if view.nbytes else b""
        view[: len(piece)] = piece
        return len(piece)

    def readall(self) -> bytes:
        pieces = []
        while piece := self._fetch(PIECE):
            pieces.append(piece)
            if len(piece) < PIECE:
                break
        return b"".join(pieces)

    def close(self) -> None:
        if not self.closed:
            self._client.close()
        super().close()

    def _fetch(self, most: int) -> bytes:
        try:
            piece = self._client.piece(self._key, self._at, most)
        except failures.Failure as failure:
            raise probe.refusal(self._url, self._options.bucket, self._options.base(), failure) from None
        if piece is None:
            raise FileNotFoundError(errno.ENOENT, "no such object")
        self._at += len(piece)
        return piece
