"""SGLang's own pools and storage factory, with kvhub behind them; no server and no model."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sglang", reason="needs SGLang's environment: make sglang")
os.environ["SGLANG_USE_CPU_ENGINE"] = "1"

import kvhub_sglang.storage
import sglang.srt.managers.scheduler  # noqa: F401  where it is loaded plugins set their hooks
from harness.hicache import YAML, Stack, Start, model
from sglang.srt.plugins import load_plugins

load_plugins()


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    path = tmp_path / "pool"
    path.mkdir()
    return path


@pytest.fixture
def start(tmp_path: Path, pool: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """`start(kind, layout)`: pools of that kind and a backend on the shared directory; closed behind the test."""
    made: list[Stack] = []

    def one(kind: str = "mha", layout: str = "page_first", *, yaml: str = YAML, **given: Any) -> Stack:
        config = tmp_path / f"kvhub-{len(made)}.yaml"
        config.write_text(yaml.format(pool=pool))
        told = given.pop("model", {})
        stack = Stack(kind, layout, config, **given)
        facts = {"dtype": str(stack.dtype).removeprefix("torch."), **told}
        monkeypatch.setattr(kvhub_sglang.storage, "read_model", lambda: model(**facts))
        made.append(stack)
        stack.attach()
        return stack

    yield one
    for stack in made:
        stack.close()
