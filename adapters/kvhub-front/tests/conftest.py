"""Fake engines on free loopback ports and a front before them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import attrs
import pytest
from aiohttp import web

from kvhub_front import Front, FrontConfig

Behaviour = Callable[["FakeEngine", web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]
PARAMS = {"peer": "127.0.0.1:7700", "incarnation": "abc", "chunks": 3}


async def hands_over(engine: FakeEngine, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    return web.json_response({"choices": [{"text": "x"}], "kv_transfer_params": PARAMS})


async def answers(engine: FakeEngine, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    return web.json_response({"choices": [{"text": "hello"}], "usage": {"completion_tokens": 1}})


class FakeEngine:
    """An engine that behaves as told and remembers what it was asked and when it was cancelled."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.bodies: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.cancelled_at: list[float] = []
        self.running = 0
        self.url = ""

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.json() if request.can_read_body else {})
        self.paths.append(request.path)
        self.headers.append(dict(request.headers))
        self.running += 1
        try:
            return await self.behaviour(self, request, self.bodies[-1])
        except asyncio.CancelledError:
            self.cancelled_at.append(time.monotonic())
            raise
        finally:
            self.running -= 1

    @contextlib.asynccontextmanager
    async def up(self) -> AsyncIterator[FakeEngine]:
        app = web.Application(client_max_size=256 << 20)
        app.router.add_route("*", "/{path:.*}", self._serve)
        async with served(app) as self.url:
            yield self


@contextlib.asynccontextmanager
async def served(app: web.Application) -> AsyncIterator[str]:
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@attrs.frozen
class Rig:
    prefill: FakeEngine
    decode: FakeEngine
    front: Front
    url: str
    client: aiohttp.ClientSession

    def post(self, path: str = "/v1/completions", /, **body: Any) -> Any:
        """A request to the front, as aiohttp's request context."""
        return self.client.post(self.url + path, json={"model": "m", "prompt": "hi", **body})


@contextlib.asynccontextmanager
async def _rig(
    prefill: Behaviour = hands_over, decode: Behaviour = answers, *, prefill_at: list[str] | None = None, **config: Any
) -> AsyncIterator[Rig]:
    async with FakeEngine(prefill).up() as first, FakeEngine(decode).up() as second:
        front = Front(FrontConfig(prefill=prefill_at or [first.url], decode=[second.url], **config))
        async with served(front.application()) as url, aiohttp.ClientSession() as client:
            yield Rig(first, second, front, url, client)


@attrs.frozen
class Fleet:
    prefills: list[FakeEngine]
    decodes: list[FakeEngine]
    url: str
    client: aiohttp.ClientSession


@contextlib.asynccontextmanager
async def _fleet(prefills: list[Behaviour], decodes: list[Behaviour], **config: Any) -> AsyncIterator[Fleet]:
    async with contextlib.AsyncExitStack() as stack:
        first = [await stack.enter_async_context(FakeEngine(one).up()) for one in prefills]
        second = [await stack.enter_async_context(FakeEngine(one).up()) for one in decodes]
        front = Front(FrontConfig(prefill=[one.url for one in first], decode=[one.url for one in second], **config))
        url = await stack.enter_async_context(served(front.application()))
        yield Fleet(first, second, url, await stack.enter_async_context(aiohttp.ClientSession()))


@pytest.fixture
def fleet() -> Callable[..., contextlib.AbstractAsyncContextManager[Fleet]]:
    """`async with fleet(prefills, decodes, **config) as f`: several engines of each kind, by what they do."""
    return _fleet


@pytest.fixture
def rig() -> Callable[..., contextlib.AbstractAsyncContextManager[Rig]]:
    """`async with rig(prefill=..., decode=..., **config) as r`: fake engines, a front and a client."""
    return _rig


@pytest.fixture
def closed_port() -> str:
    """An address on which nothing listens."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"
