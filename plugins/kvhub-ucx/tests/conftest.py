"""Transports of this plugin for tests, in this process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import pytest

from kvhub.testing import Driver, FakeSource, make_context
from kvhub.testing.wire_hub import Hub

PROVIDER = os.environ.get("KVHUB_TEST_UCX_PROVIDER", "auto")
"""A process has one libucp, so what the tests are to run on is said from outside; peer processes hear it too."""


def ucx_problem() -> str:
    """Why UCX cannot be used here; empty when it can."""
    try:
        from kvhub_ucx import _libucp

        _libucp.load(PROVIDER)
    except Exception as error:
        return str(error)
    return ""


@pytest.fixture(scope="session")
def ucx() -> None:
    """A test that asks for this is skipped where there is no UCX, unless a provider was named."""
    if problem := ucx_problem():
        (pytest.skip if PROVIDER == "auto" else pytest.fail)(f"no UCX here: {problem}")


@pytest.fixture
def open_hub(ucx: None) -> Iterator[Callable[..., Hub]]:
    """`open_hub(name, slots=, slot_bytes=, elsewhere=, **options)`: attached, serving; closed later.

    The arena of a hub that is `elsewhere` has no name, as if on another machine.
    """
    from kvhub_ucx import Config, UcxTransport

    hubs: list[Hub] = []

    def open_hub(
        name: str = "hub", *, slots: int = 64, slot_bytes: int = 32768, elsewhere: bool = False, **options: Any
    ) -> Hub:
        counts: dict[str, int] = {}

        def report(what: str, count: int) -> None:
            counts[what] = counts.get(what, 0) + count

        transport = UcxTransport(Config(**options), make_context(name, report=report))
        driver = Driver(transport, slots=slots, slot_bytes=slot_bytes)
        if elsewhere:
            driver.region = attrs.evolve(driver.region, name="")
        driver.attach()
        hubs.append(Hub(driver, FakeSource(driver.region), counts))
        transport.serve(hubs[-1].source)
        return hubs[-1]

    yield open_hub
    for hub in hubs:
        hub.close()
