"""`kvhub config schema`: a true JSON Schema, which takes every file of ours and refuses what `kvhub check` refuses."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import attrs
import jsonschema
import pytest

from kvhub import ConfigError, hookimpl
from kvhub.cli import main
from kvhub.config import load
from kvhub.plugins import Registry
from kvhub.schema import _section, schema
from kvhub.units import seconds, size
from kvhub.yamlfile import read

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "configs").glob("*.yaml"))


@pytest.fixture(scope="module")
def whole() -> dict[str, Any]:
    found, left_out = schema(Registry())
    assert left_out == []
    return found


@pytest.fixture(scope="module")
def validator(whole: dict[str, Any]) -> Any:
    jsonschema.Draft202012Validator.check_schema(whole)
    return jsonschema.Draft202012Validator(whole)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_file_of_configs_is_valid(validator: Any, file: Path) -> None:
    assert list(validator.iter_errors(read(file.read_text(), file.name).data)) == []


def test_the_documented_file_is_valid(validator: Any) -> None:
    [block] = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "configure.md").read_text(), re.DOTALL)
    assert list(validator.iter_errors(read(block, "documented").data)) == []


GOOD: dict[str, Any] = {
    "kvhub": 1,
    "chunk_tokens": 64,
    "limits": {"lookup": "50ms", "queue": "1GiB"},
    "stores": {"host": {"use": "host", "capacity": "1 GiB"}, "pool": {"use": "nfs", "root": "/mnt/kv", "workers": 8}},
    "roles": {"both": {"store": ["host", {"to": "pool", "when": {"uses": 2}}], "retrieve": ["host", {"from": "pool"}]}},
}
BROKEN = [
    ("kvhub", 2),
    ("kvhub", None),
    ("store", {}),
    ("chunk_tokens", 0),
    ("chunk_tokens", "64"),
    ("limits.lookup", "50 sec"),
    ("limits.lokup", "50ms"),
    ("limits.queue", "lots"),
    ("limits.queue", -1),
    ("plugins", {"alow": []}),
    ("plugins", {"allow": "kvhub-nfs"}),
    ("stores.host.capacity", "1GiBi"),
    ("stores.host.capacity", True),
    ("stores.host.policy", "mru"),
    ("stores.host.use", "hosst"),
    ("stores.Pool", {"use": "nfs", "root": "/x"}),
    ("stores.pool.rooot", "/x"),
    ("stores.pool", {"use": "nfs"}),
    ("stores.pool.root", 7),
    ("stores.pool.io", "fast"),
    ("stores.pool.fsync", "yes"),
    ("stores.pool", {"root": "/x"}),
    ("transports", {"wire": {"use": "tcp", "path": "pidgeon"}}),
    ("roles.bothe", {"store": ["host"]}),
    ("roles.both.store", "host"),
    ("roles.both.retreive", ["host"]),
    ("roles.both.store", [{"from": "pool"}]),
    ("roles.both.retrieve", [{"from": "pool", "when": {"uses": 2}}]),
    ("roles.both.write_back", ["promt"]),
    ("roles", {}),
]


@pytest.mark.parametrize(("path", "value"), BROKEN, ids=[f"{path}={value}" for path, value in BROKEN])
def test_what_it_refuses_the_loader_refuses_too(validator: Any, path: str, value: Any) -> None:
    data = copy.deepcopy(GOOD)
    assert validator.is_valid(data)
    load(data, Registry(), environ={})
    *parents, last = path.split(".")
    inner = data
    for step in parents:
        inner = inner[step]
    inner[last] = value
    assert not validator.is_valid(data)
    with pytest.raises(ConfigError):
        load(data, Registry(), environ={})


@attrs.frozen
class Inner:
    level: int = 3


@attrs.frozen
class Options:
    root: Path
    room: int = attrs.field(default=1 << 20, converter=size, metadata={"help": "bytes"})
    wait: float = attrs.field(default=0.5, converter=seconds)
    how: Literal["fast", "safe"] = "safe"
    hosts: tuple[str, ...] = ()
    token: str = attrs.field(default="hush-hush", repr=False)
    inner: Inner = attrs.field(factory=Inner)
    node: int | None = None


def test_types_defaults_help_units_and_words_of_a_plugin_s_options(registry: Registry) -> None:
    store = type("Odd", (registry.store("dir"),), {"Config": Options})
    registry.add("odd", SimpleNamespace(kvhub_register_stores=hookimpl(lambda: (store,))))
    registry._available = [attrs.evolve(info, name="odd") for info in registry.available() if info.name == "host"]
    found, _ = schema(registry)
    odd = found["$defs"]["stores.odd"]
    assert odd["required"] == ["use", "root"] and odd["additionalProperties"] is False
    told = odd["properties"]
    assert told["use"] == {"const": "odd"}
    assert told["root"] == {"type": "string", "minLength": 1}
    assert told["room"] == {"$ref": "#/$defs/size", "description": "bytes", "default": 1 << 20}
    assert told["wait"] == {"$ref": "#/$defs/time", "default": 0.5}
    assert told["how"] == {"enum": ["fast", "safe"], "default": "safe"}
    assert told["hosts"] == {"type": "array", "items": {"type": "string"}}
    assert told["inner"]["properties"]["level"] == {"type": "integer", "default": 3}
    assert told["node"] == {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None}
    assert "hush-hush" not in json.dumps(found)


def test_a_broken_plugin_is_left_out_and_told(dists: Any, capsys: Any) -> None:
    dists.add("bad-kv", "bad", "raise TypeError('protobuf clash')")
    assert main(["config", "schema"]) == 0
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert "left out: plugin 'bad' (bad-kv 1.0) cannot be imported: TypeError: protobuf clash" in said.err
    assert "bad" not in found["properties"]["stores"]["additionalProperties"]["properties"]["use"]["enum"]
    assert "host" in found["properties"]["stores"]["additionalProperties"]["properties"]["use"]["enum"]


def test_the_schema_of_a_bare_core_is_a_schema() -> None:
    section = _section("codecs", {})
    jsonschema.Draft202012Validator.check_schema(section)
    validator = jsonschema.Draft202012Validator(section)
    assert validator.is_valid({}) and not validator.is_valid({"small": {"use": "zstd"}})
