"""The front's HTTP application."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
from aiohttp import web

from kvhub_front.bodies import CHAT, COMPLETIONS, decode_body, is_batch, prefill_body, problem
from kvhub_front.config import LOCAL, FrontConfig
from kvhub_front.engines import Engines
from kvhub_front.events import EventCutter
from kvhub_front.failures import LegFailed, failed
from kvhub_front.legs import Legs, passed_headers
from kvhub_front.peers import NAME, Peers

PREFILL_HEADER = "x-kvhub-prefill"
"""How the prompt was computed: `remote` (prefill handed KV over), `empty` (prefill ran and handed nothing over),
`local` (prefill failed and the policy is `local`), `streamed` (decode was asked at the same time; what prefill did is
not known when the answer begins), `skipped` (several prompts in one request)."""
_COUNTERS = ("requests", "streamed", "fallback", "prefill_failures", "decode_failures", "client_gone")


class Front:
    """One front: its engines, its counters, its application.

    Serve `application()` with `handler_cancellation=True`; without it a client that goes away is noticed only when
    its answer is written, and the legs run on.
    """

    def __init__(self, config: FrontConfig) -> None:
        self.config = config
        self.counts: Counter[str] = Counter()
        self._prefill = Engines(config.prefill)
        self._decode = Engines(config.decode)
        self._peers = Peers()
        self._legs: Legs

    def application(self) -> web.Application:
        """The application; connections to engines live as long as it runs."""
        app = web.Application(client_max_size=256 << 20)
        app.cleanup_ctx.append(self._connected)
        app.router.add_post(COMPLETIONS, self._complete)
        app.router.add_post(CHAT, self._complete)
        app.router.add_get("/health", self._ask)
        app.router.add_get("/v1/models", self._ask)
        app.router.add_get("/metrics", self._metrics)
        return app

    async def _connected(self, app: web.Application) -> AsyncIterator[None]:
        self._legs = Legs(self.config.hosts, connect_deadline=self.config.connect_deadline)
        yield
        await self._legs.close()

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        self.counts["requests"] += 1
        try:
            return await self._both_legs(request)
        except LegFailed as why:
            if why.leg != "client":
                self.counts[f"{why.leg}_failures"] += 1
            headers = {"Retry-After": why.retry_after} if why.retry_after else None
            return web.Response(status=why.status, body=why.body(), content_type="application/json", headers=headers)
        except (asyncio.CancelledError, ConnectionError):
            self.counts["client_gone"] += 1
            raise

    async def _both_legs(self, request: web.Request) -> web.StreamResponse:
        client = _parsed(request.path, await request.read())
        headers = passed_headers(request.headers)
        if is_batch(request.path, client):
            return await self._second_leg(request, client, None, "skipped", headers)
        prefill = self._prefill.choose()
        entries = self._peers.promise(prefill) if self.config.streaming else None
        if entries is not None:
            return await self._legs_at_once(request, client, prefill, entries, headers)
        try:
            params, how = await self._first_leg(prefill, request.path, client, headers)
        finally:
            self._prefill.left(prefill)
        return await self._second_leg(request, client, params, how, headers)

    async def _first_leg(
        self, prefill: str, path: str, client: dict[str, Any], headers: dict[str, str]
    ) -> tuple[dict[str, Any] | None, str]:
        try:
            params = await self._ask_prefill(prefill, path, prefill_body(path, client), headers)
        except LegFailed as why:
            if why.by_request or self.config.on_prefill_failure != LOCAL:
                raise
            self.counts["prefill_failures"] += 1
            self.counts["fallback"] += 1
            return None, "local"
        return params, "empty" if params is None else "remote"

    async def _ask_prefill(
        self, prefill: str, path: str, body: dict[str, Any], headers: dict[str, str]
    ) -> dict[str, Any] | None:
        try:
            params = await self._legs.prefill(prefill, path, body, headers, deadline=self.config.prefill_deadline)
        except LegFailed as why:
            if not why.by_request:
                self._peers.forget(prefill)
            raise
        self._peers.told(prefill, params)
        return params

    async def _legs_at_once(
        self,
        request: web.Request,
        client: dict[str, Any],
        prefill: str,
        entries: tuple[dict[str, Any], dict[str, Any]],
        headers: dict[str, str],
    ) -> web.StreamResponse:
        """Decode answers, whatever becomes of prefill; when decode has ended nobody needs prefill any more."""
        self.counts["streamed"] += 1
        body = prefill_body(request.path, client, entries[0])
        leg = asyncio.ensure_future(self._prefill_behind(prefill, request.path, body, headers))
        leg.add_done_callback(lambda _: self._prefill.left(prefill))
        try:
            return await self._second_leg(request, client, {NAME: entries[1]}, "streamed", headers)
        finally:
            leg.cancel()
            await asyncio.wait([leg])

    async def _prefill_behind(self, prefill: str, path: str, body: dict[str, Any], headers: dict[str, str]) -> None:
        try:
            await self._ask_prefill(prefill, path, body, headers)
        except LegFailed:
            # Decode computes what does not come; what is wrong with the request itself it tells the client.
            self.counts["prefill_failures"] += 1
            self.counts["fallback"] += 1

    async def _second_leg(
        self, request: web.Request, client: dict[str, Any], params: dict[str, Any] | None, how: str,
        headers: dict[str, str],
    ) -> web.StreamResponse:  # fmt: skip
        body = decode_body(client, params)
        with self._decode.one() as decode:
            async with self._legs.open("decode", decode, request.path, body, headers) as answer:
                if client.get("stream") and answer.content_type == "text/event-stream":
                    return await self._stream(request, answer, how)
                try:
                    told = await answer.read()
                except aiohttp.ClientError:
                    raise failed(
                        "decode", 502, "the decode engine went away while it answered", "bad_gateway"
                    ) from None
                return web.Response(body=told, content_type=answer.content_type, headers={PREFILL_HEADER: how})

    async def _stream(self, request: web.Request, answer: aiohttp.ClientResponse, how: str) -> web.StreamResponse:
        """Pass events on as they come; a failure after the first byte is told as one event, then the end."""
        kind = "text/event-stream; charset=utf-8"
        response = web.StreamResponse(headers={"Content-Type": kind, "Cache-Control": "no-cache", PREFILL_HEADER: how})
        await response.prepare(request)
        events = EventCutter()
        why = "the decode engine's stream ended early"
        while True:
            try:
                data = await answer.content.readany()
                whole = events.feed(data)
            except aiohttp.ClientError:
                why = "the decode engine went away while it answered"
                break
            except ValueError as error:
                why = str(error)
                break
            if not data:
                break
            if whole:
                await response.write(whole)
        if not events.done:
            self.counts["decode_failures"] += 1
            await response.write(b"data: " + failed("decode", 502, why, "bad_gateway").body() + b"\n\n")
        await response.write_eof()
        return response

    async def _ask(self, request: web.Request) -> web.Response:
        try:
            with self._decode.one() as decode:
                status, body, kind = await self._legs.get(decode, request.path, passed_headers(request.headers))
        except LegFailed as why:
            return web.Response(status=why.status, body=why.body(), content_type="application/json")
        return web.Response(status=status, body=body, content_type=kind)

    async def _metrics(self, request: web.Request) -> web.Response:
        lines = []
        for name in _COUNTERS:
            lines += [f"# TYPE kvhub_front:{name}_total counter", f"kvhub_front:{name}_total {self.counts[name]}"]
        return web.Response(text="\n".join(lines) + "\n")


def _parsed(path: str, raw: bytes) -> dict[str, Any]:
    try:
        client: Any = json.loads(raw)
    except ValueError:
        raise failed("client", 400, "the request body is not JSON", "invalid_request_error") from None
    if (why := problem(path, client)) is not None:
        raise failed("client", 400, why, "invalid_request_error")
    return dict(client)
