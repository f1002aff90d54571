"""One zygote for all engines of the suite, and configurations for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs the engine environment: make engine")

from harness.engine import ForkedEngine, Zygote
from harness.paths import model
from harness.serving import connector

Start = Callable[..., ForkedEngine]

TIERED = """\
kvhub: 1
chunk_tokens: 64
limits: {{lookup: 5s}}
stores:
  host: {{use: host, capacity: 128MiB}}
  pool: {{use: nfs, root: "{pool}"}}
roles:
  both: {{store: [host, pool], retrieve: [host, {{from: pool, deadline: 10s}}]}}
"""
POOL_ONLY = """\
kvhub: 1
chunk_tokens: 64
limits: {{lookup: 5s}}
stores:
  pool: {{use: nfs, root: "{pool}"}}
roles:
  both: {{store: [pool], retrieve: [{{from: pool, deadline: 10s}}]}}
"""
PD = """\
kvhub: 1
chunk_tokens: 64
limits: {{lookup: 5s, lease: 20s}}
stores:
  host: {{use: host, capacity: 128MiB}}
  pool: {{use: nfs, root: "{pool}"}}
transports:
  wire: {{use: ucx, listen: "127.0.0.1:0", path: message}}
roles:
  prefill:
    store:    [host, wire]
    retrieve: [{{from: pool, deadline: 10s}}]
  decode:
    store:    [host, pool]
    retrieve: [host, {{from: wire, deadline: 10s}}, {{from: pool, deadline: 10s}}]
    write_back: [prompt, generated]
"""


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    with Zygote() as one:
        yield one


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    path = tmp_path / "pool"
    path.mkdir()
    return path


@pytest.fixture
def start(zygote: Zygote, tmp_path: Path, pool: Path) -> Iterator[Start]:
    """`start(role, yaml)` forks an engine with kvhub, `start(None)` a plain one; all are stopped at the end."""
    running: list[ForkedEngine] = []

    def one(role: str | None = None, yaml: str = TIERED, *, name: str = "tiny-llama", **settings: Any) -> ForkedEngine:
        config = tmp_path / f"kvhub-{len(running)}.yaml"
        config.write_text(yaml.format(pool=pool))
        transfer = {"kv_transfer_config": connector(config, role)} if role else {}
        engine = zygote.engine(model(name), tmp_path / f"engine-{len(running)}.log", **{**transfer, **settings})
        running.append(engine)
        return engine

    yield one
    for engine in running:
        engine.stop()
