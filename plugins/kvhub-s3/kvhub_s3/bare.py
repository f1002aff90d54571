"""One plain connection to a bucket: what `kvhub bench` holds the store against."""

from __future__ import annotations

import http.client
import time
from urllib.parse import quote, urlsplit

from kvhub.errors import KvhubError
from kvhub_s3.config import BucketConfig, named_secrets
from kvhub_s3.names import Names
from kvhub_s3.rest import UNRESERVED, Rest, rest_of, signature


class BareBucket:
    """PUT, GET and DELETE on one connection that is kept, with payloads that are not hashed: as little as it takes."""

    def __init__(self, rest: Rest, prefix: str) -> None:
        self._rest, self._url = rest, urlsplit(rest.base)
        self._names = Names.below(prefix)
        host, port = self._url.hostname or "", self._url.port
        self._connection: http.client.HTTPConnection = (
            http.client.HTTPSConnection(host, port, timeout=rest.timeout, context=rest.tls)
            if self._url.scheme == "https"
            else http.client.HTTPConnection(host, port, timeout=rest.timeout)
        )

    def put(self, name: str, payload: memoryview) -> None:
        """One PUT."""
        self._ask("PUT", name, payload)

    def get(self, name: str, room: memoryview) -> None:
        """One GET of a whole object."""
        self._ask("GET", name, room=room)

    def drop(self, name: str) -> None:
        """One DELETE."""
        self._ask("DELETE", name)

    def close(self) -> None:
        """Let go of the connection."""
        self._connection.close()

    def _ask(self, method: str, name: str, body: memoryview | None = None, room: memoryview | None = None) -> None:
        path = quote(f"{self._url.path.rstrip('/')}/{self._names.scratch(name)}", UNRESERVED + "/")
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        headers = {"host": self._url.netloc, "x-amz-content-sha256": "UNSIGNED-PAYLOAD", "x-amz-date": stamp}
        secrets = self._rest.secrets
        if secrets.session_token:
            headers["x-amz-security-token"] = secrets.session_token
        headers["authorization"] = signature(secrets, self._rest.region, method, path, "", headers, stamp)
        try:
            self._connection.request(method, path, body, headers | {"content-length": str(body.nbytes if body else 0)})
            answer = self._connection.getresponse()
            at = 0
            while room is not None and at < room.nbytes and (got := answer.readinto(room[at:])):
                at += got
            answer.read()
        except http.client.HTTPException as error:
            raise OSError(f"{method} {name}: {type(error).__name__}: {error}") from error
        if answer.status >= 300 or (room is not None and at != room.nbytes):
            raise OSError(f"{method} {name} was answered with {answer.status} and {at} bytes")


def connect(config: BucketConfig) -> BareBucket | None:
    """None where the credentials are an instance's.  Raises KvhubError."""
    try:
        rest = rest_of(config, named_secrets(config, "bench"))
    except OSError as error:
        raise KvhubError(f"ca_file {config.ca_file} cannot be read: {error.strerror}") from error
    return BareBucket(rest, config.prefix) if rest is not None else None
