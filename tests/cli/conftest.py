"""The core's fixtures, and an environment without variables of ours."""

from __future__ import annotations

import os

import pytest
from core.conftest import dists, registry

__all__ = ["dists", "registry"]


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("KVHUB_"):
            monkeypatch.delenv(name)
