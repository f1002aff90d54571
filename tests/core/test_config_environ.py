"""The environment: one rule, the same values as in the file, and no variable of ours unread."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvhub import ConfigError
from kvhub.config import Config, load
from kvhub.environ import variable
from kvhub.plugins import Registry


@pytest.fixture
def read(tmp_path: Path, registry: Registry, pd_text: str) -> Any:
    path = tmp_path / "pd.yaml"

    def read(environ: dict[str, str], text: str = pd_text) -> Config:
        path.write_text(text)
        return load(path, registry, environ=environ)

    return read


def problems(read: Any, environ: dict[str, str], **arguments: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(environ, **arguments)
    return list(caught.value.problems)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("chunk_tokens", "128"), ("on_miss", "recompute"), ("model.id", "tiny"), ("model.revision", "'7'"),
        ("limits.lookup", "20ms"), ("limits.queue", "2GiB"), ("limits.lease", "5"), ("limits.staging", "1MiB"),
        ("stores.pool.root", "/mnt/other"), ("stores.pool.sync", "true"), ("stores.pool.wait", "1.5"),
        ("stores.pool.capacity", "2GiB"), ("stores.pool.use", "dir/own"), ("transports.wire.listen", "10.0.0.1:22"),
        ("roles.decode.store", "[host, {to: pool, deadline: 3s}]"), ("roles.decode.retrieve", "[host, pool, wire]"),
        ("roles.decode.write_back", "[generated]"),
    ],
)  # fmt: skip
def test_E01_each_key_has_one_value_from_file_and_environment(read: Any, pd_text: str, path: str, text: str) -> None:
    by_environment = read({variable(path): text})
    first, *rest = path.split(".")
    if not rest:
        by_file = read({}, pd_text + f"{path}: {text}\n")
    elif first in ("model", "limits"):
        by_file = read({}, pd_text + f"{first}: {{{rest[0]}: {text}}}\n")
    elif first == "roles":
        old = {"store": "    store:    [host, pool]\n", "retrieve": "    retrieve: [host, wire]\n"}
        line = old.get(rest[1], "    write_back: [prompt, generated]\n")
        by_file = read({}, pd_text.replace(line, f"    {rest[1]}: {text}\n"))
    else:
        line = {"pool": "use: dir, root: /mnt/kv", "wire": "use: link"}[rest[0]]
        parts = [part for part in line.split(", ") if not part.startswith(f"{rest[1]}:")]
        by_file = read({}, pd_text.replace(line, ", ".join([*parts, f"{rest[1]}: {text}"])))
    assert dict(by_environment.values()) == dict(by_file.values())
    assert f"environment {variable(path)}" in by_environment.origin.values()


def test_E03_false_is_false_and_empty_is_not_unset(read: Any) -> None:
    assert read({"KVHUB_STORES__POOL__SYNC": "false"}).members["pool"].options.sync is False
    found = problems(read, {"KVHUB_STORES__POOL__SYNC": "", "KVHUB_STORES__POOL__WAIT": " "})
    assert found[0].startswith("environment KVHUB_STORES__POOL__SYNC: is set but empty; unset it")
    assert len(found) == 2
    assert read({"KVHUB_STORES__POOL__TOKEN": '""'}).members["pool"].options.token == ""


def test_E03_a_value_that_changes_every_key_is_said(read: Any, pd_text: str) -> None:
    config = read({"KVHUB_CHUNK_TOKENS": "512", "KVHUB_MODEL__REVISION": "r2"}, pd_text + "chunk_tokens: 256\n")
    assert config.chunk_tokens == 512
    assert "chunk_tokens: set by the environment, was 256 (pd.yaml:15); this changes every key" in config.warnings[0]
    assert "model.revision: set by the environment, was unset" in config.warnings[1]
    assert read({"KVHUB_LIMITS__LEASE": "5s"}).warnings == ()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("KVHUB_CHUNK", "did you mean 'KVHUB_CHUNK_TOKENS'?"),
        ("KVHUB_STORES__POL__ROOT", "the file has no stores.pol; did you mean 'KVHUB_STORES__POOL__...'?"),
        ("KVHUB_STORES__POOL__ROOOT", "stores.pool.rooot: unknown option; did you mean 'root'?"),
        ("KVHUB_STORES__POOL", "names no option; one would be KVHUB_STORES__POOL__ROOT"),
        ("KVHUB_STORES", "names no option"),
        ("KVHUB_STORES__NEW__USE", "the file has no stores.new"),
        ("KVHUB_CHUNK_TOKENS__X", "'chunk_tokens' has no options below it"),
        ("KVHUB_LIMITS__LOKUP", "limits.lokup: unknown option; did you mean 'lookup'?"),
        ("KVHUB_ROLES__BOTH__STORE", "the file has no roles.both"),
        ("KVHUB_ROLES__DECODE__STOER", "roles.decode.stoer: unknown key; did you mean 'store'?"),
        ("KVHUB_STORES__POOL__ROOT__X", "stores.pool.root is no mapping in the file"),
        ("KVHUB_chunk_tokens", "write it in upper case"),
        ("KVHUB_KVHUB", "unknown variable"),
        ("KV_HUB_CHUNK", "looks like ours but is not read; our variables begin with KVHUB_"),
        ("KV_HUB_CHUNK_TOKENS", "looks like ours"),
        ("KVHUB-CHUNK_TOKENS", "looks like ours"),
        ("kvhub_chunk_tokens", "looks like ours"),
        ("KV-HUB_CHUNK", "looks like ours"),
    ],
)
def test_E02_misspelt_variables_stop_the_start(read: Any, name: str, said: str) -> None:
    found = problems(read, {name: "64"})
    assert any(said in problem and name in problem for problem in found), found


def test_E02_a_bad_value_names_the_variable(read: Any) -> None:
    found = problems(read, {"KVHUB_STORES__POOL__SYNC": "no", "KVHUB_LIMITS__LEASE": "soon"})
    assert any(problem.endswith("(environment KVHUB_STORES__POOL__SYNC)") for problem in found)
    assert any("limits.lease: expected a time" in problem for problem in found)


def test_variables_of_others_are_left_alone(read: Any, pd_text: str) -> None:
    services = {
        "KVHUB_SERVICE_HOST": "10.0.0.1",
        "KVHUB_SERVICE_PORT": "80",
        "KVHUB_SERVICE_PORT_HTTP": "80",
        "KVHUB_PORT": "tcp://10.0.0.1:80",
        "KVHUB_PORT_80_TCP_ADDR": "10.0.0.1",
        "KVHUB_FRONT_PORT_80_TCP": "tcp://10.0.0.1:80",
        "KV_HUB_SERVICE_HOST": "10.0.0.1",
    }
    ours = {
        "KVHUB_CONFIG": "/etc/kvhub.yaml",
        "KVHUB_TEST_MODELS": "x",
        "KVHUB_POOL_SECRET": "x",
        "KV_S3": "x",
        "KVCACHE_HUB_X": "x",
    }
    text = pd_text.replace("root: /mnt/kv", "root: /mnt/kv, secret_env: KVHUB_POOL_SECRET")
    assert read(services | ours, text).warnings == ()
    assert "unknown variable" in problems(read, {"KVHUB_PORT": "7700"})[0]


def test_a_role_s_whole_list_can_come_from_outside(read: Any) -> None:
    config = read({"KVHUB_ROLES__DECODE__RETRIEVE": "[host, {from: wire, deadline: 9s}]"})
    assert config.roles["decode"].retrieve[1].deadline == 9.0
    assert config.origin["roles.decode.retrieve[1].deadline"] == "environment KVHUB_ROLES__DECODE__RETRIEVE"
