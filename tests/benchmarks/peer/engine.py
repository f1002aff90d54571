"""One real engine in one process, told what to do by JSON lines on stdin and answering on the first stdout.

    python engine.py '{"model": ..., "prefix_cache": true, "connector": {...} or null, ...}'

Orders: `{"do": "run", "prompt": [ids]}` generates one token and times it; `"reset"` empties the engine's own prefix
cache; `"settle"` lets stores that run in the background end; `"counters"` reads what kvhub moved (see
`inside.py`); `"quit"`.
Everything that libraries print goes to stderr, so an answer is never mixed with a log line.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any, TextIO

Answer = dict[str, Any]
SETTLE_SECONDS = 60.0


def build(order: Answer) -> Any:
    """The engine, with the settings that every row shares."""
    from vllm import LLM

    settings: Answer = {
        "model": order["model"],
        "dtype": "float32",
        "enforce_eager": True,
        "seed": 0,
        "max_num_seqs": 2,
        "max_model_len": order["max_tokens"],
        "max_num_batched_tokens": order["step_tokens"],
        "kv_cache_memory_bytes": order["kv_bytes"],
        "enable_prefix_caching": order["prefix_cache"],
    }
    if order["connector"]:
        settings["kv_transfer_config"] = order["connector"]
    return LLM(**settings)


def queue_seconds() -> float:
    """How long this process's main thread has been ready to run and had no core, since its start."""
    try:
        return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
    except OSError:
        return 0.0


def run(llm: Any, prompt: list[int]) -> Answer:
    """Time to first token, what was not computed, and the first token with its logprobs."""
    from vllm import SamplingParams

    sampling = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, logprobs=5)
    queued, processor, start = queue_seconds(), time.process_time(), time.perf_counter()
    output = llm.generate([{"prompt_token_ids": prompt}], sampling, use_tqdm=False)[0]
    seconds, processor = time.perf_counter() - start, time.process_time() - processor
    queued = queue_seconds() - queued
    first = output.outputs[0]
    if first.finish_reason != "length" or len(first.token_ids) != 1:
        raise RuntimeError(f"the engine ended a request with {first.finish_reason!r} and {len(first.token_ids)} tokens")
    return {
        "seconds": seconds,
        "cpu": processor,
        "queued": queued,
        "cached": output.num_cached_tokens or 0,
        "token": first.token_ids[0],
        "logprobs": {token: found.logprob for token, found in first.logprobs[0].items()},
    }


def settle(core: Any, inside: Any) -> Answer:
    """Step through what a connector still has to do: an in-process engine steps only inside `generate`."""
    end = time.monotonic() + SETTLE_SECONDS
    while time.monotonic() < end:
        if core.scheduler.has_requests() or (inside and inside.working):
            core.step()
        elif inside and inside.pending:
            time.sleep(0.002)
        else:
            return {}
    raise RuntimeError(f"the engine or its connector still works {SETTLE_SECONDS:.0f} s after the last request")


def serve(llm: Any, inside: Any, orders: TextIO, answers: TextIO) -> None:
    for line in orders:
        order = json.loads(line)
        if order["do"] == "quit":
            return
        try:
            answer = obey(llm, inside, order)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


def obey(llm: Any, inside: Any, order: Answer) -> Answer:
    match order["do"]:
        case "run":
            return run(llm, order["prompt"])
        case "reset":
            return {"done": bool(llm.reset_prefix_cache())}
        case "settle":
            return settle(llm.llm_engine.engine_core.engine_core, inside)
        case "counters":
            return dict(inside.figures()) if inside else {}
    raise ValueError(f"unknown order {order['do']!r}")


def main() -> None:
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        order = json.loads(sys.argv[1])
        inside = None
        if order["connector"] and order["connector"]["kv_connector"] == "KvhubConnector":
            from peer.inside import Inside

            inside = Inside()
        llm = build(order)
        if inside:
            inside.find(llm.llm_engine.engine_core.engine_core)
        print(json.dumps({"ready": True}), file=answers, flush=True)
        serve(llm, inside, sys.stdin, answers)
    shutdown = getattr(llm.llm_engine.engine_core, "shutdown", None)
    if shutdown:
        shutdown()
    # Engines leave threads behind that would keep the interpreter from ending.
    os._exit(0)


if __name__ == "__main__":
    main()
