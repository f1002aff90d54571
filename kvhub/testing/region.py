"""A region, a context, keys and payloads for tests, without a hub."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import random
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256

import attrs

from kvhub.codec import Codecs
from kvhub.layout import Layout
from kvhub.types import Key, MemberContext, Region

LAYOUT = Layout(
    "attention", layers=6, block_tokens=16, key_dim=16, value_dim=16, dtype="float16",
    key_order="lcthd", value_order="lcthd",
)  # fmt: skip
OTHER_LAYOUT = attrs.evolve(LAYOUT, key_order="lchtd", value_order="lchtd")
"""The same numbers in another order: another engine that shares the medium."""
CHUNK_TOKENS = 64
CHUNK_BYTES = LAYOUT.payload_bytes(CHUNK_TOKENS)
REGION_NAME = "kvhub-test-region"
SLOT_BYTES = 32768
"""A full chunk of `LAYOUT` and some room, so that longer tails than a chunk are tried too."""


def make_region(slots: int = 64, slot_bytes: int = SLOT_BYTES) -> Region:
    """`slots` zeroed slots in a memfd of its own, like a hub's arena; freed when nobody holds region and view."""
    fd = os.memfd_create(REGION_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, slots * slot_bytes)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    memory = mmap.mmap(fd, slots * slot_bytes)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    region = Region(memoryview(memory), address, slot_bytes, slots, f"/proc/{os.getpid()}/fd/{fd}")
    weakref.finalize(region, os.close, fd)
    return region


def make_context(
    name: str = "member",
    *,
    namespace: str = "tests",
    layout: Layout = LAYOUT,
    incarnation: str = "",
    report: Callable[[str, int], None] = lambda name, count: None,
    codecs: Codecs | None = None,
) -> MemberContext:
    """What a hub would tell a member; equal `namespace` words give equal namespaces."""
    return MemberContext(
        name=name,
        namespace=sha256(b"namespace " + namespace.encode()).digest(),
        namespace_json=f'{{"model": "{namespace}"}}',
        chunk_bytes=CHUNK_BYTES,
        layout=layout,
        incarnation=incarnation or f"{name}-{random.getrandbits(64):016x}",
        report=report,
        codecs=codecs,
    )


def make_key(name: str | int) -> Key:
    """A key that looks like a real one: equal names give equal keys."""
    return sha256(f"key {name}".encode()).digest()


class Payload(bytes):
    """Bytes of a chunk that say little about themselves.

    A law that fails would otherwise have pytest draw a line-by-line difference of kilobytes; where the variable CI is
    set it shortens nothing, and that takes minutes.
    """

    def __repr__(self) -> str:
        return f"<{len(self)} bytes, {sha256(self).hexdigest()[:8]}>"


def make_payload(name: str | int, length: int = CHUNK_BYTES) -> bytes:
    """`length` bytes that differ between names and do not repeat within themselves; see `like_floats`."""
    data = random.Random(str(name)).randbytes(length)
    if not _textures:
        return Payload(data)
    made = bytearray(data)
    made[1::2] = made[1::2].translate(_HIGH_BYTES)
    return Payload(made)


_HIGH_BYTES = bytes(0x38 | byte & 0x83 for byte in range(256))
_textures: list[str] = []


@contextmanager
def like_floats() -> Iterator[None]:
    """Payloads of 16-bit floats around 1 instead of noise, which no codec makes smaller."""
    _textures.append("floats")
    try:
        yield
    finally:
        _textures.pop()
