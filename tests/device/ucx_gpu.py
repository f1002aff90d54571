"""UCX between two processes on memory of a device: puts and messages, host and GPU, beside the device's own copy.

    python tests/device/ucx_gpu.py [--memory cuda:0] [--peer cuda:1] [--transports auto] [--provider auto]

For a machine with a GPU or RDMA (`--memory host` measures a network device alone).  It uses kvhub-ucx's own layer, so
what it measures is what the plugin would get with an arena in that memory; a GPU needs the CUDA runtime (libcudart)
and a UCX that was built with it, as `libucx-cu12` is.  Prints a table, and ends with 1 when bytes arrive changed.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import statistics
import subprocess
import sys
import time
from array import array
from typing import Any

from kvhub.errors import KvhubError
from kvhub_ucx import Config, _settings
from kvhub_ucx._bindings import users_environment
from kvhub_ucx._libucp import IN_PROGRESS, Context, Worker, load

SIZES = [64 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20]
ARENA = 512 << 20
ROUNDS = 5
PATIENCE = 30.0


class Memory:
    """`ARENA` bytes on the host or on a GPU."""

    def __init__(self, kind: str) -> None:
        self.kind, self.cuda = kind, None
        if kind == "host":
            self._map = mmap.mmap(-1, ARENA)
            self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
            return
        self.cuda = _cudart()
        self._check(self.cuda.cudaSetDevice(int(kind.partition(":")[2] or 0)), "cudaSetDevice")
        pointer = ctypes.c_void_p()
        self._check(self.cuda.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(ARENA)), "cudaMalloc")
        self.address = pointer.value or 0

    @staticmethod
    def _check(code: int, call: str) -> None:
        if code:
            raise SystemExit(f"{call} failed with {code}; see `nvidia-smi` and the driver's version")

    def write(self, data: bytes, at: int = 0) -> None:
        if self.cuda is None:
            ctypes.memmove(self.address + at, data, len(data))
        else:
            source = ctypes.c_char_p(data)
            self._check(self.cuda.cudaMemcpy(ctypes.c_void_p(self.address + at), source, len(data), 1), "cudaMemcpy")

    def read(self, size: int, at: int = 0) -> bytes:
        buffer = ctypes.create_string_buffer(size)
        if self.cuda is None:
            ctypes.memmove(buffer, self.address + at, size)
        else:
            self._check(self.cuda.cudaMemcpy(buffer, ctypes.c_void_p(self.address + at), size, 2), "cudaMemcpy")
        return buffer.raw

    def own_copy(self, size: int) -> float:
        """GB/s of the memory's own copy within itself: the bound."""
        half, times = ARENA // 2, []
        for turn in range(ROUNDS * 4):
            at = turn * size % half
            start = time.perf_counter()
            if self.cuda is None:
                ctypes.memmove(self.address + half + at, self.address + at, min(size, half - at))
            else:
                to, source = ctypes.c_void_p(self.address + half + at), ctypes.c_void_p(self.address + at)
                self._check(self.cuda.cudaMemcpy(to, source, min(size, half - at), 3), "cudaMemcpy")
                self._check(self.cuda.cudaDeviceSynchronize(), "cudaDeviceSynchronize")
            times.append(min(size, half - at) / (time.perf_counter() - start) / 1e9)
        return statistics.median(times)


def _cudart() -> Any:
    for name in ("libcudart.so", "libcudart.so.12", "libcudart.so.13"):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise SystemExit("no libcudart on this machine: install the CUDA runtime, or measure --memory host")


class End:
    """One side: memory, registered, and one worker."""

    def __init__(self, memory: str, options: argparse.Namespace) -> None:
        self.memory = Memory(memory)
        library = load(options.provider)
        config = Config(transports=options.transports, provider=options.provider, devices=options.devices)
        settings = _settings.choose(config, users_environment(), library.version)
        if memory != "host" and "UCX_TLS" not in os.environ:
            settings["TLS"] = f"{settings['TLS']},cuda"
        self.context = Context(library, settings)
        self.context.register(self.memory.address, ARENA, memory)
        self.worker = Worker(self.context)

    def wait(self, request: int) -> None:
        end = time.monotonic() + PATIENCE
        while request and self.worker.status(request) == IN_PROGRESS:
            self.worker.progress()
            if time.monotonic() > end or self.worker.failed:
                raise SystemExit(f"no end within {PATIENCE:g} s on {', '.join(self.worker.lanes())}")
        if request:
            self.worker.library.check(self.worker.status(request), "transfer")
            self.worker.free(request)


def say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def serve(options: argparse.Namespace) -> None:
    """The receiving process: progresses until told otherwise, and tells what it received."""
    end = End(options.peer, options)
    said = {"address": end.worker.address().hex(), "ticket": end.context.ticket().hex(), "base": end.memory.address}
    say(**said)
    end.worker.connect(bytes.fromhex(json.loads(sys.stdin.readline())["address"]))
    os.set_blocking(0, False)
    keep: list[array[int]] = []
    while True:
        end.worker.progress()
        line = sys.stdin.readline()
        if not line:
            continue
        order = json.loads(line)
        if order["what"] == "receive":
            keep = [array("Q", (end.memory.address, order["size"]))]
            request = end.worker.receive(order["tag"], keep[0].buffer_info()[0], 1)
            say(posted=True)
            end.wait(request)
            say(done=True)
        elif order["what"] == "head":
            say(head=end.memory.read(order["size"]).hex())
        else:
            return


def measure(options: argparse.Namespace) -> int:
    command = [sys.executable, __file__, "--serve", *sys.argv[1:]]
    peer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert peer.stdin is not None and peer.stdout is not None

    def tell(**order: Any) -> None:
        peer.stdin.write(json.dumps(order) + "\n")  # type: ignore[union-attr]
        peer.stdin.flush()  # type: ignore[union-attr]

    def hear() -> dict[str, Any]:
        line = peer.stdout.readline()  # type: ignore[union-attr]
        if not line:
            raise SystemExit("the receiving process ended; its message is above")
        return dict(json.loads(line))

    try:
        end = End(options.memory, options)
        facts = hear()
        tell(address=end.worker.address().hex())
        end.worker.connect(bytes.fromhex(facts["address"]))
        end.worker.use_ticket(bytes.fromhex(facts["ticket"]))
        pattern = os.urandom(4096)
        end.memory.write(pattern)
        end.wait(end.worker.put(end.memory.address, 4096, facts["base"]))
        end.wait(end.worker.flush())
        tell(what="head", size=4096)
        good = bytes.fromhex(hear()["head"]) == pattern
        print(
            f"UCX {end.worker.library.version_text} ({end.worker.library.provider}), {options.memory} to {options.peer}"
        )
        print(f"lanes: {', '.join(end.worker.lanes())}; bytes arrived {'right' if good else 'CHANGED'}")
        print(f"{'bytes':>10} {'put GB/s':>10} {'message':>10} {'own copy':>10} {'put / own':>10}")
        for size in SIZES:
            puts, messages = [], []
            for turn in range(ROUNDS):
                count = max((256 << 20) // size, 1) if size < (16 << 20) else 8
                start = time.perf_counter()
                requests = []
                for number in range(count):
                    at = number * size % (ARENA - size + 1)
                    requests.append(end.worker.put(end.memory.address + at, size, facts["base"] + at))
                for request in requests:
                    end.wait(request)
                end.wait(end.worker.flush())
                puts.append(count * size / (time.perf_counter() - start) / 1e9)
                tell(what="receive", tag=turn, size=size)
                hear()
                words = array("Q", (end.memory.address, size))
                start = time.perf_counter()
                end.wait(end.worker.send(turn, words.buffer_info()[0], 1))
                hear()
                messages.append(size / (time.perf_counter() - start) / 1e9)
            own, put = end.memory.own_copy(size), statistics.median(puts)
            print(f"{size:>10} {put:>10.2f} {statistics.median(messages):>10.2f} {own:>10.2f} {put / own:>10.2f}")
        tell(what="end")
        return 0 if good else 1
    finally:
        peer.terminate()
        peer.wait(10)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--memory", default="cuda:0", help="where the sender's bytes are: host, cuda:N")
    parser.add_argument("--peer", default="", help="the receiver's; the same kind unless told")
    parser.add_argument("--transports", default="auto")
    parser.add_argument("--provider", default="auto")
    parser.add_argument("--devices", default="lo", help="as UCX_NET_DEVICES: lo, or with RDMA 'lo,mlx5_0:1'")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.peer = options.peer or options.memory
    try:
        if options.serve:
            serve(options)
            return 0
        return measure(options)
    except KvhubError as error:
        raise SystemExit(str(error)) from error


if __name__ == "__main__":
    sys.exit(main())
