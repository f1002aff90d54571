"""Which leg's failure the client sees, and what of it (G03, G04, G05, G13)."""

from __future__ import annotations

import asyncio
import time

import pytest
from aiohttp import web

from kvhub.errors import ConfigError
from kvhub_front import FrontConfig
from kvhub_front.failures import answered, clean


def refuses(status: int, body: object, after: float = 0.0):
    async def behaviour(engine, request, asked):
        await asyncio.sleep(after)
        return web.json_response(body, status=status)

    return behaviour


TOO_LONG = {"error": {"message": "too long", "type": "invalid_request_error", "param": "prompt", "code": 400}}


def test_G03_a_failing_prefill_decides_at_once(rig) -> None:
    async def scenario() -> None:
        async with rig(prefill=refuses(400, TOO_LONG, 0.05), decode=refuses(200, {}, 2.0)) as r:
            start = time.monotonic()
            async with r.post() as answer:
                assert answer.status == 400
            assert time.monotonic() - start < 0.5
            assert r.decode.bodies == []
            assert r.front.counts["prefill_failures"] == 1

    asyncio.run(scenario())


def test_G03_a_failing_decode_decides_at_once(rig) -> None:
    busy = {"error": {"message": "overloaded", "type": "overloaded_error", "param": None, "code": 503}}

    async def scenario() -> None:
        async with rig(decode=refuses(503, busy)) as r:
            start = time.monotonic()
            async with r.post(stream=True) as answer:
                assert answer.status == 503
                assert (await answer.json()) == busy
            assert time.monotonic() - start < 0.5
            assert r.front.counts["decode_failures"] == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("leg", ["prefill", "decode"])
def test_G04_status_type_and_message_are_passed_on(rig, leg: str) -> None:
    async def scenario() -> None:
        async with rig(**{leg: refuses(400, TOO_LONG)}) as r, r.post() as answer:
            assert answer.status == 400
            assert await answer.json() == TOO_LONG

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        ("cannot reach http://10.1.2.3:8000/v1, refused", "cannot reach [engine] refused"),
        ("peer 10.1.2.3:7700 is gone", "peer [engine] is gone"),
        ("peer [fe80::1]:7700 is gone", "peer [engine] is gone"),
        ("gpu7.rack.local:8000 closed", "[engine] closed"),
        ("engine gpu17 closed", "engine [engine] closed"),
        ('bad\nTraceback (most recent call last):\n  File "/srv/x.py", line 3', "bad"),
        ("the limit is 4096, you asked for 5000 (4.5 s)", "the limit is 4096, you asked for 5000 (4.5 s)"),
        ("temperature must be in [0:2]", "temperature must be in [0:2]"),
    ],
)
def test_G04_addresses_and_traces_are_removed(told: str, shown: str) -> None:
    assert clean(told, {"gpu17"}) == shown


@pytest.mark.parametrize(
    "raw",
    [b"", b"<html>Bad Gateway 10.0.0.1</html>", b'{"error": null}', b"[]", b'{"error": {"message": 7, "type": []}}'],
)
def test_G04_an_error_body_of_any_form_becomes_an_openai_error(raw: bytes) -> None:
    why = answered("prefill", 502, raw, ())
    assert why.status == 502
    assert why.error == {
        "message": "the prefill engine answered with status 502", "type": "server_error", "param": None, "code": 502
    }  # fmt: skip


def test_G04_older_error_forms_are_understood() -> None:
    flat = b'{"object": "error", "message": "no such model", "type": "NotFoundError", "code": 404}'
    assert answered("decode", 404, flat, ()).error["message"] == "no such model"
    assert answered("decode", 404, b'{"detail": "Not Found"}', ()).error["message"] == "Not Found"


def test_G05_without_a_prefill_engine_the_default_is_to_fail(rig, closed_port: str) -> None:
    async def scenario() -> None:
        async with rig(prefill_at=[closed_port]) as r:
            took = []
            for _ in range(3):
                start = time.monotonic()
                async with r.post() as answer:
                    assert answer.status == 503
                    text = await answer.text()
                took.append(time.monotonic() - start)
            assert min(took) < 0.1
            assert "no prefill engine can be reached" in text
            assert "127.0.0.1" not in text
            assert r.decode.bodies == []

    asyncio.run(scenario())


def test_G05_the_policy_local_lets_decode_compute_and_says_so(rig, closed_port: str) -> None:
    async def scenario() -> None:
        async with rig(prefill_at=[closed_port], on_prefill_failure="local") as r:
            async with r.post(max_tokens=3) as answer:
                assert answer.status == 200
                assert answer.headers["x-kvhub-prefill"] == "local"
            assert r.decode.bodies == [{"model": "m", "prompt": "hi", "max_tokens": 3}]
            async with r.client.get(r.url + "/metrics") as answer:
                assert "kvhub_front:fallback_total 1\n" in await answer.text()

    asyncio.run(scenario())


@pytest.mark.parametrize(("status", "becomes"), [(500, 200), (503, 200), (400, 400), (429, 429)])
def test_G05_local_covers_the_engines_faults_and_not_the_requests(rig, status: int, becomes: int) -> None:
    async def scenario() -> None:
        async with rig(prefill=refuses(status, {}), on_prefill_failure="local") as r, r.post() as answer:
            assert answer.status == becomes
            assert len(r.decode.bodies) == (becomes == 200)

    asyncio.run(scenario())


def test_G05_a_hung_prefill_costs_its_deadline(rig) -> None:
    async def scenario() -> None:
        async with rig(prefill=refuses(200, {}, 30), prefill_deadline="100ms") as r:
            start = time.monotonic()
            async with r.post() as answer:
                assert answer.status == 504
                assert "0.1 s" in (await answer.json())["error"]["message"]
            assert time.monotonic() - start < 1
            await asyncio.sleep(0.05)
            assert r.prefill.running == 0

    asyncio.run(scenario())


@pytest.mark.parametrize("leg", ["prefill", "decode"])
def test_an_engine_that_dies_with_the_request_is_a_bad_gateway(rig, leg: str) -> None:
    async def dies(engine, request, body):
        request.transport.abort()
        return web.Response()

    async def scenario() -> None:
        async with rig(**{leg: dies}) as r, r.post() as answer:
            assert answer.status == 502
            assert f"the {leg} engine went away" in (await answer.json())["error"]["message"]

    asyncio.run(scenario())


def test_a_prefill_that_does_not_answer_json_is_a_bad_gateway(rig) -> None:
    async def odd(engine, request, body):
        return web.Response(text="hello")

    async def scenario() -> None:
        async with rig(prefill=odd) as r, r.post() as answer:
            assert answer.status == 502

    asyncio.run(scenario())


def test_retry_after_is_passed_on(rig) -> None:
    async def busy(engine, request, body):
        return web.json_response({"error": {"message": "busy"}}, status=429, headers={"Retry-After": "3"})

    async def scenario() -> None:
        async with rig(prefill=busy) as r, r.post() as answer:
            assert answer.status == 429
            assert answer.headers["Retry-After"] == "3"

    asyncio.run(scenario())


def test_G13_an_engine_that_closes_idle_connections_costs_no_request(rig) -> None:
    async def closes_after(engine, request, body):
        asyncio.get_running_loop().call_later(0.05, request.transport.abort)
        return web.json_response({})

    async def scenario() -> None:
        async with rig(decode=closes_after) as r:
            for _ in range(3):
                async with r.post() as answer:
                    assert answer.status == 200
                await asyncio.sleep(0.1)

    asyncio.run(scenario())


def test_engines_take_turns(rig) -> None:
    async def scenario() -> None:
        async with rig() as other, rig(prefill_at=[other.prefill.url, other.decode.url]) as r:
            for _ in range(4):
                async with r.post() as answer:
                    assert answer.status == 200
            assert len(other.prefill.bodies) == len(other.decode.bodies) == 2

    asyncio.run(scenario())


def test_every_problem_of_a_configuration_is_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        FrontConfig(prefill=[], decode=["localhost:8000"], on_prefill_failure="retry")
    text = str(caught.value)
    assert "3 problems" in text
    for part in ("give at least one --prefill", "'localhost:8000'", "'fail' or 'local', found 'retry'"):
        assert part in text
