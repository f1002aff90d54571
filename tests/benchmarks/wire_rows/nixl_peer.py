"""NIXL's UCX backend: `python -m wire_rows.nixl_peer ROLE CORE`, run in the environment that `nixl_env.sh` builds.

The initiator posts one transfer of all chunks and asks for its state until it is done; the other side has NIXL's
progress thread.  Descriptors are built before the clock starts, as an engine that keeps them would have it.
"""

from __future__ import annotations

import base64
import ctypes
import os
import sys
import time
from typing import Any

import numpy as np
from nixl_cu12._api import nixl_agent, nixl_agent_config

from wire_rows import worker
from wire_rows.cases import ARENA_BYTES, Case, clear, plain_arena, wrong

PATIENCE = 60.0


class End:
    """`role` is "server" (has the bytes) or "puller"; whichever of them starts the transfers is told so by `open`."""

    def __init__(self, role: str) -> None:
        self.role = role
        self.memory = plain_arena(role == "server")
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.pulls: dict[str, int] = {}

    def open(self, starts: bool) -> dict[str, Any]:
        # Who starts drives UCX itself while it asks; a second thread would only take its core away.
        config = nixl_agent_config(enable_prog_thread=not starts, backends=["UCX"])
        self.agent = nixl_agent(f"{self.role}-{os.getpid()}", config)
        self.agent.register_memory([(self.address, ARENA_BYTES, 0, "")], "DRAM")
        return {"metadata": base64.b64encode(self.agent.get_agent_metadata()).decode(), "address": self.address}

    def meet(self, metadata: str, address: int) -> dict[str, Any]:
        name = self.agent.add_remote_agent(base64.b64decode(metadata))
        self.peer, self.peer_address = name.decode() if isinstance(name, bytes) else name, address
        return {}

    def _descriptors(self, base: int, case: Case, slots: list[int]) -> Any:
        table = np.zeros((case.count, 3), np.uint64)
        table[:, 0] = np.asarray(slots, np.uint64) * np.uint64(case.bytes) + np.uint64(base)
        table[:, 1] = case.bytes
        return self.agent.get_xfer_descs(table, "DRAM")

    def transfer(self, case: str, operation: str, count: int) -> dict[str, Any]:
        what, seconds = Case(case), []
        for _ in range(count):
            number = self.pulls.get(case, 0)
            self.pulls[case] = number + 1
            source, target = what.slots_of(number)
            mine, theirs = (source, target) if self.role == "server" else (target, source)
            handle = self.agent.initialize_xfer(
                operation,
                self._descriptors(self.address, what, mine),
                self._descriptors(self.peer_address, what, theirs),
                self.peer,
            )
            start = time.perf_counter()
            state = self.agent.transfer(handle)
            while state == "PROC":
                state = self.agent.check_xfer_state(handle)
                if time.perf_counter() - start > PATIENCE:
                    raise TimeoutError(f"{operation} of {what.count} chunks: not done within {PATIENCE:g} s")
            seconds.append(time.perf_counter() - start)
            if state != "DONE":
                raise RuntimeError(f"{operation} of {what.count} chunks ended with {state}")
            self.agent.release_xfer_handle(handle)
        return {"seconds": seconds, "bytes": what.total, "wrong": 0}

    def clear(self, case: str, number: int) -> dict[str, Any]:
        clear(self.memory, Case(case), Case(case).slots_of(number)[1])
        return {}

    def wrong(self, case: str, number: int) -> dict[str, Any]:
        source, target = Case(case).slots_of(number)
        return {"wrong": wrong(self.memory, Case(case), source, target)}

    def next(self, case: str) -> dict[str, Any]:
        return {"number": self.pulls.get(case, 0)}


if __name__ == "__main__":
    end = End(sys.argv[1])
    commands = ("open", "meet", "transfer", "clear", "wrong", "next")
    worker.run({name: getattr(end, name) for name in commands})
