"""Other projects' file tiers on the same chunks: `stores_peers.py FOLDER TOTAL SIZE ROUNDS THREADS`, sizes in bytes.

Run by the Python of an environment that has them (tests/benchmarks/lmcache_env.sh); what is not there is left out.
Their own code for single chunks is called, with threads or an event loop as they have it; none checks what it reads.
Prints JSON: row to seconds of each round.
"""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import shutil
import sys
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import stores_raw as raw

WAYS = {"the page cache": False, "direct": True}


def vllm(folder: Path, memory: memoryview, size: int, threads: int, rows: dict[str, list[float]]) -> None:
    """vLLM's file tier: one batch of blocks per thread, as its pool gets them."""
    from vllm.v1.kv_offload.tiering.fs import io

    offsets = list(range(0, memory.nbytes, size))
    for way, direct in WAYS.items():
        paths = [str(folder / f"{number % 256:02x}" / str(number)) for number in range(len(offsets))]
        for path in paths:
            Path(path).parent.mkdir(exist_ok=True)
        for what, call in (("save", io.batch_store_block), ("load", io.batch_load_block)):

            def some(first: int, call: object = call, paths: list[str] = paths, direct: bool = direct) -> None:
                call(paths[first::threads], memory, offsets[first::threads], size, direct)  # type: ignore[operator]

            rows[f"vLLM fs, {what}, {way}"].append(in_pool(some, range(threads), threads))
        for path in paths:
            os.unlink(path)  # noqa: PTH108


def in_pool(call: object, given: range, threads: int) -> float:
    with ThreadPoolExecutor(threads) as pool:
        start = time.perf_counter()
        list(pool.map(call, given))  # type: ignore[arg-type]
        return time.perf_counter() - start


def lmcache_disk(folder: Path, memory: memoryview, size: int, threads: int, rows: dict[str, list[float]]) -> None:
    """LMCache's local disk backend."""
    from lmcache.v1.storage_backend.local_disk_backend import LocalDiskBackend

    count = memory.nbytes // size
    pieces = [memory[number * size : (number + 1) * size] for number in range(count)]
    for way, direct in WAYS.items():
        stub = SimpleNamespace(use_odirect=direct, os_disk_bs=4096, dict={})

        def save(number: int, stub: object = stub) -> None:
            LocalDiskBackend.write_file(stub, pieces[number], str(folder / str(number)))

        def load(number: int, stub: object = stub) -> None:
            LocalDiskBackend.read_file(stub, number, pieces[number], str(folder / str(number)))

        for what, call in (("save", save), ("load", load)):
            rows[f"LMCache disk, {what}, {way}"].append(in_pool(call, range(count), threads))
        for number in range(count):
            (folder / str(number)).unlink()


def lmcache_fs(folder: Path, memory: memoryview, size: int, threads: int, rows: dict[str, list[float]]) -> None:
    """LMCache's file system connector, all chunks at once in its event loop."""
    from lmcache.v1.storage_backend.connector.fs_connector import FSConnector

    count = memory.nbytes // size
    objects = [SimpleNamespace(byte_array=memory[number * size : (number + 1) * size]) for number in range(count)]
    keys = [SimpleNamespace(to_string=lambda number=number: f"bench@1@0@{number}@half") for number in range(count)]
    free = list(objects)
    made = FSConnector.__new__(FSConnector)
    made.base_paths, made.relative_tmp_dir, made.read_ahead_size = [folder], None, None
    made.use_odirect, made.save_chunk_meta = False, False
    made.meta_shapes = made.meta_dtypes = made.meta_fmt = None
    made.local_cpu_backend = SimpleNamespace(allocate=lambda *_: free.pop())
    made.reshape_partial_chunk = lambda found, read: found if read == size else None

    async def run() -> tuple[float, float]:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(threads))
        start = time.perf_counter()
        await asyncio.gather(*(made.put(key, found) for key, found in zip(keys, objects, strict=True)))
        saved = time.perf_counter()
        found = await asyncio.gather(*(made.get(key) for key in keys))
        if None in found:
            raise SystemExit("stores_peers: LMCache's connector lost a chunk; the figures would mean nothing")
        return saved - start, time.perf_counter() - saved

    save, load = asyncio.run(run())
    rows["LMCache fs, save, the page cache"].append(save)
    rows["LMCache fs, load, the page cache"].append(load)


def main() -> None:
    folder = Path(sys.argv[1])
    total, size, rounds, threads = map(int, sys.argv[2:])
    memory = memoryview(mmap.mmap(-1, total))
    memory[:] = raw.memory(total)
    rows: dict[str, list[float]] = defaultdict(list)
    for peer in (vllm, lmcache_disk, lmcache_fs):
        for _ in range(rounds):
            place = folder / "peer"
            place.mkdir()
            try:
                peer(place, memory, size, threads, rows)
            except ImportError as error:
                print(f"stores_peers: {peer.__doc__}: {error}", file=sys.stderr)
                break
            finally:
                shutil.rmtree(place)
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
