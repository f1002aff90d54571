"""Mutated files: whatever stands in them, loading gives a configuration or a ConfigError, and nothing else."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kvhub import ConfigError
from kvhub.config import load
from kvhub.plugins import Registry

PIECES = [
    "[", "]", "{", "}", ":", ",", "-", "'", '"', "~", "|", "?", "<<", "#", "\n", "  ", "\t", "\x00", "é", "null", "1",
    "true", "no", "1e3", "0123", "&a", "*a", "!!x", "[]", "{}", "a", "host", "pool", "wire", "use", "from",
    "both",
]  # fmt: skip
VARIABLES = ["CHUNK_TOKENS", "LIMITS__LEASE", "STORES__POOL__ROOT", "ROLES__DECODE__STORE", "MODEL__ID", "STORES____X"]


@pytest.mark.parametrize("seed", range(4))
def test_no_mutation_of_a_file_raises_anything_else(
    seed: int, tmp_path: Path, registry: Registry, pd_text: str
) -> None:
    chance = random.Random(seed)
    path = tmp_path / "mutated.yaml"
    refused = 0
    for _ in range(100):
        text = pd_text
        for _ in range(chance.randint(0, 3)):
            start = chance.randrange(len(text))
            piece = chance.choice(PIECES) if chance.random() < 0.7 else ""
            text = text[:start] + piece + text[start + chance.randint(0, 8) :]
        path.write_text(text, encoding="utf-8")
        environ = {"KVHUB_" + chance.choice(VARIABLES): chance.choice(PIECES) for _ in range(chance.randint(0, 1))}
        try:
            config = load(path, registry, environ=environ, role=chance.choice([None, "decode"]))
        except ConfigError as error:
            refused += 1
            assert error.problems
            assert all(isinstance(problem, str) and problem for problem in error.problems)
        else:
            assert dict(config.values()).keys() == config.origin.keys()
    assert 0 < refused < 100
