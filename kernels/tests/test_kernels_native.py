"""The compiled copy: there or not, off the GIL, and never needed."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

torch = pytest.importorskip("torch")

import kvhub_kernels  # noqa: E402
from kvhub_kernels import EngineBlocks, Plan, cpu_native, gather, known  # noqa: E402


def test_native_says_what_is_in_use():
    assert kvhub_kernels.native is cpu_native.available


def test_the_gil_is_free_during_a_copy():
    """A copy of 1 GiB of reads takes a tenth of a second or more; another thread must get on meanwhile."""
    layout = known.nhd(1, 256, 8, 128, "bfloat16")
    blocks = torch.zeros(8, layout.block_bytes, dtype=torch.uint8).view(torch.int16)
    engine = EngineBlocks([blocks], layout)
    arena = torch.zeros(1, layout.block_bytes, dtype=torch.uint8)
    plan = Plan([0] * 1000, [[i % 8] for i in range(1000)], [0] * 1000, [256] * 1000)
    seen: list[int] = []
    over = threading.Event()

    def count() -> None:
        beats = 0
        while not over.wait(0.001):
            beats += 1
        seen.append(beats)

    thread = threading.Thread(target=count)
    thread.start()
    gather(engine, arena, plan)
    over.set()
    thread.join()
    assert seen[0] >= 5


def test_without_the_library_the_same_calls_go_through_torch():
    code = (
        "import importlib.util as u; real = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name.endswith('_native') else real(name, *rest)\n"
        "import torch, sys, kvhub_kernels as k\n"
        "layout = k.known.nhd(1, 4, 2, 4, 'float32')\n"
        "arena = torch.arange(layout.block_bytes, dtype=torch.uint8)[None]\n"
        "blocks = torch.zeros(2, 2, 4, 2, 4)\n"
        "k.scatter(k.EngineBlocks([blocks], layout), arena, k.Plan([0], [[1]], [0], [4]))\n"
        "assert not k.native and torch.equal(blocks.view(torch.uint8).flatten(1)[1], arena[0])\n"
        "assert 'triton' not in sys.modules and 'numba' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
