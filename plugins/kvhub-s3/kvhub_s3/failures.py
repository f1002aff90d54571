"""What a bucket can answer instead of doing as it was asked: a class for each, told from obstore's errors.

A class's name is the `reason` of a completion.  obstore has few classes of errors of its own and puts the rest into
their text: status, S3's error code and, for what never got an answer, the kind of the HTTP client's error.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import ClassVar

from obstore import exceptions

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>\s*(\w{1,64})\s*</Code>")
_TIMES = re.compile(r"<RequestTime>([^<]{1,40})</RequestTime>.*?<ServerTime>([^<]{1,40})</ServerTime>", re.DOTALL)


class Failure(Exception):
    """Nothing is known of the object.  The text is short and has no keys, no secrets and no request in it."""

    again: ClassVar[bool] = False
    """Whether the same request may work in a moment."""
    advice: ClassVar[str] = "answered what kvhub does not know ({text}); look into the server's log"

    def sentence(self) -> str:
        """For an operator, after the bucket's name."""
        return self.advice.format(text=self)


class SlowDown(Failure):
    again = True
    advice = "is throttled ({text}); lower 'workers', spread the load over more prefixes or ask for a higher rate"


class Full(Failure):
    advice = "is full, or over its quota ({text}); raise that, or remove chunks with kvhub pool gc"


class ServerError(Failure):
    again = True
    advice = "is at a server that fails ({text}); look into its log"


class Broken(Failure):
    again = True
    advice = "broke the connection off ({text}); check the server and what stands before it"


class Timeout(Failure):
    advice = "did not answer in time ({text}); check that the server is up, or raise the timeouts"


class Unreachable(Failure):
    again = True
    advice = "cannot be reached ({text}); check endpoint, name service, routes and firewalls"


class BadTls(Failure):
    advice = (
        "has no TLS that can be trusted ({text}); name its authority's certificates with ca_file, or check that "
        "the endpoint speaks TLS"
    )


class Denied(Failure):
    advice = "does not permit this ({text}); check the credentials and the policy in docs/s3.md"

    @property
    def explained(self) -> bool:
        """Whether the server said more than a status; to a HEAD it cannot."""
        return not str(self).isdigit()


class NoListing(Denied):
    advice = (
        "answers 403 for an object that does not exist ({text}): the credentials permit no reading here, or lack "
        "s3:ListBucket, without which a miss cannot be told from a refusal; grant what docs/s3.md lists"
    )


class NoCredentials(Denied):
    advice = (
        "needs credentials and none were found; name variables with 'credentials: {{env: PREFIX}}' or set "
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    )


class ClockSkew(Denied):
    advice = "refuses this machine's clock ({text}); synchronise it, with NTP for instance"


class NoBucket(Failure):
    advice = "does not exist; create it or name another"


class WrongRegion(Failure):
    advice = "is in another region, or at another endpoint ({text}); set region and endpoint to its own"


class Refused(Failure):
    advice = "refuses the request ({text}); check bucket, endpoint, path_style and region"


class Forked(Failure):
    advice = (
        "cannot be used in a process that was forked after S3 had been used in its parent: obstore's threads do not "
        "come along; open the hub in the child only, or start the child with spawn"
    )


_BY_CODE: dict[str, type[Failure]] = {
    "SlowDown": SlowDown,
    "TooManyRequests": SlowDown,
    "RequestLimitExceeded": SlowDown,
    "ServiceUnavailable": SlowDown,
    "QuotaExceeded": Full,
    "InsufficientStorage": Full,
    "XMinioStorageFull": Full,
    "XMinioAdminBucketQuotaExceeded": Full,
    "RequestTimeTooSkewed": ClockSkew,
    "NoSuchBucket": NoBucket,
    "PermanentRedirect": WrongRegion,
    "TemporaryRedirect": WrongRegion,
    "AuthorizationHeaderMalformed": WrongRegion,
    "IllegalLocationConstraintException": WrongRegion,
    "ExpiredToken": Denied,
    "InvalidToken": Denied,
    "InvalidAccessKeyId": Denied,
    "RequestTimeout": Broken,
}
_TLS = ("certificate", "handshake", "UnknownIssuer", "InvalidMessage", "CertNotValid", "tls", "InvalidContentType")
_SILENT = (
    ("TimedOut", Timeout),
    ("kind: Timeout", Timeout),
    ("ConnectionReset", Broken),
    ("kind: Connect", Unreachable),
)

_SAID = {Timeout: "no answer in time", Unreachable: "no connection", Broken: "the connection broke off"}


def of_status(status: int, code: str = "", text: str = "") -> Failure:
    """What an answer of this status and S3 error code means."""
    said = f"{status} {code}".strip()
    if code == "RequestTimeTooSkewed":
        return ClockSkew(said + _difference(text))
    if known := _BY_CODE.get(code):
        return known(said)
    if status == 507:
        return Full(said)
    if status in (429, 503):
        return SlowDown(said)
    if status >= 500:
        return ServerError(said)
    if status in (401, 403):
        return Denied(said)
    return (WrongRegion if 300 <= status < 400 else Refused)(said)


def absent(error: BaseException) -> bool:
    """Whether obstore says that there is no such object, and not that there is no such bucket."""
    return isinstance(error, FileNotFoundError) and "NoSuchBucket" not in str(error)


def unsatisfiable(error: BaseException) -> bool:
    """Whether a range lies behind the end of the object: only an empty object has no first byte."""
    return "status code: 416" in str(error)


def of(error: BaseException) -> Failure:
    """What obstore's error means.  Never raises."""
    if isinstance(error, Failure):
        return error
    text = str(error)
    if "/latest/api/token" in text or "/latest/meta-data" in text:  # where an instance asks for its own credentials
        return NoCredentials("no credentials")
    status = _STATUS.search(text)
    if status is not None:
        code = _CODE.search(text)
        return of_status(int(status[1]), code[1] if code else "", text)
    if "redirect without LOCATION" in text:
        return WrongRegion("a redirect without a target")
    if any(word in text for word in _TLS):
        return BadTls(next(word for word in _TLS if word in text))
    for word, meaning in _SILENT:
        if word in text:
            return meaning(_SAID[meaning])
    if isinstance(error, exceptions.BaseError | OSError):
        return Broken(_SAID[Broken])
    return Failure(type(error).__name__)


def _difference(text: str) -> str:
    """How far the clocks are apart, as S3's answer tells both; "" where it does not."""
    times = _TIMES.search(text)
    if times is None:
        return ""
    try:
        mine = datetime.strptime(times[1], "%Y%m%dT%H%M%SZ")
        theirs = datetime.strptime(times[2], "%Y-%m-%dT%H:%M:%SZ")
    except ValueError:
        return ""
    return f", this machine's clock is {(mine - theirs).total_seconds():+.0f} s from the server's"
