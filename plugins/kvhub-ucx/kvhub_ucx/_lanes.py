"""The lanes that UCX has chosen for an endpoint: how an old library tells them, and what the options ask of them."""

from __future__ import annotations

import ctypes as c
import re
from collections.abc import Iterable

from kvhub_ucx.config import Config

_LANE = re.compile(r"lane\[\d+\]: +\d+:(\w+)/(\S+?)\.\d+ ")


def lacking(config: Config, lanes: Iterable[str]) -> str:
    """What is wrong when `require` is set and no lane is of that kind; empty where all is well."""
    wanted = tuple(config.require.split(",")) if config.require else ()
    lanes = tuple(lanes)
    if not wanted or any(lane.startswith(wanted) for lane in lanes):
        return ""
    return f"require={config.require!r}, but UCX chose {', '.join(lanes) or 'nothing'}"


def parse(text: str) -> tuple[str, ...]:
    """`transport/device` of each lane in what `ucp_ep_print_info` says."""
    return tuple(dict.fromkeys(f"{found[1]}/{found[2]}" for found in _LANE.finditer(text)))


def printed(soname: str, endpoint: int | None) -> tuple[str, ...]:
    """The lanes of an endpoint by UCX's own printout, which 1.13 has while it has no query for them."""
    libc, buffer, size = c.PyDLL(None), c.c_void_p(), c.c_size_t()
    libc.open_memstream.restype, libc.open_memstream.argtypes = c.c_void_p, (c.c_void_p, c.c_void_p)
    libc.fclose.argtypes = libc.free.argtypes = (c.c_void_p,)
    show = c.PyDLL(soname).ucp_ep_print_info
    show.restype, show.argtypes = None, (c.c_void_p, c.c_void_p)
    stream = libc.open_memstream(c.byref(buffer), c.byref(size))
    if not stream:
        return ()
    show(endpoint, stream)
    libc.fclose(stream)
    text = c.string_at(buffer.value or 0, size.value)
    libc.free(buffer)
    return parse(text.decode(errors="replace"))
