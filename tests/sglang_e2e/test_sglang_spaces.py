"""One namespace for two engines when their KV is interchangeable, and only then; without a server."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from harness.paths import ENGINE_PYTHON, engine_environment, model
from harness.sglang import SGLANG_PYTHON, sglang_environment

pytestmark = pytest.mark.sglang
SCRIPT = Path(__file__).with_name("spaces.py")
PYTHONS = {"vllm": (ENGINE_PYTHON, engine_environment), "sglang": (SGLANG_PYTHON, sglang_environment)}
MODELS = ("tiny-llama", "tiny-qwen3")
Spaces = dict[str, tuple[str, str]]
Computed = dict[str, dict[str, Spaces]]


@pytest.fixture(scope="module")
def computed(tmp_path_factory: pytest.TempPathFactory) -> Computed:
    """Engine -> model -> variant -> namespace's digest and text.  An engine takes long to import: each does it once."""
    paths = {name: model(name) for name in MODELS} | {"other": tmp_path_factory.mktemp("models") / "other"}
    shutil.copytree(paths["tiny-llama"], paths["other"])
    (weights,) = paths["other"].glob("*.safetensors")
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    return {
        engine: dict(zip(paths, spaces(engine, [str(path) for path in paths.values()]), strict=True))
        for engine in PYTHONS
    }


def spaces(engine: str, models: Sequence[str]) -> list[Spaces]:
    python, environment = PYTHONS[engine]
    command = [python, SCRIPT, engine, *models]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=300, check=False)
    told = [line for line in done.stdout.splitlines() if line.startswith("SPACES ")]
    assert told, done.stderr[-3000:]
    found = json.loads(told[-1].removeprefix("SPACES "))
    return [{name: (digest, text) for name, (digest, text) in found[one].items()} for one in models]


@pytest.mark.parametrize("weights", MODELS)
def test_two_engines_agree_exactly_where_their_kv_does(computed: Computed, weights: str) -> None:
    """Weights, dtype and rotary set-up are equal or not, for both engines alike; quantised KV stays with its engine."""
    one, other = computed["vllm"][weights], computed["sglang"][weights]
    for name in ("plain", "half", "rotary", "scaled"):
        assert one[name] == other[name], f"{name}: {_difference(one[name][1], other[name][1])}"
    for each in (one, other):
        digests = {digest for digest, _ in each.values()}
        assert len(digests) == len(each), "every variant has a namespace of its own"
    assert one["fp8"] != other["fp8"], "scales of quantised KV are an engine's own"


@pytest.mark.parametrize("engine", PYTHONS)
def test_other_weights_of_the_same_shape_are_another_namespace(computed: Computed, engine: str) -> None:
    """One bit of them differs."""
    mine, other = computed[engine]["tiny-llama"], computed[engine]["other"]
    assert not {digest for digest, _ in mine.values()} & {digest for digest, _ in other.values()}


def _difference(one: str, other: str) -> str:
    """What two namespaces' texts differ in."""
    mine, theirs = json.loads(one), json.loads(other)
    if mine["groups"] != theirs["groups"]:
        mine, theirs = (json.loads(text["groups"])["config"] for text in (mine, theirs))
    return str(
        {name: (mine.get(name), theirs.get(name)) for name in {*mine, *theirs} if mine.get(name) != theirs.get(name)}
    )
