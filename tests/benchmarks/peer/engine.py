"""One real engine in one process, told what to do by JSON lines on stdin and answering on the first stdout.

    python engine.py '{"model": ..., "prefix_cache": true, "connector": {...} or null, ...}'

Orders: `{"do": "run", "prompt": [ids]}` generates one token and times it; `"reset"` empties the engine's own prefix
cache; `"settle"` lets stores that run in the background end; `"counters"` reads the connector's own figures; `"quit"`.
Everything that libraries print goes to stderr, so an answer is never mixed with a log line.
"""

from __future__ import annotations

import json
import os
import sys
import time
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


def run(llm: Any, prompt: list[int]) -> Answer:
    """Time to first token, what was not computed, and the first token with its logprobs."""
    from vllm import SamplingParams

    sampling = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, logprobs=5)
    processor, start = time.process_time(), time.perf_counter()
    output = llm.generate([{"prompt_token_ids": prompt}], sampling, use_tqdm=False)[0]
    seconds, processor = time.perf_counter() - start, time.process_time() - processor
    first = output.outputs[0]
    if first.finish_reason != "length" or len(first.token_ids) != 1:
        raise RuntimeError(f"the engine ended a request with {first.finish_reason!r} and {len(first.token_ids)} tokens")
    return {
        "seconds": seconds,
        "cpu": processor,
        "cached": output.num_cached_tokens or 0,
        "token": first.token_ids[0],
        "logprobs": {token: found.logprob for token, found in first.logprobs[0].items()},
    }


def settle(llm: Any) -> Answer:
    """Step through what a connector still has to do: an in-process engine steps only inside `generate`."""
    core = llm.llm_engine.engine_core.engine_core
    end = time.monotonic() + SETTLE_SECONDS
    while time.monotonic() < end:
        if core.scheduler.has_requests():
            core.step()
        elif pending(counters()):
            time.sleep(0.002)
        else:
            return {}
    raise RuntimeError(f"the engine or its connector still works {SETTLE_SECONDS:.0f} s after the last request")


def counters() -> Answer:
    """The figures of kvhub's connector since its start; {} in an engine without it.

    `stored_bytes`, `stored_seconds`, `loaded_bytes`, `loaded_seconds`, `pending` (stores not yet visible) and
    `sources`, tokens served by member name.
    """
    connector = sys.modules.get("kvhub_vllm.connector")
    return connector.stats() if connector else {}


def pending(figures: Answer) -> bool:
    return bool(figures.get("pending"))


def serve(llm: Any, orders: TextIO, answers: TextIO) -> None:
    for line in orders:
        order = json.loads(line)
        if order["do"] == "quit":
            return
        try:
            answer = obey(llm, order)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


def obey(llm: Any, order: Answer) -> Answer:
    match order["do"]:
        case "run":
            return run(llm, order["prompt"])
        case "reset":
            return {"done": bool(llm.reset_prefix_cache())}
        case "settle":
            return settle(llm)
        case "counters":
            return counters()
    raise ValueError(f"unknown order {order['do']!r}")


def main() -> None:
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        llm = build(json.loads(sys.argv[1]))
        print(json.dumps({"ready": True}), file=answers, flush=True)
        serve(llm, sys.stdin, answers)
    shutdown = getattr(llm.llm_engine.engine_core, "shutdown", None)
    if shutdown:
        shutdown()
    # Engines leave threads behind that would keep the interpreter from ending.
    os._exit(0)


if __name__ == "__main__":
    main()
