"""Servers in other shapes: two ranks, each with a hub of its own, and layouts that the other tests leave out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from e2e.asking import NOISE, prompt
from harness.outputs import difference, widest_gap
from harness.sglang import PAGE

from sglang_e2e.conftest import Begin
from sglang_e2e.test_sglang_server import wait_for

pytestmark = [pytest.mark.sglang, pytest.mark.slow]
LONG = prompt(300, 8)
WHOLE = (len(LONG) - 1) // PAGE * PAGE
TWO = {"flags": ["--tp", "2"], "env": {"SGLANG_CPU_OMP_THREADS_BIND": "0|1"}}


@pytest.mark.parametrize(
    ("name", "ranks", "given"),
    [
        pytest.param("two-ranks", 2, TWO, id="tp2"),
        pytest.param("page-head", 1, {"layout": "page_head"}, id="page_head"),
        pytest.param("flat", 1, {"layout": "layer_first"}, id="layer_first"),
    ],
)
def test_a_restarted_server_is_served_by_the_pool(
    begin: Begin, home: Path, chunks: Callable[[], list[Path]], name: str, ranks: int, given: dict[str, Any]
) -> None:
    before = len(chunks())
    engine = begin(name, **given)
    engine.ready()
    first = engine.generate(LONG, max_tokens=8)
    wait_for(chunks, before + ranks * (WHOLE // PAGE) if ranks > 1 or not before else before)
    engine.stop()
    engine.start()
    engine.ready()
    again = engine.generate(LONG, max_tokens=8)
    engine.stop()
    assert again.storage == WHOLE
    assert difference(first, again) is None and widest_gap(first, again) <= NOISE
