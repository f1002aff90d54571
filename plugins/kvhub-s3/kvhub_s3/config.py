"""The options of a bucket store, and what they resolve to: an address, a region, credentials."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import attrs

from kvhub.environ import PREFIX as OPTIONS_PREFIX
from kvhub.errors import KvhubError
from kvhub.units import seconds, size

MOST_WORKERS = 256
LEAST_PART = 5 << 20
"""S3's own limit: https://docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html"""
MOST_PART = 1 << 30
DEFAULT_REGION = "us-east-1"
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_SEGMENT = re.compile(r"[A-Za-z0-9!_.'()*-]+")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")


def _bucket(value: str) -> str:
    if not isinstance(value, str) or not _BUCKET.fullmatch(value):
        raise ValueError(f"expected a bucket's name (3 to 63 of a-z, 0-9, '.' and '-'), found {value!r}")
    return value


def _prefix(value: str) -> str:
    parts = value.split("/") if isinstance(value, str) else [""]
    if value != "" and not all(_SEGMENT.fullmatch(part) and part.strip(".") for part in parts):
        raise ValueError(f"expected words of A-Z, a-z, 0-9 and !_.'()*- with single '/' between, found {value!r}")
    return value


def _endpoint(value: str | None) -> str | None:
    if value is None:
        return None
    url = urlsplit(value) if isinstance(value, str) else urlsplit("")
    if url.scheme not in ("http", "https") or not url.hostname or url.path.strip("/") or url.query or url.fragment:
        raise ValueError("expected an address such as https://s3.example.com:9000, without bucket, path or query")
    if url.username is not None or url.password is not None:
        raise ValueError("an address takes no credentials; name their variables with 'credentials: {env: PREFIX}'")
    return f"{url.scheme}://{url.netloc}"


def _variables(value: str) -> str:
    if not isinstance(value, str) or not _VARIABLE.fullmatch(value) or value.startswith(OPTIONS_PREFIX):
        raise ValueError(
            f"expected the beginning of variables' names, such as POOL for POOL_ACCESS_KEY_ID, and not "
            f"{OPTIONS_PREFIX}..., which is kept for options; found {value!r}"
        )
    return value


def _worker_count(value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_WORKERS:
        raise ValueError(f"expected a number of workers from 1 to {MOST_WORKERS}, found {value!r}")
    return value


def _part(value: str | int) -> int:
    bytes_ = size(value)
    if not LEAST_PART <= bytes_ <= MOST_PART:
        raise ValueError(f"expected a part of 5MiB to 1GiB, which is what S3 takes, found {value!r}")
    return bytes_


def _time(value: str | float) -> float:
    found = seconds(value)
    if not 0.05 <= found <= 600.0:
        raise ValueError(f"expected a time from 50ms to 600s, found {value!r}")
    return found


def loopback(address: str) -> bool:
    """Whether an endpoint is on this very machine."""
    host = urlsplit(address).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def hold_to_https(address: str | None, allow_http: bool) -> None:
    """Raise ValueError for an address in the clear that nobody asked for."""
    if address and address.startswith("http:") and not allow_http and not loopback(address):
        raise ValueError(
            f"{address} is in the clear: KV tells prompts, and whoever is on the way reads and replaces it; use "
            "https, or say allow_http: true"
        )


def _safe(instance: BucketConfig, attribute: Any, value: str | None) -> None:
    hold_to_https(value, instance.allow_http)


@attrs.frozen
class Credentials:
    """Where the credentials come from."""

    env: str = attrs.field(
        converter=_variables,
        metadata={"help": "PREFIX of PREFIX_ACCESS_KEY_ID, PREFIX_SECRET_ACCESS_KEY and PREFIX_SESSION_TOKEN"},
    )


@attrs.frozen
class BucketConfig:
    """The options of a bucket store."""

    bucket: str = attrs.field(converter=_bucket, metadata={"help": "the bucket; it must exist"})
    prefix: str = attrs.field(default="", converter=_prefix, metadata={"help": "what all keys begin with"})
    endpoint: str | None = attrs.field(
        default=None,
        converter=_endpoint,
        validator=_safe,
        metadata={"help": "address of an S3-compatible server; default: AWS_ENDPOINT_URL_S3, then AWS's own"},
    )
    region: str | None = attrs.field(
        default=None, metadata={"help": f"default: AWS_REGION, then AWS_DEFAULT_REGION, then {DEFAULT_REGION}"}
    )
    path_style: bool | None = attrs.field(
        default=None, metadata={"help": "bucket in the path, not in the host's name; default: true with an endpoint"}
    )
    credentials: Credentials | None = attrs.field(
        default=None, metadata={"help": "default: AWS_* variables, web identity, container, instance"}
    )
    allow_http: bool = attrs.field(default=False, metadata={"help": "permit http:// beyond loopback"})
    verify_tls: bool = attrs.field(default=True, metadata={"help": "false accepts any certificate"})
    ca_file: Path | None = attrs.field(
        default=None,
        converter=attrs.converters.optional(Path),
        metadata={"help": "PEM file of certificates that are trusted beside the usual ones"},
    )
    workers: int = attrs.field(default=8, converter=_worker_count, metadata={"help": "requests at once"})
    part_size: int = attrs.field(
        default=16 << 20, converter=_part, metadata={"help": "bytes of a part, for chunks above 64 MiB"}
    )
    connect_timeout: float = attrs.field(default=2.0, converter=_time, metadata={"help": "until a connection is there"})
    stall_timeout: float = attrs.field(
        default=2.0,
        converter=_time,
        metadata={"help": "longest silence of the server while something is looked up or read"},
    )
    load_timeout: float = attrs.field(default=10.0, converter=_time, metadata={"help": "one whole download of a chunk"})
    save_timeout: float = attrs.field(
        default=30.0, converter=_time, metadata={"help": "one upload of a chunk, or of a part of a large one"}
    )
    refresh: float = attrs.field(
        default=86400.0,
        converter=seconds,
        metadata={
            "help": "a chunk that is used and was not written for so long is put anew, for sweepers and rules that go "
            "by age; 0s: never"
        },
    )

    def address(self, environ: Mapping[str, str] = os.environ) -> str | None:
        """The endpoint in force; None means AWS's own.  Raises ValueError for one in the clear."""
        address = self.endpoint or next((environ[name] for name in _ENDPOINTS if environ.get(name)), None)
        hold_to_https(address, self.allow_http)
        return _endpoint(address)

    def region_name(self, environ: Mapping[str, str] = os.environ) -> str:
        """The region in force."""
        return self.region or next((environ[name] for name in _REGIONS if environ.get(name)), DEFAULT_REGION)

    def by_path(self, address: str | None) -> bool:
        """Whether the bucket is put into the path of a URL, for the endpoint that is in force."""
        return address is not None if self.path_style is None else self.path_style

    def base(self, environ: Mapping[str, str] = os.environ) -> str:
        """Where the bucket is: `https://host/bucket`, or `https://bucket.host`."""
        address = self.address(environ)
        url = urlsplit(address or f"https://s3.{self.region_name(environ)}.amazonaws.com")
        if self.by_path(address):
            return f"{url.scheme}://{url.netloc}/{self.bucket}"
        return f"{url.scheme}://{self.bucket}.{url.netloc}"


@attrs.frozen
class Secrets:
    """What requests are signed with.  Never shown."""

    access_key_id: str = attrs.field(repr=False)
    secret_access_key: str = attrs.field(repr=False)
    session_token: str = attrs.field(default="", repr=False)


def named_secrets(config: BucketConfig, member: str, environ: Mapping[str, str] = os.environ) -> Secrets | None:
    """The credentials that `credentials` names; None leaves them to obstore's chain.  Raises KvhubError."""
    if config.credentials is None:
        return None
    prefix = config.credentials.env
    return _read(prefix, environ, f"{member}: credentials.env is {prefix}, and ")


def plain_secrets(environ: Mapping[str, str] = os.environ) -> Secrets | None:
    """The chain's first link, `AWS_ACCESS_KEY_ID` and so on; None where it is another."""
    try:
        return _read("AWS", environ, "")
    except KvhubError:
        return None


def _read(prefix: str, environ: Mapping[str, str], head: str) -> Secrets:
    names = [f"{prefix}_ACCESS_KEY_ID", f"{prefix}_SECRET_ACCESS_KEY"]
    if missing := [name for name in names if not environ.get(name)]:
        many = len(missing) > 1
        raise KvhubError(
            f"{head}{' and '.join(missing)} {'are' if many else 'is'} not set; export {'them' if many else 'it'}"
        )
    return Secrets(environ[names[0]], environ[names[1]], environ.get(f"{prefix}_SESSION_TOKEN", ""))
