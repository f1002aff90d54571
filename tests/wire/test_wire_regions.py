"""Regions that a wire cannot serve are refused at start."""

from __future__ import annotations

import attrs
import pytest

from kvhub.errors import KvhubError
from kvhub.testing import make_context, make_region
from kvhub.testing.wire_peer import make_member


@pytest.mark.parametrize("use", ["tcp", "ucx"])
def test_device_memory_needs_a_transport_that_claims_it(use: str) -> None:
    pytest.importorskip(f"kvhub_{use}")
    member = make_member(use, {}, make_context("wire"))
    region = attrs.evolve(make_region(), memory="cuda:0")
    with pytest.raises(KvhubError, match=r"wire: the region is in the memory of cuda:0, .*; give it an arena in host"):
        member.attach(region, lambda: None)
    assert not member.capabilities.device_direct
    member.close()
