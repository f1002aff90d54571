"""One namespace for two engines when their KV is interchangeable, and only then; without a server."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from harness.paths import ENGINE_PYTHON, engine_environment, model
from harness.sglang import SGLANG_PYTHON, sglang_environment

pytestmark = pytest.mark.sglang
SCRIPT = Path(__file__).with_name("spaces.py")
PYTHONS = {"vllm": (ENGINE_PYTHON, engine_environment), "sglang": (SGLANG_PYTHON, sglang_environment)}
Spaces = dict[str, tuple[str, str]]


def spaces(engine: str, weights: str, *names: str) -> Spaces:
    python, environment = PYTHONS[engine]
    command = [python, SCRIPT, engine, model(weights), *names]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=300, check=False)
    told = [line for line in done.stdout.splitlines() if line.startswith("SPACES ")]
    assert told, done.stderr[-3000:]
    return {name: (digest, text) for name, (digest, text) in json.loads(told[-1].removeprefix("SPACES ")).items()}


@pytest.mark.parametrize("weights", ["tiny-llama", "tiny-qwen3"])
def test_two_engines_agree_exactly_where_their_kv_does(weights: str) -> None:
    """Weights, dtype and rotary set-up are equal or not, for both engines alike; quantised KV stays with its engine."""
    one, other = spaces("vllm", weights), spaces("sglang", weights)
    for name in ("plain", "half", "rotary", "scaled"):
        assert one[name] == other[name], f"{name}: {_difference(one[name][1], other[name][1])}"
    for each in (one, other):
        digests = {digest for digest, _ in each.values()}
        assert len(digests) == len(each), "every variant has a namespace of its own"
    assert one["fp8"] != other["fp8"], "scales of quantised KV are an engine's own"


def test_other_weights_of_the_same_shape_are_another_namespace(tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "other"
    shutil.copytree(model("tiny-llama"), copy)
    (weights,) = copy.glob("*.safetensors")
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    python, environment = PYTHONS["sglang"]
    done = subprocess.run(
        [python, SCRIPT, "sglang", copy, "plain"], env=environment(), capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    told = json.loads(done.stdout.split("SPACES ")[1])
    assert told["plain"][0] != spaces("sglang", "tiny-llama", "plain")["plain"][0]


def _difference(one: str, other: str) -> str:
    """What two namespaces' texts differ in."""
    mine, theirs = json.loads(one), json.loads(other)
    if mine["groups"] != theirs["groups"]:
        mine, theirs = (json.loads(text["groups"])["config"] for text in (mine, theirs))
    return str(
        {name: (mine.get(name), theirs.get(name)) for name in {*mine, *theirs} if mine.get(name) != theirs.get(name)}
    )
