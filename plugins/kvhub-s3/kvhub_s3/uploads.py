"""Uploads in parts that a killed writer began and never ended: invisible, and paid for until they are aborted."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from xml.etree import ElementTree

import attrs

from kvhub_s3 import failures
from kvhub_s3.rest import Answer, Rest

AGE_SECONDS = 24 * 3600.0
"""Far above any upload of a chunk."""


@attrs.frozen
class Upload:
    """One unfinished upload; `age` in seconds, on the server's clock."""

    key: str
    id: str
    age: float


def _asked(rest: Rest, method: str, key: str = "", **arguments: str) -> Answer:
    try:
        answer = rest.ask(method, key, {name.replace("_", "-"): text for name, text in arguments.items()})
    except TimeoutError:
        raise failures.Timeout("no answer in time") from None
    except (OSError, http.client.HTTPException):
        raise failures.Unreachable("no connection") from None
    if answer.status >= 300 and answer.status != 404:
        raise failures.of_status(answer.status)
    return answer


def unfinished(rest: Rest, prefix: str) -> Iterator[Upload]:
    """Uploads of keys below `prefix`, oldest first per key.  Raises `Failure`.

    https://docs.aws.amazon.com/AmazonS3/latest/API/API_ListMultipartUploads.html
    """
    after: dict[str, str] = {}
    while True:
        answer = _asked(rest, "GET", uploads="", prefix=prefix, **after)
        if answer.status == 404:
            return
        now = parsedate_to_datetime(answer.headers["date"]) if "date" in answer.headers else datetime.now(UTC)
        tree = ElementTree.fromstring(answer.body)
        space = tree.tag.rpartition("}")[0] + "}" if tree.tag.startswith("{") else ""
        for found in tree.iter(f"{space}Upload"):
            begun = datetime.fromisoformat(found.findtext(f"{space}Initiated", "").replace("Z", "+00:00"))
            yield Upload(
                found.findtext(f"{space}Key", ""),
                found.findtext(f"{space}UploadId", ""),
                (now - begun).total_seconds(),
            )
        if tree.findtext(f"{space}IsTruncated") != "true":
            return
        after = {
            "key_marker": tree.findtext(f"{space}NextKeyMarker", ""),
            "upload_id_marker": tree.findtext(f"{space}NextUploadIdMarker", ""),
        }


def abort(rest: Rest, key: str, upload_id: str) -> bool:
    """End an upload; whether this call did.  Raises `Failure`."""
    return _asked(rest, "DELETE", key, uploadId=upload_id).status != 404


def sweep(rest: Rest, prefix: str, older_than: float) -> int:
    """Abort what is older; how many.  Raises `Failure`."""
    old = [upload for upload in unfinished(rest, prefix) if upload.age > older_than]
    for upload in old:
        abort(rest, upload.key, upload.id)
    return len(old)
