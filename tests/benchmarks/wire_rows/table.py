"""The table of a medium, and what its rows have in them."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from wire_rows.cases import SINGLE
from wire_rows.goals import Samples

_NOTES = """\
GB/s (1e9 bytes) of payload; one64KiB is the time of one pull in µs.  Median of the rounds (least-most).
Source on core 1, target on core 0, arenas of ARENA MiB (memfd) walked through, so that memory is cold.
  kvhub-*        pulls by key, one LOAD of 64 MiB (10000x32KiB: 312 MiB) at a time, `submit` until polled after `wake`:
                 leases, the word that it is whole and, on TCP and veth, XXH3-128 of every chunk at both ends are in it.
                 TCP, veth: the arena's name is withheld, so that all bytes take the network, as between two machines
                 shared memory: the puller maps the peer's arena; as by default, nothing is hashed within one machine
  checked        the same with `checksum: always`
  unmapped       the arena's name is withheld: UCX's shared memory
  default        unmapped, and with UCX's own settings wherever the plugin has others
  plain sockets  one connection, one request per 64 MiB; sendmsg and recvmsg_into of 1024 slots; nothing checked
  sockets checked  the same with XXH3-128 of every 2 MiB at both ends, as kvhub does on a network
  NIXL           one transfer of the same descriptors, built before; state DONE at who started it; nothing checked
  perftest       UCX's own settings (256K: TCP segments of the plugin's size), 32 messages under way, one buffer that
                 stays in the cache, nothing checked, no peer error handling
  memcpy         one core's memmove, one call per chunk, both arenas in one process: no peer, nothing checked"""


def notes(arena_mib: int) -> str:
    return _NOTES.replace("ARENA", str(arena_mib))


def table(medium: str, title: str, samples: Samples, rows: Sequence[str], cases: Sequence[str]) -> list[str]:
    """Lines: a head and one for each row that has any figure."""
    head = "".join(f"{case + (' µs' if case == SINGLE else ''):>20}" for case in cases)
    lines = [title, " " * 23 + head]
    for row in rows:
        cells = [_cell(samples.get((medium, row, case), ()), case) for case in cases]
        if any(cell != "-" for cell in cells):
            lines.append(f"  {row:<21}" + "".join(f"{cell:>20}" for cell in cells))
    return lines


def _cell(values: Sequence[float], case: str) -> str:
    if not values:
        return "-"
    digits = 0 if case == SINGLE else 2
    if min(values) >= 10:
        digits = min(digits, 1)
    middle, low, high = (f"{value:.{digits}f}" for value in (median(values), min(values), max(values)))
    return f"{middle} ({low}-{high})" if len(values) > 1 else middle
