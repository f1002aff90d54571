"""Which requests the two legs get (G01)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kvhub_front.bodies import CHAT, COMPLETIONS, PARAMS, decode_body, is_batch, prefill_body, problem

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
NAMED = {"type": "function", "function": {"name": "f"}}
SAY = [{"role": "user", "content": "hi"}]
CLIENTS: list[tuple[str, dict[str, Any]]] = [
    (COMPLETIONS, {"prompt": "hi"}),
    (COMPLETIONS, {"prompt": [1, 2, 3], "max_tokens": 200, "min_tokens": 100}),
    (COMPLETIONS, {"prompt": "hi", "stream": True, "stream_options": {"include_usage": True}}),
    (COMPLETIONS, {"prompt": "hi", "n": 2, "best_of": 3, "logprobs": 5, "prompt_logprobs": 1, "echo": True}),
    (COMPLETIONS, {"prompt": "hi", "stop": ["\n", "."], "stop_token_ids": [2], "ignore_eos": False}),
    (COMPLETIONS, {"prompt": "hi", "use_beam_search": True, "n": 4, "length_penalty": 0.5}),
    (COMPLETIONS, {"prompt": "hi", "structured_outputs": {"json": {}}, "guided_regex": "a+"}),
    (COMPLETIONS, {"prompt": "hi", "cache_salt": "tenant", "truncate_prompt_tokens": 5, "add_special_tokens": False}),
    (CHAT, {"messages": SAY, "max_completion_tokens": 200, "min_tokens": 9}),
    (CHAT, {"messages": SAY, "max_tokens": 200, "stream": True, "stream_options": {"include_usage": True}}),
    (CHAT, {"messages": SAY, "tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": True}),
    (CHAT, {"messages": SAY, "tools": TOOLS, "tool_choice": NAMED}),
    (CHAT, {"messages": SAY, "tools": TOOLS, "tool_choice": "auto", "logprobs": True, "top_logprobs": 5}),
    (CHAT, {"messages": SAY, "response_format": {"type": "json_schema", "json_schema": {"schema": {}}}, "n": 2}),
    (CHAT, {"messages": SAY, "echo": True, "chat_template_kwargs": {"thinking": False}, "reasoning_effort": "low"}),
]
OF_THE_PROMPT = {
    "prompt", "messages", "tools", "cache_salt", "truncate_prompt_tokens", "add_special_tokens",
    "chat_template_kwargs", "reasoning_effort", "model", "temperature", "seed",
}  # fmt: skip
FORM_OF_OUTPUT = {
    "min_tokens", "stream_options", "best_of", "logprobs", "top_logprobs", "prompt_logprobs", "stop", "stop_token_ids",
    "use_beam_search", "structured_outputs", "guided_regex", "response_format", "parallel_tool_calls",
}  # fmt: skip


@pytest.mark.parametrize(("path", "asked"), CLIENTS)
def test_G01_the_prefill_leg_is_valid_for_one_token(path: str, asked: dict[str, Any]) -> None:
    client = {"model": "m", "temperature": 0, "seed": 1, **asked}
    leg = prefill_body(path, client)
    assert leg["max_tokens"] == 1
    assert leg.get("max_completion_tokens", 1) == 1
    assert ("max_completion_tokens" in leg) == (path == CHAT)
    assert leg["stream"] is False
    assert leg["n"] == 1
    assert leg["ignore_eos"] is True
    assert not FORM_OF_OUTPUT & leg.keys()
    assert leg.get("tool_choice", "auto") in ("auto", "none")
    assert leg[PARAMS] == {"do_remote_decode": True, "do_remote_prefill": False}
    for name in OF_THE_PROMPT & client.keys():
        assert leg[name] == client[name]


@pytest.mark.parametrize(("path", "asked"), CLIENTS)
def test_G01_the_decode_leg_is_the_clients_request_plus_the_parameters(rig, path: str, asked: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with rig() as r:
            body = {"model": "m", **asked, "unknown_field": {"deep": [1.5, None, "ü"]}, "stream": False}
            async with r.client.post(r.url + path, json=body) as answer:
                assert answer.status == 200
                assert answer.headers["x-kvhub-prefill"] == "remote"
                assert (await answer.json())["choices"] == [{"text": "hello"}]
            assert r.prefill.paths == r.decode.paths == [path]
            (leg,) = r.decode.bodies
            params = leg.pop(PARAMS)
            assert params == {"peer": "127.0.0.1:7700", "incarnation": "abc", "chunks": 3}
            assert leg == body

    asyncio.run(scenario())


def test_the_clients_body_is_not_changed_in_place() -> None:
    client = {"prompt": "hi", "stop": ["x"]}
    prefill_body(COMPLETIONS, client)
    decode_body(client, {"a": 1})
    assert client == {"prompt": "hi", "stop": ["x"]}


def test_echo_belongs_to_the_prompt_only_in_chat() -> None:
    assert prefill_body(CHAT, {"messages": SAY, "echo": True})["echo"] is True
    assert "echo" not in prefill_body(COMPLETIONS, {"prompt": "hi", "echo": True})


@pytest.mark.parametrize(
    ("prompt", "batch"),
    [("a", False), ([1, 2], False), (["a"], False), ([[1, 2]], False), (["a", "b"], True), ([[1], [2]], True)],
)
def test_what_counts_as_several_prompts(prompt: Any, batch: bool) -> None:
    assert is_batch(COMPLETIONS, {"prompt": prompt}) is batch


def test_several_prompts_skip_prefill_and_say_so(rig) -> None:
    async def scenario() -> None:
        async with rig() as r, r.post(prompt=["a", "b"]) as answer:
            assert answer.status == 200
            assert answer.headers["x-kvhub-prefill"] == "skipped"
            assert r.prefill.bodies == []
            assert PARAMS not in r.decode.bodies[0]

    asyncio.run(scenario())


def test_a_prefill_that_hands_nothing_over_leaves_the_decode_leg_alone(rig) -> None:
    async def plain(engine, request, body):
        from aiohttp import web

        return web.json_response({"choices": [], "kv_transfer_params": None})

    async def scenario() -> None:
        async with rig(prefill=plain) as r, r.post(max_tokens=7) as answer:
            assert answer.headers["x-kvhub-prefill"] == "empty"
            assert r.decode.bodies == [{"model": "m", "prompt": "hi", "max_tokens": 7}]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("path", "body", "why"),
    [
        (COMPLETIONS, [], "must be a JSON object"),
        (COMPLETIONS, {"model": "m"}, "prompt is missing"),
        (CHAT, {"messages": "hi"}, "messages is missing or not a list"),
        (COMPLETIONS, {"prompt": "a", PARAMS: {"peer": "10.0.0.1:1"}}, "must not be given"),
    ],
)
def test_what_the_front_itself_refuses(rig, path: str, body: Any, why: str) -> None:
    assert why in (problem(path, body) or "")

    async def scenario() -> None:
        async with rig() as r, r.client.post(r.url + path, json=body) as answer:
            assert answer.status == 400
            error = (await answer.json())["error"]
            assert why in error["message"]
            assert error["type"] == "invalid_request_error"
            assert r.prefill.bodies == r.decode.bodies == []

    asyncio.run(scenario())


def test_a_body_that_is_not_json_is_refused(rig) -> None:
    async def scenario() -> None:
        async with rig() as r, r.client.post(r.url + COMPLETIONS, data=b"{") as answer:
            assert answer.status == 400

    asyncio.run(scenario())
