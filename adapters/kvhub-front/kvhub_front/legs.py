"""Sending a leg to an engine: what comes back is an answer or a LegFailed, in bounded time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from kvhub_front.bodies import PARAMS
from kvhub_front.failures import LegFailed, answered, failed

_QUESTION_DEADLINE = 10.0
_PASSED_ON = ("authorization", "x-request-id", "traceparent", "tracestate")


def passed_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The client's headers that both legs carry."""
    return {name: value for name, value in headers.items() if name.lower() in _PASSED_ON}


class Legs:
    """Opens connections to engines.  Cancelling a call closes its connection, which is how an engine learns of it."""

    def __init__(self, hosts: frozenset[str], *, connect_deadline: float) -> None:
        self._hosts = hosts
        # A new connection per leg: engines close idle ones without a word, and a POST that meets such a connection
        # fails in a way that cannot be told from an engine that died with the request.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_deadline),
            auto_decompress=False,
            read_bufsize=1 << 18,
        )

    async def close(self) -> None:
        await self._session.close()

    async def prefill(
        self, url: str, path: str, body: Mapping[str, Any], headers: Mapping[str, str], *, deadline: float
    ) -> dict[str, Any] | None:
        """Run a prefill leg; its `kv_transfer_params`, or None when the engine gave none.  Raises LegFailed."""
        try:
            async with asyncio.timeout(deadline), self.open("prefill", url, path, body, headers) as answer:
                told = json.loads(await answer.read())
        except TimeoutError:
            raise failed("prefill", 504, f"prefill did not end within {deadline:g} s", "timeout") from None
        except aiohttp.ClientError:
            raise failed("prefill", 502, "the prefill engine went away while it answered", "bad_gateway") from None
        except ValueError:
            raise failed("prefill", 502, "the prefill engine's answer is not JSON", "bad_gateway") from None
        params = told.get(PARAMS) if isinstance(told, dict) else None
        return params if isinstance(params, dict) and params else None

    @asynccontextmanager
    async def open(
        self, leg: str, url: str, path: str, body: Mapping[str, Any], headers: Mapping[str, str]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer of `leg`, once its status is known and good.  Raises LegFailed.

        What happens while the body is read is the caller's: aiohttp.ClientError when the engine goes away.
        """
        async with self._request(leg, "POST", url + path, headers, json=body) as answer:
            yield answer

    async def get(self, url: str, path: str, headers: Mapping[str, str]) -> tuple[int, bytes, str]:
        """Status, body and content type of a plain question to a decode engine.  Raises LegFailed."""
        try:
            async with (
                asyncio.timeout(_QUESTION_DEADLINE),
                self._request("decode", "GET", url + path, headers) as answer,
            ):
                return answer.status, await answer.read(), answer.content_type
        except TimeoutError:
            message = f"the decode engine did not answer within {_QUESTION_DEADLINE:g} s"
            raise failed("decode", 504, message, "timeout") from None
        except aiohttp.ClientError:
            raise failed("decode", 502, "the decode engine went away while it answered", "bad_gateway") from None

    @asynccontextmanager
    async def _request(
        self, leg: str, method: str, url: str, headers: Mapping[str, str], **more: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        try:
            answer = await self._session.request(method, url, headers=headers, allow_redirects=False, **more)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
            raise failed(leg, 503, f"no {leg} engine can be reached", "service_unavailable") from None
        except aiohttp.ClientError:
            raise failed(leg, 502, f"the {leg} engine went away before it answered", "bad_gateway") from None
        try:
            if answer.status != 200:
                raise await self._told(leg, answer)
            yield answer
        finally:
            answer.close()

    async def _told(self, leg: str, answer: aiohttp.ClientResponse) -> LegFailed:
        try:
            raw = await answer.content.read(1 << 16)
        except aiohttp.ClientError:
            raw = b""
        return answered(leg, answer.status, raw, self._hosts, answer.headers.get("Retry-After"))
