"""Loading: the whole file, every problem at once, and where each value came from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvhub import ConfigError, PluginError
from kvhub.config import Config, Limits, find, load
from kvhub.plugins import Registry


@pytest.fixture
def read(tmp_path: Path, registry: Registry) -> Any:
    def read(text: str, **arguments: Any) -> Config:
        path = tmp_path / "pd.yaml"
        path.write_text(text)
        return load(path, registry, **({"environ": {}} | arguments))

    return read


def problems(read: Any, text: str, **arguments: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(text, **arguments)
    return list(caught.value.problems)


def test_a_good_file_is_read_whole(read: Any, pd_text: str) -> None:
    config = read(pd_text)
    assert list(config.members) == ["host", "pool", "wire"]
    assert config.members["pool"].options.root == Path("/mnt/kv")
    assert config.members["wire"].kind == "transport"
    assert [step.member for step in config.roles["decode"].retrieve] == ["host", "wire"]
    assert config.roles["decode"].write_back == {"prompt", "generated"}
    assert config.warnings == ()
    assert config.chunk_tokens == 64
    assert config.limits == Limits()


def test_all_of_the_long_forms(read: Any, pd_text: str) -> None:
    text = pd_text.replace("retrieve: [host, pool]", "retrieve: [host, {from: pool, deadline: 300ms, promote: [host]}]")
    text = text.replace("store:    [host, pool]", "store: [host, {to: pool, deadline: 9s, when: {uses: 2}}]")
    text += "chunk_tokens: 128\nmodel: {id: tiny, revision: main}\non_miss: recompute\n"
    text += "limits: {lookup: 20ms, queue: 2GiB}\n"
    config = read(text)
    step = config.roles["prefill"].retrieve[1]
    assert (step.member, step.deadline, step.promote) == ("pool", 0.3, ("host",))
    sink = config.roles["decode"].store[1]
    assert (sink.member, sink.deadline, sink.uses) == ("pool", 9.0, 2)
    assert (config.chunk_tokens, dict(config.model)) == (128, {"id": "tiny", "revision": "main"})
    assert (config.limits.lookup, config.limits.queue) == (0.02, 2 << 30)


def test_defaults_are_the_documented_ones(read: Any, pd_text: str) -> None:
    config = read(pd_text.replace("    write_back: [prompt, generated]\n", ""))
    decode, prefill = config.roles["decode"], config.roles["prefill"]
    assert [step.deadline for step in decode.store] == [30.0, 30.0]
    assert [step.deadline for step in decode.retrieve] == [2.0, 5.0]
    assert {step.uses for step in (*decode.store, *prefill.store)} == {1}
    assert decode.write_back == {"prompt", "generated"}
    assert (config.limits.lookup, config.limits.lease) == (0.05, 60.0)
    assert (config.limits.queue, config.limits.staging) == (1 << 30, 512 << 20)


def test_E01_unknown_keys_name_the_nearest_and_the_line(read: Any, pd_text: str) -> None:
    text = pd_text.replace("retrieve: [host, pool]", "retreive: [host, pool]").replace("root:", "rooot:")
    text = text.replace("[host, wire]\n    write", "[host, wier]\n    write") + "chunk_token: 4\n"
    found = problems(read, text)
    assert "roles.prefill.retreive: unknown key; did you mean 'retrieve'? (pd.yaml:10)" in found
    assert "roles.decode.retrieve[1]: unknown member 'wier'; did you mean 'wire'? (pd.yaml:13)" in found
    assert "stores.pool.rooot: unknown option; did you mean 'root'? (pd.yaml:4)" in found
    assert "stores.pool.root: required (pd.yaml:4)" in found
    assert "chunk_token: unknown key; did you mean 'chunk_tokens'? (pd.yaml:15)" in found
    assert len(found) == 5


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("kvhub: 1\n", "", "kvhub: required: write 'kvhub: 1'"),
        ("kvhub: 1\n", "kvhub: 2\n", "kvhub: this release reads format 1, found the number 2 (pd.yaml:1)"),
        ("kvhub: 1\n", "kvhub: true\n", "kvhub: this release reads format 1, found true"),
        ("kvhub: 1\n", "kvhub: 1\nchunk_tokens: '64'\n", "chunk_tokens: expected a whole number from 1"),
        ("kvhub: 1\n", "kvhub: 1\nchunk_tokens: 0\n", "chunk_tokens: expected a whole number from 1"),
        ("kvhub: 1\n", "kvhub: 1\nchunk_tokens: true\n", "found true"),
        ("kvhub: 1\n", "kvhub: 1\nchunk_tokens:\n", "found nothing"),
        ("kvhub: 1\n", "kvhub: 1\non_miss: fail\n", "on_miss: unknown policy text 'fail'; known: recompute"),
        ("kvhub: 1\n", "kvhub: 1\nmodel: {revison: a}\n", "model.revison: unknown key; did you mean 'revision'?"),
        ("kvhub: 1\n", "kvhub: 1\nmodel: {revision: 1.10}\n", "model.revision: expected text"),
        ("kvhub: 1\n", "kvhub: 1\nlimits: {lokup: 1s}\n", "limits.lokup: unknown option; did you mean 'lookup'?"),
        ("kvhub: 1\n", "kvhub: 1\nlimits: {lease: 0s}\n", "limits.lease: must be above 0"),
        ("kvhub: 1\n", "kvhub: 1\nlimits:\n", "limits: expected a mapping, found nothing"),
        ("use: dir, ", "", "stores.pool.use: required"),
        ("use: dir, ", "use: dri, ", "stores.pool.use: unknown plugin 'dri'; did you mean 'dir'?"),
        ("use: dir, ", "use: dir/onw, ", "did you mean 'dir/own'?"),
        ("use: dir, ", "use: link, ", "plugin 'link' is a transport, not a store; move this member to 'transports'"),
        ("{use: link}", "{use: dir, root: /x}", "'dir' is a store, not a transport; move this member to 'stores'"),
        ("{use: link}", "link", "transports.wire: expected a mapping with 'use: ...', found text 'link'"),
        ("  pool: {", "  POOL: {", "stores.POOL: a member's name is at most 32"),
        ("  wire: {use: link}", "  pool: {use: link}", "transports.pool: a store has this name already"),
        ("root: /mnt/kv}", "root: /mnt/kv}\n  more: {use: host, capacity: 1GiB}", "a hub has one host tier"),
        ("root: /mnt/kv", "root: /mnt/kv, sync: 'no'", "stores.pool.sync: expected true or false, found text 'no'"),
    ],
)  # fmt: skip
def test_E01_mistakes_stop_the_start_by_name(read: Any, pd_text: str, old: str, new: str, said: str) -> None:
    assert old in pd_text
    found = problems(read, pd_text.replace(old, new, 1))
    assert any(said in problem for problem in found), found


def test_E02_a_file_that_cannot_be_read_stops_the_start(tmp_path: Path, registry: Registry) -> None:
    with pytest.raises(ConfigError, match=r"nope.yaml: 1 problem\n  - cannot be read: No such file"):
        load(tmp_path / "nope.yaml", registry, environ={})
    (tmp_path / "latin.yaml").write_bytes(b"kvhub: 1 # \xe9\n")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load(str(tmp_path / "latin.yaml"), registry, environ={})
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path, registry, environ={})


def test_E02_no_file_named_is_told(read: Any) -> None:
    with pytest.raises(ConfigError, match="set KVHUB_CONFIG"):
        find({})
    assert find({"KVHUB_CONFIG": "/etc/kvhub.yaml"}) == "/etc/kvhub.yaml"


@pytest.mark.parametrize("text", ["", "# only a comment\n", "- a\n", "host\n"])
def test_a_file_that_is_no_mapping(read: Any, text: str) -> None:
    assert any("expected a mapping that begins with 'kvhub: 1'" in problem for problem in problems(read, text))


def test_a_mapping_is_read_by_the_same_rules(registry: Registry) -> None:
    source = {
        "kvhub": 1,
        "stores": {"host": {"use": "host", "capacity": "1GiB"}},
        "roles": {"both": {"store": ["host"], "retrieve": ["host"]}},
    }
    config = load(source, registry, environ={})
    assert config.path == ""
    assert config.origin["stores.host.capacity"] == "argument"
    assert config.origin["chunk_tokens"] == "default"
    assert "origin" not in source
    with pytest.raises(ConfigError, match=r"stores.host.capcity: unknown option; did you mean 'capacity'"):
        load(source | {"stores": {"host": {"use": "host", "capcity": 1}}}, registry, environ={})


def test_E03_every_value_says_where_it_came_from(read: Any, pd_text: str) -> None:
    config = read(pd_text, environ={"KVHUB_LIMITS__LEASE": "5s", "KVHUB_ROLES__DECODE__STORE": "[host, pool]"})
    values = dict(config.values())
    assert set(values) == set(config.origin)
    assert config.origin["stores.pool.root"] == "pd.yaml:4"
    assert config.origin["stores.pool.sync"] == "default"
    assert config.origin["roles.decode.retrieve[1]"] == "pd.yaml:13"
    assert config.origin["roles.decode.retrieve[1].deadline"] == "default"
    assert config.origin["roles.decode.store[1]"] == "environment KVHUB_ROLES__DECODE__STORE"
    assert config.origin["limits.lease"] == "environment KVHUB_LIMITS__LEASE"
    assert values["limits.lease"] == 5.0


def test_a_role_imports_only_what_it_touches(read: Any, pd_text: str) -> None:
    text = pd_text.replace("{use: dir, root: /mnt/kv}", "{use: absent, root: /mnt/kv}")
    text = text.replace("retrieve: [host, pool]", "retrieve: [host]").replace(
        "[host, wire]\n    write", "[host, wire, pool]\n    write"
    )
    assert list(read(text, role="prefill").members) == ["host", "wire"]
    assert "stores.pool.use: unknown plugin 'absent'" in problems(read, text, role="decode")[0]
    assert problems(read, pd_text, role="both") == [
        "roles: has no role 'both', which was asked for; known: decode, prefill (pd.yaml:7)"
    ]


def test_E06_the_exception_of_a_broken_plugin_is_the_cause(read: Any, pd_text: str, registry: Registry) -> None:
    with pytest.raises(ConfigError) as caught:
        read(pd_text.replace("use: link", "use: nothing_such"))
    assert isinstance(caught.value.__cause__, PluginError)


def test_D15_a_lower_tier_that_is_smaller_is_warned_of(read: Any, pd_text: str) -> None:
    config = read(pd_text.replace("root: /mnt/kv", "root: /mnt/kv, capacity: 100MiB"))
    assert len(config.warnings) == 1
    assert "roles.prefill.retrieve[1]: 'pool' holds 104857600 bytes, less than 'host'" in config.warnings[0]


def test_secrets_are_not_listed(read: Any, pd_text: str) -> None:
    config = read(pd_text.replace("root: /mnt/kv", "root: /mnt/kv, token: hunter2"))
    assert dict(config.values())["stores.pool.token"] == "(secret, not shown)"
    assert config.members["pool"].options.token == "hunter2"


def test_the_whole_message_is_one_list(read: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        read("kvhub: 1\nstores: {a: 1}\nroles: {}\n")
    lines = str(caught.value).splitlines()
    assert lines[0].endswith("pd.yaml: 2 problems")
    assert all(line.startswith("  - ") for line in lines[1:])
