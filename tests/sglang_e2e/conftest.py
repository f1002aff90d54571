"""Servers on a pool of the module's own: each takes half a minute to start, so that tests share them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sglang", reason="needs SGLang's environment: make sglang")

from harness.paths import model
from harness.sglang import SglangEngine, backend

YAML = """\
kvhub: 1
chunk_tokens: 64
limits: {{lookup: {lookup}, staging: 64MiB}}
stores:
  pool: {{use: nfs, root: "{pool}"}}
roles:
  both: {{store: [pool], retrieve: [{{from: pool, deadline: {deadline}}}]}}
"""
Begin = Callable[..., SglangEngine]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sglang")
    (path / "pool").mkdir()
    return path


@pytest.fixture(scope="module")
def begin(home: Path) -> Iterator[Begin]:
    """`begin(name)` starts a server with kvhub, `begin(name, plain=True)` one without; it is not waited for."""
    with ExitStack() as running:

        def one(
            name: str,
            *,
            plain: bool = False,
            lookup: str = "5s",
            deadline: str = "10s",
            weights: str = "tiny-llama",
            **more: Any,
        ) -> SglangEngine:
            config = home / f"{name}.yaml"
            config.write_text(YAML.format(pool=home / "pool", lookup=lookup, deadline=deadline))
            storage = None if plain else backend(config, "both")
            engine = SglangEngine(name, model(weights), home / f"{name}.log", storage=storage, **more)
            running.enter_context(engine)
            return engine

        yield one


@pytest.fixture(scope="module")
def chunks(home: Path) -> Callable[[], list[Path]]:
    """The pool's chunk files, oldest name first."""
    return lambda: sorted(path for path in (home / "pool").rglob("*.kv") if ".tmp" not in path.parts)
