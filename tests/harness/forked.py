"""The engine inside a forked process: what a test can ask of it (see `engine.ForkedEngine` for the asking side)."""

from __future__ import annotations

import os
import selectors
import socket
import threading
import time
from pathlib import Path
from typing import Any

DEFAULTS: dict[str, Any] = {
    "enforce_eager": True,
    "dtype": "float32",
    "max_model_len": 2048,
    "max_num_seqs": 8,
    "seed": 0,
    "kv_cache_memory_bytes": 64 << 20,
    "max_logprobs": -1,
    "block_size": 64,
    "disable_log_stats": False,
}


class Forked:
    """One in-process vLLM engine, stepped by hand: between requests it goes on stepping while it has work."""

    def __init__(self) -> None:
        self._llm: Any = None
        self._count = 0

    def start(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Build the engine; its process id and the seconds that took."""
        from vllm import LLM

        start = time.monotonic()
        self._llm = LLM(**{**DEFAULTS, **settings})
        return {"pid": os.getpid(), "seconds": time.monotonic() - start}

    def run(self, requests: list[dict[str, Any]], *, finish_work: bool = True, deadline: float = 120.0) -> list[Any]:
        """Run requests together and answer when all have ended; see `ForkedEngine.run`."""
        from vllm import SamplingParams

        engine = self._llm.llm_engine
        names: dict[str, int] = {}
        started: dict[int, float] = {}
        firsts: dict[int, float] = {}
        done: list[Any] = [None] * len(requests)
        internal: dict[int, str] = {}
        step, until = 0, time.monotonic() + deadline
        while len(started) < len(requests) or engine.has_unfinished_requests():
            for at, asked in enumerate(requests):
                if at not in started and asked.get("at_step", 0) <= step:
                    self._count += 1
                    name = f"q{self._count}"
                    sampling = SamplingParams(
                        temperature=0,
                        max_tokens=asked.get("max_tokens", 16),
                        ignore_eos=True,
                        logprobs=asked.get("logprobs"),
                        extra_args={"kv_transfer_params": asked["params"]} if asked.get("params") else None,
                    )
                    started[at] = time.monotonic()
                    names[name] = at
                    internal[at] = engine.add_request(name, {"prompt_token_ids": asked["prompt"]}, sampling) or name
                if asked.get("abort_at_step") == step and at in started and done[at] is None:
                    engine.abort_request([name for name, which in names.items() if which == at])
                    done[at] = {"prompt": asked["prompt"], "tokens": [], "finish": "abort"}
            for output in engine.step():
                at = names[output.request_id]
                if output.outputs and output.outputs[0].token_ids:
                    firsts.setdefault(at, time.monotonic() - started[at])
                if output.finished and done[at] is None:
                    done[at] = self._told(output, time.monotonic() - started[at], firsts.get(at, 0.0))
            step += 1
            if time.monotonic() > until:
                raise TimeoutError(f"{sum(one is None for one in done)} of {len(done)} requests did not end")
        if finish_work:
            self.finish_work(deadline=deadline)
        return done

    @staticmethod
    def _told(output: Any, seconds: float, first: float) -> dict[str, Any]:
        (one,) = output.outputs
        return {
            "prompt": list(output.prompt_token_ids),
            "tokens": list(one.token_ids),
            "logprobs": [{token: each.logprob for token, each in at.items()} for at in one.logprobs or ()],
            "finish": one.finish_reason,
            "cached": output.num_cached_tokens,
            "params": output.kv_transfer_params,
            "seconds": seconds,
            "first_token_seconds": first,
        }

    def finish_work(self, *, deadline: float = 30.0) -> bool:
        """Step until the scheduler holds nothing more, sends that go on after an answer included; False when late."""
        until = time.monotonic() + deadline
        while self._busy():
            self._llm.llm_engine.step()
            if time.monotonic() > until:
                return False
        return True

    def _busy(self) -> bool:
        core = self._llm.llm_engine.engine_core.engine_core
        return bool(core.scheduler.has_requests())

    def step_until_readable(self, connection: socket.socket) -> bool:
        """Behave like a server while nobody asks: step while there is work; True when a request has come."""
        with selectors.DefaultSelector() as watch:
            watch.register(connection, selectors.EVENT_READ)
            while not watch.select(0.002 if self._busy() else 0.05):
                if self._busy():
                    self._llm.llm_engine.step()
        return True

    def forget_prefixes(self) -> bool:
        """Empty the engine's own prefix cache."""
        return bool(self._llm.reset_prefix_cache())

    def metrics(self) -> str:
        """What `/metrics` of a server would say."""
        from prometheus_client import generate_latest

        self._llm.llm_engine.do_log_stats()
        return generate_latest().decode()

    def holdings(self) -> dict[str, int]:
        """Counts that must be back where they were: engine blocks in use, descriptors, threads, shared memory."""
        pool = self._llm.llm_engine.engine_core.engine_core.scheduler.kv_cache_manager.block_pool
        maps = Path("/proc/self/maps").read_text()
        return {
            "blocks": pool.num_gpu_blocks - 1 - pool.get_num_free_blocks(),
            "descriptors": len(list(Path("/proc/self/fd").iterdir())),
            "threads": threading.active_count(),
            "shared_mappings": maps.count("/dev/shm/"),
        }

    def call(self, path: str, arguments: dict[str, Any] | None = None) -> Any:
        """Call `module:function` of a test in this process with the engine as first argument; what it returns must be
        JSON.  For questions that only one test has."""
        import importlib

        module, _, name = path.partition(":")
        return getattr(importlib.import_module(module), name)(self._llm, **(arguments or {}))

    def stop(self) -> None:
        """Shut the engine down as a server would."""
        if self._llm is not None:
            self._llm.llm_engine.engine_core.shutdown()
