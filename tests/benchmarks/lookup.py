"""What a lookup costs: a prompt of 128k tokens that is all in the host tier, keys included, per chunk of 64 tokens.

    lookup.py [--tokens 131072] [--rounds 50] [--json FILE]

Beside it stand the parts, and two floors that no keying can beat: the digest in one pass over the same bytes, and one
independent digest per chunk.  Goals: at most 2 µs per chunk, keys included; no call on the engine's thread above 1 ms
at the 99th percentile (long prompts are keyed on the hub's own thread).
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import sys
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from statistics import median, quantiles

from kvhub.engine import EngineFacts
from kvhub.hub import Hub
from kvhub.keys import Chain, Context, Namespace, pack_tokens
from kvhub.layout import Layout
from kvhub.types import Found, Held

CHUNK_TOKENS = 64
PER_CHUNK_GOAL = 2e-6
CALL_GOAL = 1e-3
CONFIG = {
    "kvhub": 1,
    "chunk_tokens": CHUNK_TOKENS,
    "stores": {"host": {"use": "host", "capacity": "64MiB"}},
    "roles": {"both": {"store": ["host"], "retrieve": ["host"]}},
}
# The smallest chunk there is: a lookup never touches the bytes, so their number does not matter.
LAYOUT = Layout("attention", 1, CHUNK_TOKENS, 1, 2, 2, "float16", "lchtd", "lchtd")
NAMESPACE = Namespace("bench", "1", "float16", "one layer", chunk_tokens=CHUNK_TOKENS)
FACTS = EngineFacts("none", "both", NAMESPACE, LAYOUT, CHUNK_TOKENS)
ROOT = Context().root(NAMESPACE)


def timed(rounds: int, call: Callable[[], object], after: Callable[[], object] = lambda: None) -> list[float]:
    """Seconds of each of `rounds` calls; `after` is run between them and not counted."""
    found = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
        after()
    return found


def chain_of(tokens: list[int]) -> Chain:
    chain = Chain(ROOT, CHUNK_TOKENS)
    chain.extend(tokens)
    return chain


def fill(hub: Hub, chain: Chain) -> None:
    """Put every chunk of the prompt into the host tier."""
    slots = hub.reserve(chain.keys)
    if min(slots) < 0:
        raise SystemExit(f"lookup: the host tier took {sum(slot >= 0 for slot in slots)} of {len(slots)} chunks")
    hub.commit([(key, Held(slot, LAYOUT.block_bytes)) for key, slot in zip(chain.keys, slots, strict=True)])


def expect(found: Found | None, tokens: int) -> None:
    if found is None or found.tokens != tokens:
        raise SystemExit(f"lookup: found {found}, expected {tokens} tokens; the figures would mean nothing")


def parts(hub: Hub, tokens: list[int], rounds: int) -> dict[str, list[float]]:
    """Seconds per call of the whole and of its parts."""
    packed = pack_tokens(tokens)
    span = CHUNK_TOKENS * 4
    chain = chain_of(tokens)
    fill(hub, chain)

    def release() -> None:
        hub.release("bench")

    def whole() -> None:
        expect(hub.lookup("bench", chain_of(tokens)), len(tokens))

    def search_only() -> None:
        expect(hub.lookup("bench", chain), len(tokens))

    def digests() -> None:
        for at in range(0, len(packed), span):
            sha256(packed[at : at + span]).digest()

    return {
        "digest, one pass": timed(rounds, lambda: sha256(packed).digest()),
        "digest, a call per chunk": timed(rounds, digests),
        "tokens to bytes": timed(rounds, lambda: pack_tokens(tokens)),
        "keys": timed(rounds, lambda: chain_of(tokens)),
        "search, keys known": timed(rounds, search_only, release),
        "lookup, keys included": timed(rounds, whole, release),
        "release": timed(rounds, release, search_only),
    }


def engine_thread(hub: Hub, tokens: list[int], rounds: int) -> tuple[dict[str, list[float]], list[float]]:
    """Seconds of each call that an engine makes for the prompt, and until the answer was there."""
    calls: dict[str, list[float]] = {"first lookup": [], "lookup again": [], "release": []}
    answered = []

    def call(name: str, function: Callable[[], Found | None]) -> Found | None:
        start = time.perf_counter()
        result = function()
        calls[name].append(time.perf_counter() - start)
        return result

    for _ in range(rounds):
        chain = Chain(ROOT, CHUNK_TOKENS)

        def look(chain: Chain = chain) -> Found | None:
            return hub.lookup("bench", chain, limit=len(tokens), tokens=lambda: tokens)

        start = time.perf_counter()
        found = call("first lookup", look)
        while found is None:
            time.sleep(0.0005)
            found = call("lookup again", look)
        answered.append(time.perf_counter() - start)
        expect(found, len(tokens))
        call("release", lambda: hub.release("bench"))
    return calls, answered


def p99(values: list[float]) -> float:
    return quantiles(values, n=100)[98] if len(values) > 1 else values[0]


def verdict(name: str, value: float, unit: str, goal: float) -> bool:
    print(f"  {name:<44} {value:8.3f} {unit}   goal <= {goal:g} {'met' if value <= goal else 'short'}")
    return value <= goal


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tokens", type=int, default=128 * 1024)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--strict", action="store_true", help="exit with 3 if a goal is short")
    args = parser.parse_args()
    draw = random.Random(3)
    tokens = [draw.randrange(128_000) for _ in range(args.tokens)]
    chunks = args.tokens // CHUNK_TOKENS
    hub = Hub.open(CONFIG, FACTS)
    try:
        gc.collect()
        found = parts(hub, tokens, args.rounds)
        calls, answered = engine_thread(hub, tokens, max(args.rounds, 100))
    finally:
        hub.close()
    print(f"{args.tokens} tokens, {chunks} chunks, {args.tokens * 4 >> 10} KiB of token ids, {args.rounds} rounds")
    for name, seconds in found.items():
        middle, least = median(seconds) * 1e3, min(seconds) * 1e3
        print(f"  {name:<28} {middle:8.3f} ms  {middle / chunks * 1e3:7.3f} µs per chunk  (least {least:.3f} ms)")
    print("on the engine's thread, keys on the hub's")
    for name, seconds in calls.items():
        middle, slow = median(seconds) * 1e6, p99(seconds) * 1e6
        print(f"  {name:<28} median {middle:8.1f} µs   p99 {slow:8.1f} µs   {len(seconds)} calls")
    print(f"  {'answer after':<28} median {median(answered) * 1e3:8.2f} ms")
    per_chunk = median(found["lookup, keys included"]) / chunks
    good = verdict("lookup per chunk, keys included", per_chunk * 1e6, "µs", PER_CHUNK_GOAL * 1e6)
    slowest = max(p99(seconds) for seconds in calls.values())
    good = verdict("slowest call on the engine's thread, p99", slowest * 1e3, "ms", CALL_GOAL * 1e3) and good
    if args.json:
        args.json.write_text(json.dumps(found | {f"engine thread: {name}": value for name, value in calls.items()}))
    return 3 if args.strict and not good else 0


if __name__ == "__main__":
    sys.exit(main())
