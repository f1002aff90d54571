"""The requests of the two legs, made from the client's.

A prefill engine runs the prompt and stops after one token, so every field that speaks of length or of the form of the
output has to be brought to a form that is valid for one token; changing `max_tokens` alone is how such fronts turn
good requests into errors (`min_tokens: 100`, `tool_choice: required`).  What decides the *prompt* (messages, tools,
template arguments, truncation, salt, LoRA name) stays, else the two engines would not see the same tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvhub_front.peers import NAME

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
PARAMS = "kv_transfer_params"

_DROPPED = (
    "best_of",
    "echo",
    "include_stop_str_in_output",
    "length_penalty",
    "logprob_token_ids",
    "logprobs",
    "max_completion_tokens",
    "min_tokens",
    "parallel_tool_calls",
    "prompt_logprobs",
    "response_format",
    "return_token_ids",
    "return_tokens_as_token_ids",
    "stop",
    "stop_token_ids",
    "stream_interval",
    "stream_options",
    "structured_outputs",
    "thinking_token_budget",
    "top_logprobs",
    "use_beam_search",
)
"""Fields about the output.  `prompt_logprobs` also makes an engine ignore every cached token.  `stop` and
`stop_token_ids` go because an engine hands its KV over only when the leg ended by length."""


def prefill_body(path: str, client: Mapping[str, Any], entry: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The prefill leg of a client's request to `path`, valid whatever the client asked of the output.

    `entry` is kvhub's in the parameters, where the decode leg does not wait for this one.
    """
    body = {name: value for name, value in client.items() if name not in _DROPPED and not name.startswith("guided_")}
    if path == CHAT:
        # `echo` of a chat request extends the last message: it belongs to the prompt.
        if "echo" in client:
            body["echo"] = client["echo"]
        body["max_completion_tokens"] = 1
        if client.get("tools") and client.get("tool_choice", "auto") not in ("auto", "none", None):
            body["tool_choice"] = "none"
    body.update(max_tokens=1, n=1, stream=False, ignore_eos=True)
    body[PARAMS] = {"do_remote_decode": True, "do_remote_prefill": False}
    if entry is not None:
        body[PARAMS][NAME] = dict(entry)
    return body


def decode_body(client: Mapping[str, Any], params: Mapping[str, Any] | None) -> dict[str, Any]:
    """The decode leg: exactly the client's request, plus what prefill said of its KV, if it said anything."""
    return dict(client) if params is None else {**client, PARAMS: dict(params)}


def is_batch(path: str, client: Mapping[str, Any]) -> bool:
    """Whether one request carries several prompts.

    Transfer parameters speak of one prompt, and engines answer a batch with those of one of its prompts only.
    """
    prompt = client.get("prompt")
    return path == COMPLETIONS and isinstance(prompt, list) and len(prompt) > 1 and not isinstance(prompt[0], int)


def problem(path: str, client: Any) -> str | None:
    """Why the front refuses a parsed request body itself, or None; everything else is the engines' to judge."""
    if not isinstance(client, dict):
        return "the request body must be a JSON object"
    if client.get(PARAMS) is not None:
        # A client that names a peer would make the decode engine connect wherever the client likes.
        return f"{PARAMS} is set by the front and must not be given"
    if path == COMPLETIONS and client.get("prompt") is None and client.get("prompt_embeds") is None:
        return "prompt is missing"
    if path == CHAT and not isinstance(client.get("messages"), list):
        return "messages is missing or not a list"
    return None
