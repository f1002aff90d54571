"""How fast KV moves between engine blocks and slots, beside the machine's own memcpy of the same bytes.

    python tests/benchmarks/kernels.py [--mib 512] [--rounds 7] [--threads 1]

Every round runs each row's copy and, right before and after it, one memcpy of the same number of bytes over the same
buffers with the same number of threads, so that a busy machine slows both; --clock cpu counts this process's own CPU
seconds instead of wall time, which leaves out what other processes took.  Buffers are larger than most caches (raise
--mib where the machine has more), and blocks are drawn in random order.  Goals: straight >= 0.8, conversion >= 0.4.
"""

from __future__ import annotations

import argparse
import ctypes
import random
import statistics
import threading
import time
from collections.abc import Callable

import torch

import kvhub_kernels
from kvhub.layout import Layout
from kvhub_kernels import EngineBlocks, Plan, copying, cpu_native, cpu_torch, gather, known, scatter

GOALS = {"straight": 0.8, "convert": 0.4}


def memcpy(target: torch.Tensor, source: torch.Tensor, threads: int) -> None:
    """libc's memcpy, in `threads` equal pieces; ctypes releases the GIL."""
    size = source.numel() // threads
    run = [
        threading.Thread(target=ctypes.memmove, args=(target.data_ptr() + i * size, source.data_ptr() + i * size, size))
        for i in range(1, threads)
    ]
    for thread in run:
        thread.start()
    ctypes.memmove(target.data_ptr(), source.data_ptr(), size)
    for thread in run:
        thread.join()


def seconds(call: Callable[[], object], clock: Callable[[], float]) -> float:
    start = clock()
    call()
    return clock() - start


class Row:
    """One copy to be timed, with the memory that it runs on."""

    def __init__(self, kind: str, name: str, source: Layout, target: Layout, memory: list[torch.Tensor]) -> None:
        self.kind, self.name, self.page = kind, name, target.block_bytes // target.layers
        slots_flat, engine_flat = memory
        count = slots_flat.numel() // target.block_bytes
        self.bytes = count * target.block_bytes
        self.arena = slots_flat[: self.bytes].view(count, target.block_bytes)
        span = count * self.page
        layers = [
            engine_flat[i * span : (i + 1) * span].view(count, self.page).view(getattr(torch, target.dtype))
            for i in range(target.layers)
        ]
        self.engine = EngineBlocks(layers, target)
        blocks = random.Random(0).sample(range(count), count)
        tokens = target.block_tokens
        self.plan = Plan(range(count), [[block] for block in blocks], [0] * count, [tokens] * count)
        self.source = source
        self.into_engine = kind == "convert" or name.startswith("scatter")

    def run(self, threads: int) -> None:
        if self.into_engine:
            moved = scatter(self.engine, self.arena, self.plan, self.source, threads=threads)
        else:
            moved = gather(self.engine, self.arena, self.plan, threads=threads)
        assert moved == self.bytes


def rows(memory: list[torch.Tensor]) -> list[Row]:
    found = []
    heads, dim, layers = 8, 128, 16
    for page in (16, 32, 64, 128, 256):
        tokens = page * 1024 // (heads * dim * 2 * 2)
        layout = known.nhd(layers, tokens, heads, dim, "bfloat16")
        for way in ("gather", "scatter"):
            found.append(Row("straight", f"{way} {page} KiB", layout, layout, memory))
    for page in (16, 64, 256):
        for dtype, size in (("float32", 4), ("bfloat16", 2)):
            own = heads if page > 16 else 1  # else a page is less than a cache line of tokens
            tokens = page * 1024 // (own * dim * 2 * size)
            args = (layers, tokens, own, dim, dtype)
            vec, nhd, hnd = known.vllm_cpu(*args, instruction_set="vec"), known.nhd(*args), known.hnd(*args)
            for name, source, target in (("vec>nhd", vec, nhd), ("nhd>vec", nhd, vec), ("hnd>nhd", hnd, nhd)):
                found.append(Row("convert", f"{name} {dtype} {tokens} tok {page} KiB", source, target, memory))
    # vLLM's CPU engine as it comes: blocks of 128 tokens.
    for dtype in ("float32", "bfloat16"):
        args = (layers, 128, 2, 128, dtype)
        vec, nhd = known.vllm_cpu(*args, instruction_set="vec"), known.nhd(*args)
        for name, source, target in (("vec>nhd", vec, nhd), ("nhd>vec", nhd, vec)):
            page = target.block_bytes // layers // 1024
            found.append(Row("convert", f"{name} {dtype} 128 tok {page} KiB", source, target, memory))
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--mib", type=int, default=512, help="size of each of the two buffers")
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--torch", action="store_true", help="measure the copy that works without a compiler")
    options.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    options.add_argument("--only", default="", help="only rows whose name contains this")
    chosen = options.parse_args()
    clock = time.perf_counter if chosen.clock == "wall" else time.process_time
    torch.set_num_threads(chosen.threads)
    if chosen.torch:
        copying._kernel = lambda source, target: cpu_torch
    way = "torch" if chosen.torch or not cpu_native.available else "compiled"
    memory = [torch.randint(0, 255, (chosen.mib << 20,), dtype=torch.uint8) for _ in range(2)]
    table = [row for row in rows(memory) if chosen.only in f"{row.kind} {row.name}"]
    times: list[list[tuple[float, float]]] = [[] for _ in table]
    for number in range(chosen.rounds + 1):
        for index, row in enumerate(table):
            source, target = memory if row.into_engine else memory[::-1]
            plain = seconds(lambda s=source, t=target: memcpy(t, s, chosen.threads), clock)
            own = seconds(lambda r=row: r.run(chosen.threads), clock)
            plain = (plain + seconds(lambda s=source, t=target: memcpy(t, s, chosen.threads), clock)) / 2
            if number:  # the first round warms page tables
                times[index].append((plain * row.bytes / source.numel(), own))
    print(f"kvhub-kernels: {way} copy (native={kvhub_kernels.native}), {chosen.mib} MiB, {chosen.threads} thread(s), "
          f"medians of {chosen.rounds} interleaved rounds")  # fmt: skip
    print(f"{'what':<38}{'memcpy GB/s':>12}{'ours GB/s':>11}{'ratio':>7}{'min':>6}{'max':>6}{'goal':>6}")
    missed = 0
    for row, pairs in zip(table, times, strict=True):
        ratios = [plain / own for plain, own in pairs]
        middle = statistics.median(ratios)
        missed += middle < GOALS[row.kind]
        plain, own = (row.bytes / statistics.median(column) / 1e9 for column in zip(*pairs, strict=True))
        print(
            f"{row.kind + ' ' + row.name:<38}{plain:>12.2f}{own:>11.2f}{middle:>7.2f}{min(ratios):>6.2f}"
            f"{max(ratios):>6.2f}{GOALS[row.kind]:>6.1f}{'' if middle >= GOALS[row.kind] else '  missed'}"
        )
    print(f"{len(table) - missed} of {len(table)} rows reach their goal")


if __name__ == "__main__":
    main()
