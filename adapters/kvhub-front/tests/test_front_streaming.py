"""Both legs at once: decode is asked while prefill computes, and answers whatever becomes of prefill."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from aiohttp import web

from kvhub_front.engines import Engines
from kvhub_front.peers import Peers


def hub(address: str = "127.0.0.1:7700", incarnation: str = "i1") -> dict[str, Any]:
    return {"kvhub": {"address": address, "incarnation": incarnation, "promise": "p", "tokens": 3}}


async def answers(engine: Any, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    return web.json_response({"choices": [{"text": "hello"}]})


class Gate:
    """A prefill that answers its first request at once and every other when it is let."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.answers: Any = web.json_response
        self.given = hub()
        self.first = True

    async def __call__(self, engine: Any, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if not self.first:
            await self.open.wait()
        self.first = False
        return self.answers({"choices": [{"text": "x"}], "kv_transfer_params": self.given})


async def until(true: Any, within: float = 10.0) -> None:
    async with asyncio.timeout(within):
        while not true():
            await asyncio.sleep(0.01)


async def taught(r: Any) -> None:
    """The first request to a prefill runs one leg after the other: that is how its hub becomes known."""
    async with r.post() as answer:
        assert answer.headers["x-kvhub-prefill"] == "remote"


def test_decode_is_asked_before_prefill_has_answered(rig) -> None:
    async def scenario() -> None:
        gate = Gate()
        async with rig(prefill=gate, streaming=True) as r:
            await taught(r)
            async with r.post(max_tokens=9) as answer:
                assert answer.status == 200
                assert answer.headers["x-kvhub-prefill"] == "streamed"
                assert (await answer.json())["choices"][0]["text"] == "hello"
            assert not gate.open.is_set(), "prefill never answered"
            leg, decode = r.prefill.bodies[1], r.decode.bodies[1]
            given = leg["kv_transfer_params"]
            assert given["do_remote_decode"] is True
            name = given["kvhub"]["promise"]
            assert re.fullmatch("[0-9a-f]{32}", name)
            assert given["kvhub"] == {"promise": name}
            assert decode["kv_transfer_params"] == {
                "kvhub": {"address": "127.0.0.1:7700", "incarnation": "i1", "promise": name, "streaming": True}
            }
            assert decode["max_tokens"] == 9
            await until(lambda: r.prefill.running == 0)
            async with r.post():
                pass
            assert r.prefill.bodies[2]["kv_transfer_params"]["kvhub"]["promise"] != name, "a name is used once"

    asyncio.run(scenario())


def test_without_the_option_nothing_is_sent_ahead(rig) -> None:
    async def scenario() -> None:
        async with rig(prefill=Gate()) as r:
            await taught(r)
            asking = asyncio.ensure_future(drain(r))
            await until(lambda: r.prefill.running == 1)
            await asyncio.sleep(0.05)
            assert len(r.decode.bodies) == 1
            asking.cancel()

    asyncio.run(scenario())


async def drain(r: Any, **body: Any) -> bytes:
    async with r.post(**body) as answer:
        return bytes(await answer.read())


@pytest.mark.parametrize("status", [400, 500, 503])
def test_a_prefill_that_fails_fails_no_request(rig, status: int) -> None:
    """What is wrong with the request itself, decode says; a hub that failed has to be learnt again."""

    async def scenario() -> None:
        gate, slow = Gate(), asyncio.Event()

        async def decode(engine: Any, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
            if len(engine.bodies) == 2:
                await slow.wait()
            return await answers(engine, request, body)

        async with rig(prefill=gate, decode=decode, streaming=True) as r:
            await taught(r)
            gate.answers = lambda told: web.json_response({"error": {"message": "no"}}, status=status)
            gate.open.set()
            asking = asyncio.ensure_future(drain(r))
            await until(lambda: r.front.counts["prefill_failures"] == 1)
            slow.set()
            assert b"hello" in await asking
            assert r.front.counts["fallback"] == 1
            gate.answers = web.json_response
            async with r.post() as answer:
                assert answer.headers["x-kvhub-prefill"] == ("streamed" if status == 400 else "remote")

    asyncio.run(scenario())


@pytest.mark.parametrize("stream", [False, True])
def test_G06_a_client_gone_cancels_both_legs(rig, stream: bool) -> None:
    async def waits(engine: Any, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if len(engine.bodies) > 1:
            await asyncio.sleep(30)
        return web.json_response({})

    async def scenario() -> None:
        async with rig(prefill=Gate(), decode=waits, streaming=True) as r:
            await taught(r)
            asking = asyncio.ensure_future(drain(r, stream=stream))
            await until(lambda: r.prefill.running == r.decode.running == 1)
            asking.cancel()
            await until(lambda: r.prefill.running == r.decode.running == 0)
            assert r.prefill.cancelled_at and r.decode.cancelled_at
            assert r.front.counts["client_gone"] == 1

    asyncio.run(scenario())


def test_G03_a_decode_that_fails_decides_and_ends_prefill(rig) -> None:
    async def refuses(engine: Any, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if len(engine.bodies) == 1:
            return web.json_response({})
        return web.json_response({"error": {"message": "busy", "type": "t"}}, status=503)

    async def scenario() -> None:
        async with rig(prefill=Gate(), decode=refuses, streaming=True) as r:
            await taught(r)
            async with r.post() as answer:
                assert answer.status == 503
            await until(lambda: r.prefill.running == 0)

    asyncio.run(scenario())


def test_events_of_a_streamed_answer_come_as_they_are_made(rig) -> None:
    async def says(engine: Any, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: 1\n\n")
        await go_on.wait()
        await response.write(b"data: [DONE]\n\n")
        return response

    go_on = asyncio.Event()

    async def scenario() -> None:
        async with rig(prefill=Gate(), decode=says, streaming=True) as r:
            go_on.set()
            await drain(r, stream=True)
            go_on.clear()
            async with r.post(stream=True) as answer:
                assert answer.headers["x-kvhub-prefill"] == "streamed"
                assert await answer.content.readany() == b"data: 1\n\n"
                go_on.set()
                assert await answer.content.read() == b"data: [DONE]\n\n"

    asyncio.run(scenario())


def test_a_batch_is_not_streamed(rig) -> None:
    async def scenario() -> None:
        async with rig(prefill=Gate(), streaming=True) as r:
            await taught(r)
            async with r.post(prompt=["a", "b"]) as answer:
                assert answer.headers["x-kvhub-prefill"] == "skipped"

    asyncio.run(scenario())


def test_two_prefills_and_two_decodes_meet_in_every_pair(fleet) -> None:
    """Each request names its pair; each decode is told of the very hub that its prefill is."""

    async def scenario() -> None:
        gates = [Gate(), Gate()]
        for at, gate in enumerate(gates):
            gate.given = hub(f"127.0.0.1:{7700 + at}", f"i{at}")
            gate.open.set()

        async def decode(engine: Any, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
            # An answer ends the prefill leg, which is to be seen at its engine first.
            await until(lambda: sum(len(one.bodies) for one in f.prefills) == sum(len(one.bodies) for one in f.decodes))
            return await answers(engine, request, body)

        async with fleet(gates, [decode, decode], streaming=True) as f:
            for _ in range(60):
                async with f.client.post(f.url + "/v1/completions", json={"prompt": "hi"}) as answer:
                    assert answer.status == 200
            whose = {
                leg["kv_transfer_params"]["kvhub"]["promise"]: f"i{at}"
                for at, prefill in enumerate(f.prefills)
                for leg in prefill.bodies
                if "kvhub" in leg["kv_transfer_params"]
            }
            met = set()
            for at, decode in enumerate(f.decodes):
                for leg in decode.bodies:
                    entry = leg["kv_transfer_params"]["kvhub"]
                    if entry.get("streaming"):
                        assert whose[entry["promise"]] == entry["incarnation"]
                        met.add((entry["incarnation"], at))
            assert met == {("i0", 0), ("i0", 1), ("i1", 0), ("i1", 1)}
            assert [len(engine.bodies) for engine in (*f.prefills, *f.decodes)] == [30, 30, 30, 30]

    asyncio.run(scenario())


def test_the_least_busy_engine_is_chosen() -> None:
    engines = Engines(["a", "b", "c"])
    first, second, third = engines.choose(), engines.choose(), engines.choose()
    assert {first, second, third} == {"a", "b", "c"}
    engines.left(second)
    with engines.one() as next_one:
        assert next_one == second
    assert engines.choose() == second


def test_G09_a_restarted_prefill_is_learnt_anew_and_several_behind_one_address_are_not_guessed() -> None:
    peers = Peers()
    assert peers.promise("u") is None
    for nonsense in (None, {}, {"kvhub": 7}, {"kvhub": {"address": 5, "incarnation": "x"}}, {"other": {}}):
        peers.told("u", nonsense)  # type: ignore[arg-type]
    assert peers.promise("u") is None
    peers.told("u", hub())
    peers.told("u", hub())
    assert peers.promise("u") is not None
    peers.forget("u")
    peers.forget("u")
    assert peers.promise("u") is None
    peers.told("u", hub())
    peers.told("u", hub(incarnation="i2"))
    told = peers.promise("u")
    assert told is not None and told[1]["incarnation"] == "i2"
    for incarnation in ("i1", "i2", "i1"):
        peers.told("u", hub(incarnation=incarnation))
        assert peers.promise("u") is None, "they answer in turn"
