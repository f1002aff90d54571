"""Which memory of other processes is mapped, and which is not."""

from __future__ import annotations

import os

import attrs
import pytest

from kvhub.arena import Arena
from kvhub.wire.mapped import Mapping, identity


def test_an_arena_cannot_be_cut_off_under_its_readers() -> None:
    arena = Arena(8 * 4096, 4096)
    region = arena.region
    mapping = Mapping(region.name, identity(region), region.slots, region.slot_bytes)
    with pytest.raises(PermissionError):
        os.truncate(region.name, 4096)
    mapping.close()
    arena.close()


def test_memory_that_may_shrink_is_not_mapped() -> None:
    """A read beyond its new end would be a SIGBUS in the reader."""
    fd = os.memfd_create("loose", os.MFD_CLOEXEC)
    os.ftruncate(fd, 8 * 4096)
    arena = Arena(8 * 4096, 4096)
    loose = attrs.evolve(arena.region, name=f"/proc/{os.getpid()}/fd/{fd}")
    with pytest.raises((ValueError, OSError), match="may shrink"):
        Mapping(loose.name, identity(loose), 8, 4096)
    os.close(fd)
    arena.close()
