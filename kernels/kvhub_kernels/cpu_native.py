"""The compiled copy: numpy computes addresses, one call through ctypes walks them without the GIL."""

from __future__ import annotations

import ctypes
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from kvhub_kernels.plan import Ints
from kvhub_kernels.planes import planes, walk
from kvhub_kernels.sides import Place, Side

STREAM_BYTES = 2 << 20
"""From here on stores go past the caches: less would still be in the L2 cache when its checksum is computed."""


def _load() -> ctypes.CDLL | None:
    spec = find_spec("kvhub_kernels._native")
    if spec is None or spec.origin is None or not Path(spec.origin).exists():
        return None
    try:
        library = ctypes.CDLL(spec.origin)
    except OSError:
        return None
    array, number = ctypes.c_void_p, ctypes.c_int64
    library.kvhub_copy.argtypes = [number, array, array, number, number, number]
    library.kvhub_move.argtypes = [number, array, array, array, number, array, number, number]
    library.kvhub_copy.restype = library.kvhub_move.restype = None
    return library


_library = _load()
available: bool = _library is not None


def copy(source: Side, at: Place, target: Side, to: Place, threads: int) -> None:
    """Whole blocks of one layout, every layer."""
    assert _library is not None
    src, dst = np.ascontiguousarray(source.pages(at)), np.ascontiguousarray(target.pages(to))
    page = target.layout.block_bytes // target.layout.layers
    _library.kvhub_copy(src.size, src.ctypes.data, dst.ctypes.data, page, src.size * page >= STREAM_BYTES, threads)


def move(source: Side, at: Place, target: Side, to: Place, tokens: Ints, threads: int) -> None:
    """Token ranges, from any order of axes to any."""
    assert _library is not None
    src, dst, walks = moves(source, at, target, to)
    count = np.repeat(tokens, target.layout.layers)
    row = int((walks[:, 0] * walks[:, 1] * walks[:, 2]).sum())
    stream = int(count.sum()) * row >= STREAM_BYTES
    _library.kvhub_move(
        src.size, src.ctypes.data, dst.ctypes.data, count.ctypes.data, len(walks), walks.ctypes.data, stream, threads
    )


def moves(source: Side, at: Place, target: Side, to: Place) -> tuple[Ints, Ints, Ints]:
    """Addresses [pieces, layers, planes] of first tokens, source and target, and the planes' walks [planes, 9]."""
    pairs = list(zip(planes(source.layout), planes(target.layout), strict=True))
    src = np.stack([source.tokens(at, plane) for plane, _ in pairs], axis=-1)
    dst = np.stack([target.tokens(to, plane) for _, plane in pairs], axis=-1)
    return src, dst, np.array([walk(*pair) for pair in pairs], dtype=np.int64)
