"""Two workers in a process of their own, for tests of what ends with a worker: `python ucx_fence.py PROVIDER CASE`.

`posted` destroys a receiver into whose posted receive a message has half arrived, `unasked` one that has half of a
message which it never asked for.  Says in one line of JSON what it saw.
"""

from __future__ import annotations

import contextlib
import ctypes as c
import faulthandler
import json
import os
import sys
import time
from array import array
from pathlib import Path
from typing import Any

from kvhub_ucx import Config, _libucp, _settings
from kvhub_ucx._layout import ReceiveInfo

_BYTES = 8 << 20
_AS_LONG_AS_IT_TAKES = 20.0


def _threads() -> list[str]:
    found = []
    for path in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            found.append(path.joinpath("comm").read_text().strip())
    return sorted(found)


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _half_way(receiver: Any, sender: Any, arrived: Any) -> None:
    """Let the two work in small steps until some of the message is there, and not all of it."""
    end = time.monotonic() + _AS_LONG_AS_IT_TAKES
    while not arrived():
        sender.progress(1)
        receiver.progress(1)
        assert time.monotonic() < end, "nothing arrived"


def main() -> None:
    faulthandler.dump_traceback_later(60, exit=True)
    provider, case = sys.argv[1:]
    library = _libucp.load(provider)
    before = _threads()
    context = _libucp.Context(library, _settings.choose(Config(transports="tcp"), {}, library.version))
    receiver, sender = _libucp.Worker(context), _libucp.Worker(context)
    receiver.connect(sender.address())
    sender.connect(receiver.address())
    source, sink = array("B", b"\xa5" * _BYTES), array("B", bytes(_BYTES))
    out, into = array("Q", source.buffer_info()), array("Q", sink.buffer_info())
    info, post = ReceiveInfo(), case == "posted"
    if post:
        receiver.receive(1, into.buffer_info()[0], 1)
    sending = sender.send(1, out.buffer_info()[0], 1)
    _half_way(
        receiver,
        sender,
        (lambda: sink[0] != 0)
        if post
        else lambda: library.ucp_tag_probe_nb(receiver.handle, 0, 0, 0, c.addressof(info)),
    )
    half = bytes(sink).count(0xA5)
    threads = _threads()

    # As a link does that is cut: closed without asking the peer, and then destroyed.
    efd, began = receiver.efd, time.monotonic()
    closing = receiver.force_close()
    while closing and receiver.status(closing) == _libucp.IN_PROGRESS and time.monotonic() < began + 1:
        receiver.progress()
    if closing:
        receiver.free(closing)
    there = bytes(sink).count(0xA5)
    receiver.destroy()
    took, is_open = time.monotonic() - began, _is_open(efd)
    at_fence = bytes(sink)

    # The sender, which knows nothing of that, goes on.
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        sender.progress()
    late = sum(now != then for now, then in zip(sink, at_fence, strict=True)) if bytes(sink) != at_fence else 0
    if sending:
        sender.free(sending)
    closing = sender.force_close()
    while closing and sender.status(closing) == _libucp.IN_PROGRESS:
        sender.progress()
    if closing:
        sender.free(closing)
    sender.destroy()
    context.close()
    # A thread that was joined is on the kernel's list a moment longer.
    patience = time.monotonic() + 5.0
    while len(_threads()) > len(before) and time.monotonic() < patience:
        time.sleep(0.01)
    print(
        json.dumps(
            {
                "provider": library.provider,
                "version": library.version,
                "half": half,
                "there": there,
                "took": took,
                "efd_open": is_open,
                "late": late,
                "started": [name for name in threads if name not in before],
                "left": len(_threads()) - len(before),
                "loaded": sorted(
                    {
                        line.split(maxsplit=5)[5]
                        for line in Path("/proc/self/maps").read_text().splitlines()
                        if "/libucp.so" in line
                    }
                ),
            }
        )
    )


if __name__ == "__main__":
    main()
