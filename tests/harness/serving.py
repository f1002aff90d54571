"""`vllm serve` in processes of its own."""

from __future__ import annotations

import dataclasses
import http.client
import json
import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.metrics import Metrics
from harness.outputs import Output
from harness.paths import ENGINE_PYTHON, engine_environment, free_port, needed
from harness.processes import Leashed

SERVED_AS = "tiny"


def connector(config: Path, role: str, **extra: Any) -> dict[str, Any]:
    """vLLM's `kv_transfer_config` that loads kvhub's connector with a YAML file and a role."""
    return {
        "kv_connector": "KvhubConnector",
        "kv_connector_module_path": "kvhub_vllm.connector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"config": str(config), "role": role, **extra},
    }


class HttpError(RuntimeError):
    """An answer that is not 200."""

    def __init__(self, status: int, body: str) -> None:
        super().__init__(f"{status}: {body[:500]}")
        self.status = status
        self.body = body


def ask(url: str, body: Mapping[str, Any] | None = None, *, timeout: float = 120.0) -> bytes:
    """GET, or POST of a JSON body.  Raises HttpError, OSError."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return bytes(answer.read())
    except urllib.error.HTTPError as told:
        raise HttpError(told.code, told.read().decode(errors="replace")) from None


class Served:
    """Anything that answers OpenAI's completions at a URL: an engine, or a front."""

    def __init__(self, url: str) -> None:
        self.url = url

    def complete(self, prompt: Sequence[int], *, max_tokens: int, logprobs: int = 5, **more: Any) -> Output:
        """Greedy completion of token ids, not streamed; ends by length only."""
        body = self._body(prompt, max_tokens, logprobs=logprobs, return_tokens_as_token_ids=True, **more)
        start = time.perf_counter()
        told = json.loads(ask(self.url + "/v1/completions", body))
        output = Output.of_completion(told, prompt)
        return _with_times(output, time.perf_counter() - start, 0.0)

    def stream(self, prompt: Sequence[int], *, max_tokens: int, logprobs: int | None = None, **more: Any) -> Output:
        """Like `complete`, streamed, with the seconds to the first token."""
        body = self._body(prompt, max_tokens, stream=True, stream_options={"include_usage": True}, **more)
        if logprobs is not None:
            body |= {"logprobs": logprobs, "return_tokens_as_token_ids": True}
        request = urllib.request.Request(
            self.url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        output, start, first = Output(tuple(prompt), ()), time.perf_counter(), 0.0
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                for line in answer:
                    if line.startswith(b"data: {"):
                        output = output.extended(_checked(json.loads(line[6:])))
                        first = first or (time.perf_counter() - start if output.tokens else 0.0)
        except urllib.error.HTTPError as told:
            raise HttpError(told.code, told.read().decode(errors="replace")) from None
        return _with_times(output, time.perf_counter() - start, first)

    def chat(self, messages: Sequence[Mapping[str, str]], *, max_tokens: int, **more: Any) -> dict[str, Any]:
        """Greedy answer of the chat endpoint, as it came."""
        body = {"model": SERVED_AS, "messages": list(messages), "max_completion_tokens": max_tokens, "temperature": 0}
        return dict(json.loads(ask(self.url + "/v1/chat/completions", {**body, **more})))

    def metrics(self) -> Metrics:
        return Metrics.parse(ask(self.url + "/metrics").decode())

    def answers(self) -> bool:
        """Whether `/health` says 200."""
        try:
            ask(self.url + "/health", timeout=2.0)
        except (HttpError, OSError, http.client.HTTPException):
            return False
        return True

    @staticmethod
    def _body(prompt: Sequence[int], max_tokens: int, **more: Any) -> dict[str, Any]:
        return {
            "model": SERVED_AS,
            "prompt": list(prompt),
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
            **more,
        }


def _checked(event: dict[str, Any]) -> dict[str, Any]:
    if "error" in event:
        raise HttpError(500, json.dumps(event))
    return event


def _with_times(output: Output, seconds: float, first: float) -> Output:
    return dataclasses.replace(output, seconds=seconds, first_token_seconds=first)


class Engine(Served, Leashed):
    """One `vllm serve`.  `transfer` is the connector's configuration; without it the engine is a plain one."""

    def __init__(
        self,
        name: str,
        model: Path,
        log: Path,
        *,
        transfer: Mapping[str, Any] | None = None,
        block_size: int = 64,
        max_model_len: int = 4096,
        max_num_seqs: int = 8,
        kv_bytes: int = 64 << 20,
        flags: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        older: bool = False,
    ) -> None:
        port = free_port()
        settings = {"block_size": block_size, **needed(model)}
        Served.__init__(self, f"http://127.0.0.1:{port}")
        command: list[str | Path] = [ENGINE_PYTHON, "-m", "vllm.entrypoints.cli.main", "serve", model]
        command += ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", SERVED_AS, "--seed", "0"]
        command += ["--enforce-eager", "--dtype", "float32", "--block-size", str(settings["block_size"])]
        command += ["--max-model-len", str(max_model_len), "--max-num-seqs", str(max_num_seqs)]
        command += ["--kv-cache-memory-bytes", str(kv_bytes), "--enable-prompt-tokens-details", "--max-logprobs", "-1"]
        command += ["--disable-uvicorn-access-log", *flags]
        if "attention_backend" in settings:
            command += ["--attention-backend", settings["attention_backend"]]
        if transfer is not None:
            command += ["--kv-transfer-config", json.dumps(transfer)]
        Leashed.__init__(
            self, name, command, log, engine_environment(older=older, VLLM_SERVER_DEV_MODE="1", **(env or {}))
        )

    def ready(self, *, deadline: float = 600.0) -> float:
        """Wait until it serves; seconds that took.  Raises NotReady with the log's end."""
        return self.wait_ready(self.answers, deadline=deadline)

    def forget_prefixes(self, *, deadline: float = 5.0) -> None:
        """Empty the engine's own prefix cache; what kvhub holds stays."""
        until = time.monotonic() + deadline
        while not json.loads(ask(self.url + "/reset_prefix_cache", {})).get("success", True):
            assert time.monotonic() < until, f"{self.name} still holds blocks"
            time.sleep(0.05)


class FrontProcess(Served, Leashed):
    """`kvhub-front` before engines."""

    def __init__(self, prefill: Sequence[str], decode: Sequence[str], log: Path, *, flags: Sequence[str] = ()) -> None:
        port = free_port()
        Served.__init__(self, f"http://127.0.0.1:{port}")
        command: list[str | Path] = [sys.executable, "-m", "kvhub_front", "--port", str(port)]
        command += [part for url in prefill for part in ("--prefill", url)]
        command += [part for url in decode for part in ("--decode", url)]
        Leashed.__init__(self, "front", [*command, *flags], log, dict(os.environ))

    def ready(self, *, deadline: float = 30.0) -> float:
        return self.wait_ready(self.answers, deadline=deadline)
