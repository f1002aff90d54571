"""How fast pages move between SGLang's host pool and slots, beside the machine's own memcpy of the same bytes.

    python tests/benchmarks/sglang_pages.py [--mib 256] [--rounds 5] [--threads 1]

For every host memory layout: pages to slots and back as they are, and slots that another engine filled into pages.
Every round runs a memcpy of the same number of bytes right before and after, with the same number of threads, so that a
busy machine slows both.  Goals: same layout >= 0.8, conversion >= 0.4.  Exits with 1 where a goal is missed.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from kvhub_sglang.pages import ORDERS, HostPages

import kernels
from kvhub.layout import Layout

GOALS = {"same": 0.8, "convert": 0.4}
PAGE, LAYERS, HEADS, DIM = 64, 32, 8, 128
FOREIGN = {
    "vLLM CPU": ("lhcdt", "lhctd"),
    "vLLM NHD": ("lcthd", "lcthd"),
    "vLLM HND": ("lchtd", "lchtd"),
    "SGLang page_first": ("ctlhd", "ctlhd"),
}


class MHATokenToKVPoolHost:
    """The memory of SGLang's host pool, without SGLang."""

    def __init__(self, layout: str, pages: int) -> None:
        self.layout, self.page_size, self.size = layout, PAGE, pages * PAGE
        self.layer_num, self.head_num, self.head_dim = LAYERS, HEADS, DIM
        shape = {
            "layer_first": (2, LAYERS, self.size, HEADS, DIM),
            "page_first": (2, self.size, LAYERS, HEADS, DIM),
            "page_first_direct": (2, pages, LAYERS, PAGE, HEADS, DIM),
            "page_head": (2, pages, HEADS, PAGE, LAYERS, DIM),
        }[layout]
        self.kv_buffer = torch.zeros(shape, dtype=torch.bfloat16)


def ratio(call: Callable[[], Any], memory: tuple[torch.Tensor, torch.Tensor], rounds: int, threads: int) -> float:
    """Median of memcpy's time over the call's, round by round."""

    def timed(one: Callable[[], Any]) -> float:
        return kernels.seconds(one, time.perf_counter)

    call()
    found = []
    for _ in range(rounds):
        before = timed(lambda: kernels.memcpy(*memory, threads))
        spent = timed(call)
        after = timed(lambda: kernels.memcpy(*memory, threads))
        found.append((before + after) / 2 / spent)
    return statistics.median(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    page_bytes = 2 * PAGE * LAYERS * HEADS * DIM * 2
    pages = max(given.mib * 2**20 // page_bytes, 4)
    arena = torch.zeros((pages, page_bytes), dtype=torch.uint8)
    memory = (torch.zeros(pages * page_bytes, dtype=torch.uint8), arena.view(-1))
    dice = random.Random(3)
    missed = 0
    for layout in sorted({name for kind, name in ORDERS if kind == "attention"}):
        host = HostPages(MHATokenToKVPoolHost(layout, pages))
        numbers, slots = (dice.sample(range(pages), pages) for _ in range(2))

        def write(source: Layout, to: HostPages = host, at: list[int] = numbers, of: list[int] = slots) -> None:
            to.write(at, arena, of, source, threads=given.threads)

        rows: list[tuple[str, str, int, Callable[[], Any]]] = [
            # Reading runs beside the engine and keeps to one thread.
            ("same", "pages to slots", 1, partial(host.read, numbers, arena, slots)),
            ("same", "slots to pages", given.threads, partial(write, host.layout)),
        ]
        for name, orders in FOREIGN.items():
            source = Layout("attention", LAYERS, PAGE, HEADS, DIM, DIM, "bfloat16", *orders)
            if source != host.layout:
                rows.append(("convert", f"{name} to pages", given.threads, partial(write, source)))
        for kind, name, threads, call in rows:
            found = ratio(call, memory, given.rounds, threads)
            missed += found < GOALS[kind]
            verdict = "" if found >= GOALS[kind] else f"  below {GOALS[kind]}"
            print(f"{layout:18} {name:26} {found:5.2f} of memcpy{verdict}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
