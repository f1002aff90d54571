"""Routes: unknown members, and lists that could never do anything, are refused by path."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from kvhub import ConfigError
from kvhub.config import Config, load
from kvhub.plugins import Registry

MEMBERS: dict[str, Any] = {
    "kvhub": 1,
    "stores": {
        "host": {"use": "host", "capacity": "1GiB"},
        "pool": {"use": "dir", "root": "/mnt/kv"},
        "cold": {"use": "dir", "root": "/mnt/cold"},
    },
    "transports": {"wire": {"use": "link"}, "wire2": {"use": "link"}},
}


def routes(registry: Registry, **roles: dict[str, Any]) -> Config:
    return load(MEMBERS | {"roles": roles}, registry, environ={})


def problems(registry: Registry, **roles: dict[str, Any]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        routes(registry, **roles)
    return list(caught.value.problems)


def both(store: list[Any], retrieve: list[Any], **more: Any) -> dict[str, Any]:
    return {"both": {"store": store, "retrieve": retrieve} | more}


@pytest.mark.parametrize(
    ("roles", "said"),
    [
        ({}, "roles: required: at least one of prefill, decode, both"),
        ({"prefil": {"store": ["host"]}}, "roles.prefil: unknown role; did you mean 'prefill'?"),
        ({"both": None}, "roles.both: expected a mapping"),
        ({"both": {}}, "roles.both: stores nowhere and retrieves from nowhere"),
        (both([], []), "roles.both: stores nowhere and retrieves from nowhere"),
        (both("host", ["host"]), "roles.both.store: expected a list"),  # type: ignore[arg-type]
        (both(["hots"], ["host"]), "roles.both.store[0]: unknown member 'hots'; did you mean 'host'?"),
        (both(["host", "host"], ["host"]), "roles.both.store[1]: 'host' is listed twice"),
        (both([1], ["host"]), "roles.both.store[0]: expected a member's name"),
        (both([{"from": "host"}], ["host"]), "roles.both.store[0].from: unknown key"),
        (both(["host"], [{"to": "host"}]), "roles.both.retrieve[0].to: unknown key"),
        (both(["host"], [{"deadline": "1s"}]), "roles.both.retrieve[0].from: expected a member's name"),
        (both(["host"], [{"from": "host", "deadlin": 1}]), "did you mean 'deadline'?"),
        (both(["host"], [{"from": "host", "deadline": "never"}]), "retrieve[0].deadline: expected a time"),
        (both(["host"], [{"from": "host", "deadline": 0}]), "must be above 0"),
        (both(["host"], [{"from": "host", "deadline": "1h"}]), "at most 600s"),
        (both(["host"], [{"from": "host", "when": {"faster": True}}]), "retrieve[0].when: 'host' is the host tier"),
        (both(["host", "pool"], ["host", {"from": "pool", "when": {"uses": 2}}]), "when.uses: unknown condition"),
        (both(["host", "pool"], ["host", {"from": "pool", "when": {"faster": -1}}]), "times as fast, up to 100"),
        (both(["host", "pool"], ["host", {"from": "pool", "when": {}}]), "as 'when: {faster: true}'"),
        (both(["host", "wire"], ["host", {"from": "wire", "when": {"faster": True}}]), "only a store can be passed by"),
        (both(["host", "pool"], ["host", {"from": "pool", "write": "back"}]), "retrieve[1].write: unknown key"),
        (both(["host", {"to": "pool", "when": {"part": "all"}}], ["host", "pool"]), "one of prompt, generated"),
        (both(["host", {"to": "pool", "when": {"prefix_chunks": -1}}], ["pool"]), "from 1 to 1048576, found -1"),
        (both(["host", {"to": "pool", "write": "bakc"}], ["host", "pool"]), "expected one of through, back"),
        (both([{"to": "host", "write": "back"}], ["host"]), "is the host tier itself"),
        (both(["host", {"to": "wire", "write": "back"}], ["host", "wire"]), "there is nothing to put off"),
        (both([{"to": "pool", "write": "back"}], ["pool"]), "store[0].write: back needs a host tier in the same list"),
        (both(["host", {"to": "pool", "promote": []}], ["host"]), "store[1].promote: unknown key"),
        (both(["host", {"to": "pool", "when": {"use": 2}}], ["host", "pool"]), "did you mean 'uses'?"),
        (both(["host", {"to": "pool", "when": {"uses": 0}}], ["host", "pool"]), "from 1 to 255, found 0"),
        (both(["host", {"to": "pool", "when": {"uses": True}}], ["host", "pool"]), "from 1 to 255, found True"),
        (both(["host", {"to": "pool", "when": "twice"}], ["host", "pool"]), "as 'when: {uses: 2}'"),
        (both([{"to": "host", "when": {"uses": 2}}], ["host"]), "'host' is the host tier"),
        (both(["host", {"to": "wire", "when": {"uses": 2}}], ["host", "wire"]), "'wire' is a transport"),
        (both(["host", "wire", "wire2"], ["host", "wire"]), "names 2 transports (wire, wire2)"),
        (both(["host"], ["host"], write_back=["promt"]), "write_back[0]: unknown part 'promt'; did you mean 'prompt'?"),
        (both(["host"], ["host"], write_back=["prompt", "prompt"]), "listed twice"),
        (both(["host"], ["host"], write_back=[]), "write_back: empty, so the role's stores would stay empty"),
        (both(["host"], ["host"], write_back="prompt"), "write_back: expected a list"),
        (both(["wire"], ["wire"], write_back=["prompt"]), "stores into no store, so there is nothing to write back"),
        (both(["host"], ["host", {"from": "wire", "promote": ["wire2"]}]), "is a transport, which keeps nothing"),
        (both(["host"], ["host", {"from": "pool", "promote": ["pool"]}]), "cannot be promoted to itself"),
        (both(["host"], ["host", {"from": "pool", "promote": ["cold", "cold"]}]), "'cold' is listed twice"),
        (both(["host"], ["host", {"from": "pool", "promote": ["clod"]}]), "did you mean 'cold'?"),
    ],
)  # fmt: skip
def test_what_a_role_may_not_say(registry: Registry, roles: dict[str, Any], said: str) -> None:
    found = problems(registry, **roles)
    assert any(said in problem for problem in found), found


@pytest.mark.parametrize(
    ("roles", "said"),
    [
        (both(["host", "pool"], ["host"]), "roles.both.store[1]: 'pool' is stored to, but no role of this"),
        (both(["pool", "host"], ["pool"]), "roles.both.store[1]: 'host' is this process's own memory, and both"),
        (both(["pool"], ["host", "pool"]), "roles.both.retrieve[0]: can never hit: 'host' is this process"),
        (both(["host", "wire"], ["host"]), "roles.both.store[1]: 'wire' is offered to a peer, but no role retrieves"),
        (both(["host"], ["host", "wire"]), "roles.both.retrieve[1]: no role offers chunks on 'wire'"),
        (both(["host", "pool"], ["host", {"from": "pool", "promote": ["cold"]}]),
         "roles.both.retrieve[1].promote[0]: 'cold' gets copies, but no role"),
        (both(["host", "cold"], ["host", {"from": "cold", "promote": ["pool"]}, "pool"]),
         "roles.both.retrieve[1].promote[0]: 'pool' is asked after 'cold'"),
    ],
)  # fmt: skip
def test_E16_a_route_that_can_do_nothing_is_refused(registry: Registry, roles: dict[str, Any], said: str) -> None:
    found = problems(registry, **roles)
    assert any(problem.startswith(said) for problem in found), found


def test_a_misspelt_role_s_other_problems_are_told_at_once(registry: Registry) -> None:
    found = problems(registry, prefil={"store": ["hots"]}, both={"store": ["host"]})
    assert [each.partition(":")[0] for each in found] == ["roles.prefil", "roles.prefil.store[0]"]
    assert len(problems(registry, zzz={"store": ["hots"]}, both={"store": ["host"]})) == 1


def test_host_memory_of_another_role_does_not_count(registry: Registry) -> None:
    found = problems(
        registry,
        prefill={"store": ["pool"], "retrieve": ["host", "pool"]},
        decode={"store": ["host"], "retrieve": ["pool"]},
    )
    assert found[0].startswith("roles.prefill.retrieve[0]: can never hit")
    assert found[1].startswith("roles.decode.store[0]: 'host' is this process's own memory")


def test_what_only_others_fill_is_a_warning(registry: Registry) -> None:
    config = routes(registry, both={"store": ["host"], "retrieve": ["host", "pool"]})
    assert any("retrieve[1]: no role of this file stores to 'pool'" in warning for warning in config.warnings)


def test_a_member_without_a_role_is_a_warning(registry: Registry) -> None:
    config = routes(registry, both={"store": ["host"], "retrieve": ["host"]})
    assert [warning.split(":")[0] for warning in config.warnings] == [
        "stores.pool", "stores.cold", "transports.wire", "transports.wire2",
    ]  # fmt: skip


def test_the_design_s_example_is_accepted(registry: Registry) -> None:
    config = routes(
        registry,
        prefill={
            "store": ["host", "wire"],
            "retrieve": ["host", "pool", {"from": "cold", "deadline": "300ms", "promote": ["pool"]}],
        },
        decode={
            "store": ["host", "pool", {"to": "cold", "when": {"uses": 2}}],
            "retrieve": ["host", "wire", "pool"],
            "write_back": ["prompt", "generated"],
        },
    )
    assert config.roles["prefill"].retrieve[2].promote == ("pool",)
    assert config.roles["prefill"].members == ("host", "wire", "pool", "cold")


def test_E18_an_empty_list_and_an_absent_one_both_mean_none(registry: Registry) -> None:
    absent = routes(registry, prefill={"store": ["pool"]}, decode={"retrieve": ["pool"]})
    empty = routes(registry, prefill={"store": ["pool"], "retrieve": []}, decode={"store": [], "retrieve": ["pool"]})
    assert absent.roles == empty.roles
    assert absent.roles["decode"].store == ()
    assert absent.roles["decode"].write_back == frozenset()


def test_the_order_is_the_file_s_in_every_process() -> None:
    script = (
        "from kvhub.roles import Known, read_roles\n"
        "known = Known(tuple('edcba'), ('w',), ())\n"
        "roles = read_roles({'both': {'store': list('cadbe'), 'retrieve': list('ebdac')}}, known, ('both',), print)\n"
        "print([s.member for s in roles['both'].store], [s.member for s in roles['both'].retrieve], known.all)\n"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("0", "1", "random")
    }
    assert len(outputs) == 1
    assert "['c', 'a', 'd', 'b', 'e'] ['e', 'b', 'd', 'a', 'c']" in outputs.pop()
