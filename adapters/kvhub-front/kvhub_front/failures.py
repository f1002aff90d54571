"""What a client may read of a leg's failure: status, message and type; never hosts, addresses or traces."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

_ADDRESSES = re.compile(
    r"\b[a-z][a-z0-9+.-]*://[^\s'\"<>)\]}]+"
    r"|\b\d{1,3}(?:\.\d{1,3}){3}\b(?::\d+)?"
    r"|\[[0-9a-fA-F]*:[0-9a-fA-F]*:[0-9a-fA-F:.]*\](?::\d+)?"
    r"|\b(?:localhost|[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+):\d{2,5}\b"
)
_TRACE = re.compile(r"\s*Traceback \(most recent call last\).*|\s*\bFile \"[^\"]*\", line \d+.*", re.DOTALL)


class LegFailed(Exception):
    """A leg that did not give what was asked for, in the form that the client is told."""

    def __init__(self, leg: str, status: int, error: dict[str, Any], *, retry_after: str | None = None) -> None:
        super().__init__(f"{leg} leg: {status}: {error['message']}")
        self.leg = leg
        self.status = status
        self.error = error
        self.retry_after = retry_after

    @property
    def by_request(self) -> bool:
        """Whether the request is at fault: no other engine would answer it better."""
        return self.status < 500

    def body(self) -> bytes:
        """The OpenAI-style error body."""
        return json.dumps({"error": self.error}).encode()


def failed(leg: str, status: int, message: str, kind: str) -> LegFailed:
    """A failure that the front itself found."""
    return LegFailed(leg, status, {"message": message, "type": kind, "param": None, "code": status})


def answered(leg: str, status: int, raw: bytes, hosts: Iterable[str], retry_after: str | None = None) -> LegFailed:
    """The failure that an engine answered with `status` (not 2xx) and the body `raw`."""
    if not 400 <= status < 600:
        return failed(leg, 502, f"the {leg} engine gave an answer that is none (status {status})", "bad_gateway")
    try:
        told: Any = json.loads(raw)
    except ValueError:
        told = None
    error = told.get("error", told) if isinstance(told, dict) else None
    if isinstance(error, str):
        error = {"message": error}
    if not isinstance(error, dict):
        error = {}
    message = error.get("message", error.get("detail"))
    text = clean(message, hosts) if isinstance(message, str) else ""
    kind = error.get("type")
    param, code = error.get("param"), error.get("code")
    shown = {
        "message": text or f"the {leg} engine answered with status {status}",
        "type": kind if isinstance(kind, str) else ("invalid_request_error" if status < 500 else "server_error"),
        "param": clean(param, hosts) if isinstance(param, str) else None,
        "code": code if isinstance(code, int | str) else status,
    }
    return LegFailed(leg, status, shown, retry_after=retry_after)


def clean(text: str, hosts: Iterable[str]) -> str:
    """`text` without addresses, the names in `hosts`, and stack traces."""
    text = _TRACE.sub("", text)
    text = _ADDRESSES.sub("[engine]", text)
    for host in sorted((host for host in hosts if host), key=len, reverse=True):
        text = re.sub(rf"(?<![\w.-]){re.escape(host)}(?![\w-])(?::\d+)?", "[engine]", text)
    return text.strip()
