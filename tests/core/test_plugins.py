"""Finding plugins and taking in good ones; nothing is imported that no one asked for."""

from __future__ import annotations

import json
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from format.toys import Seal, Turn

from kvhub import PluginError, hookimpl
from kvhub.engine import Engine
from kvhub.plugins import Registry
from kvhub.store import Store
from kvhub.transport import Transport


def plugin(**functions: Any) -> SimpleNamespace:
    """A plugin object whose functions are marked as hooks."""
    return SimpleNamespace(**{name: hookimpl(function) for name, function in functions.items()})


def test_what_is_installed_is_known_without_an_import(dists: Any) -> None:
    good, other = dists.add("acme-kv", "acme"), dists.add("zoo", "zoo", requires=["kvhub", "attrs>=1"])
    found = {info.name: info for info in Registry().available()}
    assert (found["acme"].distribution, found["acme"].version, found["acme"].module) == ("acme-kv", "1.0", good)
    assert found["acme"].requires == "<0.2,>=0.1"
    assert found["zoo"].requires == ""
    assert "host" in found
    assert good not in sys.modules
    assert other not in sys.modules


def test_only_the_plugin_that_is_asked_for_is_imported(dists: Any) -> None:
    good, other = dists.add("acme-kv", "acme"), dists.add("zoo", "zoo")
    cls = Registry().store("acme")
    assert issubclass(cls, Store)
    assert cls.__module__ == good
    assert other not in sys.modules


def test_the_host_tier_comes_by_the_same_way() -> None:
    registry = Registry()
    cls = registry.store("host")
    assert cls.__module__ == "kvhub.builtin.host"
    assert [info.distribution for info in registry.available() if info.name == "host"] == ["kvhub"]


def test_kinds_are_named_behind_a_slash(registry: Registry) -> None:
    assert registry.store("dir").__name__ == "DirStore"
    assert registry.store("dir/own").__name__ == "OwnDirStore"
    with pytest.raises(PluginError, match=r"plugin 'dir' has no store 'dir/onw'; did you mean 'dir/own'?"):
        registry.store("dir/onw")


def test_a_first_class_with_a_kind_is_also_the_plugin_s_name(registry: Registry) -> None:
    class FastStore(registry.store("dir")):  # type: ignore[misc]
        kind = "fast"

    registry.add("x", plugin(kvhub_register_stores=lambda: [FastStore]))
    assert registry.store("x") is registry.store("x/fast") is FastStore


def test_E13_a_name_that_nobody_has_lists_the_known_ones(dists: Any) -> None:
    dists.add("acme-kv", "acme")
    registry = Registry()
    with pytest.raises(PluginError, match=r"unknown plugin 'acne'; did you mean 'acme'?"):
        registry.store("acne")
    with pytest.raises(PluginError, match=r"unknown plugin 'qqq'; known: acme, .*host"):
        registry.store("qqq")


def test_E13_only_our_own_names_get_an_install_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry()
    monkeypatch.setattr(registry, "_available", [info for info in registry.available() if info.name == "host"])
    with pytest.raises(PluginError, match="plugin 's3' is not installed; pip install kvhub-s3"):
        registry.store("s3")
    with pytest.raises(
        PluginError, match=r"unknown plugin 's33'; did you mean 's3', which pip install kvhub-s3 provides?"
    ):
        registry.store("s33")
    with pytest.raises(PluginError) as caught:
        registry.store("request")
    assert "pip" not in str(caught.value)


def test_a_role_that_needs_the_other_kind_is_told_where_to_put_it(registry: Registry) -> None:
    with pytest.raises(PluginError, match="plugin 'dir' is a store, not a transport; move this member to 'stores'"):
        registry.transport("dir")
    registry.add("watch", plugin(kvhub_hub_closing=lambda hub: None))
    with pytest.raises(PluginError, match="plugin 'watch' brings no store"):
        registry.store("watch")


def test_loading_twice_is_the_same_and_a_failure_stays_one(dists: Any) -> None:
    dists.add("acme-kv", "acme")
    broken = dists.add(
        "bad", "bad", "import builtins\nbuiltins.kv_count = getattr(builtins, 'kv_count', 0) + 1\nraise OSError\n"
    )
    registry = Registry()
    assert registry.load("acme") is registry.load("acme")
    for _ in range(2):
        with pytest.raises(PluginError):
            registry.load("bad")
    import builtins

    assert builtins.kv_count == 1  # type: ignore[attr-defined]
    del builtins.kv_count  # type: ignore[attr-defined]
    assert broken not in sys.modules


def test_engines_and_codecs_are_collected(registry: Registry) -> None:
    class Toy(Engine):
        name, distribution, versions = "toy", "toy-engine", ">=1,<2"

    hooks = plugin(kvhub_register_engines=lambda: (Toy,), kvhub_register_codecs=lambda: (Turn, Seal))
    loaded = registry.add("toy", hooks)
    assert registry.engines() == {"toy": Toy}
    assert loaded.codecs == {"toy": Turn, "toy/seal": Seal}
    assert (registry.codec("toy"), registry.codec("toy/seal")) == (Turn, Seal)


def test_E08_a_spawned_process_sees_the_same_table(dists: Any) -> None:
    dists.add("acme-kv", "acme")
    script = (
        "import json\nfrom kvhub.plugins import Registry\n"
        "print(json.dumps([str(info) for info in Registry().available()]))"
    )
    child = json.loads(dists.run("-c", script).stdout)
    assert [info for info in child if "acme" in info or "host" in info] == [
        str(info) for info in Registry().available() if info.name in ("acme", "host")
    ]


def test_E08_what_only_the_parent_added_is_unknown_to_the_child(dists: Any, registry: Registry) -> None:
    assert registry.store("dir")
    child = dists.run("-c", "from kvhub.plugins import Registry\nRegistry().store('dir')")
    assert child.returncode == 1
    assert "unknown plugin 'dir'" in child.stderr


def test_one_distribution_that_is_found_twice_is_one_plugin(dists: Any, tmp_path: Any, monkeypatch: Any) -> None:
    module = dists.add("acme-kv", "acme")
    again = tmp_path / "again"
    again.mkdir()
    for path in dists.root.glob("acme*.dist-info"):
        copy = again / path.name
        copy.mkdir()
        for file in path.iterdir():
            (copy / file.name).write_text(file.read_text())
    monkeypatch.syspath_prepend(str(again))
    assert Registry().store("acme").__module__ == module


def test_hooks_reach_every_loaded_plugin_whatever_one_of_them_raises(registry: Registry) -> None:
    told: list[str] = []

    def refuse(hub: Any) -> None:
        raise OSError("disk")

    registry.add("a", plugin(kvhub_hub_opened=lambda hub: told.append("a")))
    registry.add("b", plugin(kvhub_hub_opened=refuse))
    registry.add("c", plugin(kvhub_hub_opened=lambda: told.append("c")))
    failures = registry.tell("kvhub_hub_opened", hub=None)
    assert told == ["a", "c"]
    assert failures == ["plugin 'b': its kvhub_hub_opened failed: OSError: disk"]


def test_what_plugins_say_about_the_file_is_a_problem(registry: Registry) -> None:
    def crash(config: Any) -> list[str]:
        return [config["missing"]]

    registry.add("a", plugin(kvhub_check_config=lambda config: [f"kvhub: {config['kvhub']} is odd"]))
    registry.add("b", plugin(kvhub_check_config=crash))
    registry.add("c", plugin(kvhub_check_config=lambda config: "one sentence"))
    assert registry.check_config({"kvhub": 1}) == [
        "kvhub: 1 is odd",
        "plugin 'b': its kvhub_check_config failed: KeyError: 'missing'",
        "one sentence",
    ]


def test_a_slow_import_is_said(dists: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("kvhub.plugins.SLOW_IMPORT", 0.0)
    dists.add("acme-kv", "acme")
    Registry().load("acme")
    assert "plugin.imported" in capsys.readouterr().out


def test_a_plugin_may_be_a_real_module(registry: Registry) -> None:
    module = ModuleType("in_memory")
    module.kvhub_register_stores = hookimpl(lambda: (registry.store("dir"),))  # type: ignore[attr-defined]
    assert registry.add("mem", module).stores["mem"] is registry.store("dir")
    assert issubclass(registry.transport("link"), Transport)
