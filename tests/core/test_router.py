"""Binding: the file's order, real capabilities, and no custom router beyond the operator's lists."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import attrs
import pytest

from kvhub import Capabilities, ConfigError, PluginError, hookimpl
from kvhub.config import Config, load
from kvhub.member import Member
from kvhub.plugins import Registry
from kvhub.router import Route, bind

DESIGN: dict[str, Any] = {
    "kvhub": 1,
    "stores": {
        "host": {"use": "host", "capacity": "1GiB"},
        "pool": {"use": "dir", "root": "/mnt/kv"},
        "cold": {"use": "dir", "root": "/mnt/cold"},
    },
    "transports": {"wire": {"use": "link"}},
    "roles": {
        "prefill": {
            "store": ["host", "wire"],
            "retrieve": ["host", "pool", {"from": "cold", "deadline": "300ms", "promote": ["pool"]}],
        },
        "decode": {
            "store": ["host", "pool", {"to": "cold", "when": {"uses": 2}}],
            "retrieve": ["host", "wire", "pool"],
        },
    },
}


def members_of(config: Config) -> dict[str, Member]:
    context = SimpleNamespace(name="")
    made: dict[str, Member] = {}
    for name, entry in config.members.items():
        made[name] = entry.cls(entry.options, context)  # type: ignore[arg-type]
    return made


@pytest.fixture
def design(registry: Registry) -> tuple[Config, dict[str, Member]]:
    config = load(DESIGN, registry, environ={})
    return config, members_of(config)


def test_E18_the_route_is_the_table(design: tuple[Config, dict[str, Member]]) -> None:
    config, members = design
    prefill, decode = bind(config, "prefill", members), bind(config, "decode", members)
    assert [step.name for step in prefill.store] == ["host", "wire"]
    assert [step.name for step in prefill.retrieve] == ["host", "pool", "cold"]
    assert [step.name for step in prefill.promotions] == ["pool"]
    assert [step.name for step in decode.store] == ["host", "pool", "cold"]
    assert [step.name for step in decode.retrieve] == ["host", "wire", "pool"]
    assert decode.promotions == ()
    assert all(step.member is members[step.name] for step in (*decode.store, *prefill.retrieve, *prefill.promotions))
    assert [(step.is_arena, step.is_transport) for step in decode.retrieve] == [
        (True, False),
        (False, True),
        (False, False),
    ]
    assert decode.store[2].uses == 2
    assert (prefill.retrieve[2].deadline, prefill.retrieve[2].promote) == (0.3, ("pool",))
    assert prefill.promotions[0].deadline == 30.0
    assert decode.write_back == {"prompt", "generated"}


def test_a_route_is_frozen(design: tuple[Config, dict[str, Member]]) -> None:
    route = bind(design[0], "decode", design[1])
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        route.store = ()  # type: ignore[misc]


def test_what_is_not_there_is_told(design: tuple[Config, dict[str, Member]]) -> None:
    config, members = design
    with pytest.raises(ConfigError, match=r"roles.both: this role is not in the file; known: decode, prefill"):
        bind(config, "both", members)
    del members["pool"]
    with pytest.raises(ConfigError, match=r"roles.decode: member 'pool' was not built"):
        bind(config, "decode", members)


@pytest.mark.parametrize(
    ("roles", "role", "claims", "said"),
    [
        (
            {"prefill": {"store": ["host"], "retrieve": ["host", "pool"]}}, "prefill",
            Capabilities(persistent=True), "roles.prefill.retrieve[1]: no role stores to 'pool', and it is not both",
        ),
        (
            {"prefill": {"retrieve": ["pool"]}, "decode": {"store": ["pool"]}}, "prefill",
            Capabilities(persistent=True), "roles.prefill.retrieve[0]: 'pool' is not shared, so prefill never",
        ),
        (
            {"prefill": {"retrieve": ["pool"]}, "decode": {"store": ["pool"]}}, "decode",
            Capabilities(persistent=True), "roles.decode.store[0]: 'pool' is not shared, so prefill never",
        ),
    ],
)  # fmt: skip
def test_real_capabilities_refuse_routes_that_can_do_nothing(
    registry: Registry, roles: dict[str, Any], role: str, claims: Capabilities, said: str
) -> None:
    config = load(DESIGN | {"roles": roles}, registry, environ={})
    members = members_of(config)
    bind(config, role, members)
    members["pool"].claims = claims  # type: ignore[attr-defined]
    with pytest.raises(ConfigError) as caught:
        bind(config, role, members)
    assert caught.value.problems[0].startswith(said)


def routed(registry: Registry, make: Any, design: tuple[Config, dict[str, Member]]) -> Route:
    registry.add("custom", SimpleNamespace(kvhub_make_router=hookimpl(make)))
    return bind(design[0], "decode", design[1], hooks=registry.hooks)


def test_a_plugin_s_router_may_leave_out_and_reorder(registry: Registry, design: Any) -> None:
    own = bind(design[0], "decode", design[1])
    fewer = attrs.evolve(own, store=own.store[:1], retrieve=tuple(reversed(own.retrieve)))
    assert routed(registry, lambda config, members: fewer, design) is fewer


def test_a_plugin_s_router_that_has_no_opinion_changes_nothing(registry: Registry, design: Any) -> None:
    assert routed(registry, lambda config: None, design) == bind(design[0], "decode", design[1])


def test_E18_a_plugin_s_router_cannot_reach_beyond_the_lists(registry: Registry, design: Any) -> None:
    own, other = bind(design[0], "decode", design[1]), bind(design[0], "prefill", design[1])
    beyond: list[tuple[Any, str]] = [
        (
            attrs.evolve(own, store=(*own.store, other.store[1])),
            "store names 'wire', but the role's list has cold, host, pool",
        ),
        (attrs.evolve(own, retrieve=other.retrieve), "retrieve names 'cold'"),
        (attrs.evolve(own, promotions=other.promotions), "promotions names 'pool', but the role's list has none"),
        (attrs.evolve(own, retrieve=(attrs.evolve(own.retrieve[2], promote=("cold",)),)), "promotes to"),
        (attrs.evolve(own, store=(attrs.evolve(own.store[0], member=own.store[1].member),)), "carries another member"),
        ("a route", "returned str; return a kvhub.router.Route or None"),
    ]
    answers = iter(beyond)
    said = ""

    def make(config: Any, members: Any) -> Any:
        nonlocal said
        answer, said = next(answers)
        return answer

    registry.add("custom", SimpleNamespace(kvhub_make_router=hookimpl(make)))
    for _ in beyond:
        with pytest.raises(PluginError) as caught:
            bind(design[0], "decode", design[1], hooks=registry.hooks)
        assert said in str(caught.value)


def test_a_plugin_s_router_that_raises_is_the_cause(registry: Registry, design: Any) -> None:
    def make(config: Any, members: Any) -> Any:
        raise LookupError("nothing fits")

    with pytest.raises(PluginError, match="hook kvhub_make_router failed with LookupError: nothing fits") as caught:
        routed(registry, make, design)
    assert isinstance(caught.value.__cause__, LookupError)
