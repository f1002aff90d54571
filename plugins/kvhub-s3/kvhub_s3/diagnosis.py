"""What `kvhub doctor` tells of a bucket's server: whether it answers, how quickly, and what its clock says."""

from __future__ import annotations

import http.client
import ssl
import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

from kvhub.findings import Finding, failed, passed, warned
from kvhub_s3.config import BucketConfig
from kvhub_s3.download import meaning
from kvhub_s3.rest import tls_of

SERVER, CLOCK = "server", "clock"
REFUSED_FROM = 900.0
"""Seconds between the clocks from which S3 refuses a signature:
https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html (RequestTimeTooSkewed)"""
TOLD_FROM = 60.0
_STEP = "synchronise this machine's clock, with NTP for instance"


def findings(config: BucketConfig) -> Iterator[Finding]:
    """By one request without credentials, whose answer carries the server's date whatever it is."""
    try:
        base = config.base()
        tls = tls_of(config)
    except (OSError, ValueError):
        return  # opening the store tells of it
    began = time.time()
    try:
        date = _date(base, config, tls)
    except (OSError, ValueError, http.client.HTTPException) as error:
        yield failed(SERVER, f"{base} {meaning(error).sentence().partition('; ')[0]}", "check endpoint, routes and TLS")
        return
    took = time.time() - began
    yield passed(SERVER, f"{base} answers in {1000 * took:.0f} ms")
    if date is None:
        yield warned(CLOCK, "the server tells no date", f"{_STEP}, since S3 refuses one that is 15 minutes off")
        return
    ahead = began + took / 2 - date
    told = f"this machine's is {ahead:+.0f} s from the server's"
    if abs(ahead) >= REFUSED_FROM:
        yield failed(CLOCK, f"{told}, and S3 refuses requests from 900 s on", _STEP)
    elif abs(ahead) >= TOLD_FROM:
        yield warned(CLOCK, f"{told}, and S3 refuses requests from 900 s on", _STEP)
    else:
        yield passed(CLOCK, told)


def _date(base: str, config: BucketConfig, tls: ssl.SSLContext | None) -> float | None:
    """Seconds since 1970 that the server's answer is dated; None where it is not."""
    url = urlsplit(base)
    timeout = config.connect_timeout + config.stall_timeout
    connection = (
        http.client.HTTPSConnection(url.hostname or "", url.port, timeout=timeout, context=tls)
        if url.scheme == "https"
        else http.client.HTTPConnection(url.hostname or "", url.port, timeout=timeout)
    )
    try:
        connection.request("HEAD", url.path or "/")
        text = connection.getresponse().getheader("Date")
    finally:
        connection.close()
    return parsedate_to_datetime(text).timestamp() if text else None
