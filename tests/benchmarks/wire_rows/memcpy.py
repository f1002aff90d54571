"""What the memory itself does: one core's memmove of the same chunks between two cold arenas of one process."""

from __future__ import annotations

import ctypes
import time
from typing import Any

from wire_rows import worker
from wire_rows.cases import Case, clear, plain_arena, wrong


class Memcpy:
    """The floor under every row: nothing is sent, nothing is checked."""

    def __init__(self) -> None:
        self.source, self.target = plain_arena(True), plain_arena(False)
        self.pulls: dict[str, int] = {}

    def pull(self, case: str, count: int, check: bool) -> dict[str, Any]:
        what, bad, seconds = Case(case), 0, []
        source, target = (ctypes.addressof(ctypes.c_char.from_buffer(view)) for view in (self.source, self.target))
        size, move = what.bytes, ctypes.memmove
        for turn in range(count + check):
            from_, to = what.slots_of(self.pulls.get(case, 0))
            self.pulls[case] = self.pulls.get(case, 0) + 1
            checked = check and not turn
            if checked:
                clear(self.target, what, to)
            pairs = [(target + b * size, source + a * size) for a, b in zip(from_, to, strict=True)]
            start = time.perf_counter()
            for there, here in pairs:
                move(there, here, size)
            took = time.perf_counter() - start
            if checked:
                bad = wrong(self.target, what, from_, to)
            else:
                seconds.append(took)
        return {"seconds": seconds, "bytes": what.total, "wrong": bad}


if __name__ == "__main__":
    worker.run({"pull": Memcpy().pull})
