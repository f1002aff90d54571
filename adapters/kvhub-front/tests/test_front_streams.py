"""Streams, and clients that go away (G06, G11, G12)."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from typing import Any

import pytest
from aiohttp import web

from kvhub_front.events import EventCutter


def streams(*pieces: bytes, every: float = 0.0, then: str = "end"):
    async def behaviour(engine, request, body):
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
            await asyncio.sleep(every)
        if then == "die":
            request.transport.abort()
        if then == "hang":
            await asyncio.sleep(30)
        return response

    return behaviour


def event(text: str) -> bytes:
    return b"data: " + json.dumps({"choices": [{"text": text}]}).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


def test_G11_events_come_as_they_are_made(rig) -> None:
    async def scenario() -> None:
        async with rig(decode=streams(*map(event, "abcde"), DONE, every=0.1)) as r, r.post(stream=True) as answer:
            assert answer.headers["Content-Type"].startswith("text/event-stream")
            assert answer.headers["x-kvhub-prefill"] == "remote"
            came, text = [], b""
            async for data in answer.content.iter_any():
                text += data
                came.append(time.monotonic())
            assert text == b"".join(map(event, "abcde")) + DONE
            gaps = [after - before for before, after in itertools.pairwise(came)]
            assert len(gaps) == 5
            assert all(0.05 < gap < 0.5 for gap in gaps), gaps

    asyncio.run(scenario())


def test_G11_a_slow_client_does_not_fill_the_front(rig) -> None:
    """The engine can be ahead of a client by what sockets and two bounded buffers hold, not by the whole answer."""
    sent = 0

    async def floods(engine, request, body):
        nonlocal sent
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        while True:
            await response.write(event("x" * 65536))
            sent += 65536

    async def scenario() -> None:
        async with rig(decode=floods) as r:
            async with r.post(stream=True) as answer:
                await answer.content.read(1)
                before = -1
                while before != sent:
                    before = sent
                    await asyncio.sleep(0.2)
                assert sent < 64 << 20
            await until(lambda: r.decode.running == 0)

    asyncio.run(scenario())


@pytest.mark.parametrize("then", ["die", "end"])
def test_G12_a_stream_that_breaks_ends_with_one_error_event(rig, then: str) -> None:
    async def scenario() -> None:
        half = event("c")[:11]
        async with rig(decode=streams(event("a"), event("b"), half, every=0.02, then=then)) as r:
            async with r.post(stream=True) as answer:
                text = await answer.text()
            assert answer.status == 200
            assert text.endswith("\n\n")
            events = [json.loads(one.removeprefix("data: ")) for one in text.split("\n\n")[:-1]]
            assert [one["choices"][0]["text"] for one in events[:-1]] == ["a", "b"]
            assert events[-1]["error"]["code"] == 502
            assert "[DONE]" not in text
            assert r.front.counts["decode_failures"] == 1

    asyncio.run(scenario())


def test_G12_a_broken_answer_that_is_no_stream_is_a_5xx(rig) -> None:
    async def half(engine, request, body):
        response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": "100"})
        await response.prepare(request)
        await response.write(b'{"choices": ')
        request.transport.close()
        return response

    async def scenario() -> None:
        async with rig(decode=half) as r, r.post() as answer:
            assert answer.status == 502
            assert "went away" in (await answer.json())["error"]["message"]

    asyncio.run(scenario())


def test_errors_before_the_first_event_keep_their_status(rig) -> None:
    async def refuses(engine, request, body):
        return web.json_response({"error": {"message": "bad", "type": "t"}}, status=422)

    async def scenario() -> None:
        async with rig(decode=refuses) as r, r.post(stream=True) as answer:
            assert answer.status == 422

    asyncio.run(scenario())


async def until(true: Any, within: float = 1.0) -> None:
    deadline = time.monotonic() + within
    while not true():
        assert time.monotonic() < deadline, "did not happen in time"
        await asyncio.sleep(0.01)


async def waits(engine, request, body):
    await asyncio.sleep(30)
    return web.Response()


@pytest.mark.parametrize("stream", [False, True])
def test_G06_a_client_gone_during_prefill_cancels_it_and_decode_never_starts(rig, stream: bool) -> None:
    async def scenario() -> None:
        async with rig(prefill=waits) as r:
            asking = asyncio.ensure_future(_drain(r, stream=stream))
            await until(lambda: r.prefill.running == 1)
            asking.cancel()
            await until(lambda: r.prefill.running == 0)
            assert r.prefill.cancelled_at
            await asyncio.sleep(0.05)
            assert r.decode.bodies == []
            assert r.front.counts["client_gone"] == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("decode", [waits, streams(event("a"), then="hang")])
def test_G06_a_client_gone_during_decode_cancels_it(rig, decode: Any) -> None:
    async def scenario() -> None:
        async with rig(decode=decode) as r:
            asking = asyncio.ensure_future(_drain(r, stream=True))
            await until(lambda: r.decode.running == 1)
            await asyncio.sleep(0.05)
            asking.cancel()
            await until(lambda: r.decode.running == 0)
            assert r.decode.cancelled_at

    asyncio.run(scenario())


async def _drain(r: Any, **body: Any) -> bytes:
    async with r.post(**body) as answer:
        return bytes(await answer.read())


def test_headers_that_identify_a_request_reach_both_legs(rig) -> None:
    async def scenario() -> None:
        async with rig() as r:
            sent = {"Authorization": "Bearer k", "X-Request-Id": "q1", "Cookie": "secret"}
            async with r.client.post(r.url + "/v1/completions", json={"prompt": "a"}, headers=sent) as answer:
                assert answer.status == 200
            for engine in (r.prefill, r.decode):
                (seen,) = ({name.lower(): value for name, value in one.items()} for one in engine.headers)
                assert seen["authorization"] == "Bearer k"
                assert seen["x-request-id"] == "q1"
                assert "cookie" not in seen

    asyncio.run(scenario())


@pytest.mark.parametrize("path", ["/health", "/v1/models"])
def test_questions_go_to_decode(rig, path: str) -> None:
    async def scenario() -> None:
        async with rig() as r, r.client.get(r.url + path) as answer:
            assert answer.status == 200
            assert r.decode.paths == [path]
            assert r.prefill.paths == []

    asyncio.run(scenario())


def test_events_are_cut_wherever_the_bytes_are_split() -> None:
    for end in ("\n\n", "\r\n\r\n"):
        text = f"data: a{end}: comment{end}data: b{end}data: [DONE]{end}".encode()
        for size in range(1, len(text)):
            cutter, out = EventCutter(), []
            for at in range(0, len(text), size):
                out.append(cutter.feed(text[at : at + size]))
                assert not out[-1] or out[-1].endswith(end.encode())
            assert b"".join(out) == text
            assert cutter.done


def test_done_inside_a_text_is_no_end() -> None:
    cutter = EventCutter()
    cutter.feed(b'data: {"text": "data: [DONE]"}\n\n')
    assert not cutter.done


def test_an_event_without_end_is_refused() -> None:
    cutter = EventCutter(most_bytes=10)
    with pytest.raises(ValueError, match="longer than 10 bytes"):
        cutter.feed(b"x" * 11)
