"""Signed requests for the few calls that obstore does not have: uploads that were begun and never ended.

AWS Signature Version 4, https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import ssl
import time
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import quote, urlsplit

import attrs

from kvhub_s3.config import BucketConfig, Secrets, plain_secrets

UNRESERVED = "-_.~"


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes


def signature(
    secrets: Secrets, region: str, method: str, path: str, query: str, headers: Mapping[str, str], stamp: str
) -> str:
    """The value of `Authorization`.  `path` and `query` as sent; all of `headers` are signed, in lower case."""
    names = ";".join(sorted(headers))
    listed = "".join(f"{name}:{headers[name].strip()}\n" for name in sorted(headers))
    request = f"{method}\n{path}\n{query}\n{listed}\n{names}\n{headers['x-amz-content-sha256']}"
    scope = f"{stamp[:8]}/{region}/s3/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
    key = b"AWS4" + secrets.secret_access_key.encode()
    for word in scope.split("/"):
        key = hmac.digest(key, word.encode(), "sha256")
    signed = hmac.digest(key, text.encode(), "sha256").hex()
    return f"AWS4-HMAC-SHA256 Credential={secrets.access_key_id}/{scope},SignedHeaders={names},Signature={signed}"


def query_of(arguments: Mapping[str, str]) -> str:
    """Arguments in the order and the escapes that a signature wants."""
    return "&".join(f"{quote(name, UNRESERVED)}={quote(arguments[name], UNRESERVED)}" for name in sorted(arguments))


@attrs.frozen
class Rest:
    """One bucket's address, `http[s]://host[:port][/bucket]`, and how to reach it."""

    base: str
    region: str
    secrets: Secrets
    timeout: float = 10.0
    tls: ssl.SSLContext | None = None

    def ask(self, method: str, key: str = "", arguments: Mapping[str, str] | None = None, body: bytes = b"") -> Answer:
        """One request on a connection of its own.  Raises OSError and http.client.HTTPException."""
        url = urlsplit(self.base)
        path = quote(f"{url.path.rstrip('/')}/{key}", UNRESERVED + "/")
        query = query_of(arguments or {})
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        headers = {
            "host": url.netloc,
            "x-amz-content-sha256": hashlib.sha256(body).hexdigest(),
            "x-amz-date": stamp,
        }
        if self.secrets.session_token:
            headers["x-amz-security-token"] = self.secrets.session_token
        headers["authorization"] = signature(self.secrets, self.region, method, path, query, headers, stamp)
        host, port = url.hostname or "", url.port
        connection = (
            http.client.HTTPSConnection(host, port, timeout=self.timeout, context=self.tls)
            if url.scheme == "https"
            else http.client.HTTPConnection(host, port, timeout=self.timeout)
        )
        try:
            connection.request(method, f"{path}?{query}" if query else path, body, headers)
            answer = connection.getresponse()
            return Answer(answer.status, {name.lower(): text for name, text in answer.getheaders()}, answer.read())
        finally:
            connection.close()


def tls_of(config: BucketConfig) -> ssl.SSLContext | None:
    """How the bucket's server is trusted; None where it is asked in the clear.

    Raises OSError for a `ca_file` that cannot be read.
    """
    if not config.base().startswith("https:"):
        return None
    tls = ssl.create_default_context()
    if config.ca_file is not None:
        tls.load_verify_locations(config.ca_file)
    if not config.verify_tls:
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    return tls


def rest_of(config: BucketConfig, secrets: Secrets | None) -> Rest | None:
    """What to ask a configured bucket with; None where the credentials are an instance's, which only obstore has.

    Raises OSError for a `ca_file` that cannot be read.
    """
    known = secrets or plain_secrets()
    if known is None:
        return None
    return Rest(config.base(), config.region_name(), known, tls=tls_of(config))
