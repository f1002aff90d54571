"""Broken plugins: each way is refused in one sentence, leaves nothing behind, and harms no other."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import attrs
import pluggy
import pytest

from kvhub import ConfigError, PluginError, hookimpl
from kvhub.config import load
from kvhub.plugins import Registry
from kvhub.store import Store
from kvhub.transport import Transport

GOOD_ROLES = {"both": {"store": ["pool"], "retrieve": ["pool"]}}


def config_with(use: str) -> dict[str, Any]:
    return {"kvhub": 1, "stores": {"pool": {"use": use, "root": "/x"}}, "roles": GOOD_ROLES}


def plugin(**functions: Any) -> SimpleNamespace:
    return SimpleNamespace(**{name: hookimpl(function) for name, function in functions.items()})


@pytest.mark.parametrize(
    ("source", "said", "cause"),
    [
        ("raise TypeError('protobuf clash')", "TypeError: protobuf clash", TypeError),
        ("raise SystemExit(3)", "SystemExit: 3", SystemExit),
        ("import not_there_at_all", "needs the module 'not_there_at_all'", ModuleNotFoundError),
        ("def broken(:", "SyntaxError", SyntaxError),
        ("class Odd(BaseException): pass\nraise Odd('own')", "Odd: own", BaseException),
    ],
)
def test_E06_a_raising_import_harms_no_other_and_is_the_cause(dists: Any, source: str, said: str, cause: type) -> None:
    dists.add("good", "good")
    dists.add("bad-one", "bad", source)
    registry = Registry()
    assert "pool" in load(config_with("good"), registry, environ={}).members
    with pytest.raises(ConfigError) as caught:
        load(config_with("bad"), registry, environ={})
    assert "stores.pool.use: plugin 'bad' (bad-one 1.0) cannot be imported: " in caught.value.problems[0]
    assert said in caught.value.problems[0]
    assert isinstance(caught.value.__cause__, PluginError)
    assert isinstance(caught.value.__cause__.__cause__, cause)
    assert "pip" not in caught.value.problems[0]
    assert registry.store("good")


def test_a_keyboard_interrupt_is_not_swallowed(dists: Any) -> None:
    dists.add("bad-one", "bad", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        Registry().load("bad")


def test_a_module_that_is_not_there(dists: Any) -> None:
    dists.add("bad-one", "bad", write=False, module="never_written_module")
    with pytest.raises(PluginError, match="needs the module 'never_written_module', which is not installed"):
        Registry().load("bad")


def test_E13_our_own_plugin_without_its_dependency_says_what_to_install(dists: Any, monkeypatch: Any) -> None:
    dists.add("kvhub-s3", "s3", "import boto3_is_not_here")
    registry = Registry()
    mine = [info for info in registry.available() if info.name == "s3" and info.module.startswith("fake_plugin")]
    monkeypatch.setattr(registry, "_available", mine)
    with pytest.raises(
        PluginError, match="'boto3_is_not_here', which is not installed; pip install --force-reinstall kvhub-s3"
    ):
        registry.load("s3")


def test_two_packages_with_one_name_are_both_named(dists: Any) -> None:
    first = dists.add("dup-a", "same")
    dists.add("dup-b", "same", version="2.0")
    dists.add("good", "good")
    registry = Registry()
    with pytest.raises(
        PluginError, match=r"plugin 'same' is provided by dup-a 1.0 and by dup-b 2.0; uninstall all but one"
    ):
        registry.store("same")
    assert first not in sys.modules
    assert registry.store("good")


@pytest.mark.parametrize(
    ("requires", "said"),
    [
        (
            ["kvhub>=0.2,<0.3"],
            "needs kvhub <0.3,>=0.2, and this is kvhub 0.1.0; install a release of old-one that fits",
        ),
        (["kvhub==9"], "needs kvhub ==9"),
        (["kvhub>=0.1", "kvhub<0.1"], "needs kvhub"),
        ([], "states no range for kvhub"),
        (["attrs"], "states no range for kvhub"),
        (["kvhub>=0.1; extra == 'test'"], "states no range for kvhub"),
        (["kvhub-nfs>=0.1"], "states no range for kvhub"),
        (["kvhub >= banana"], "cannot be read"),
    ],
)
def test_the_version_range_is_checked_before_the_import(dists: Any, requires: list[str], said: str) -> None:
    module = dists.add("old-one", "old", requires=requires)
    with pytest.raises(PluginError) as caught:
        Registry().store("old")
    assert said in str(caught.value)
    assert module not in sys.modules


@pytest.mark.parametrize(
    "requires", [["kvhub"], ["KVHub>=0.1,<0.2"], ["kvhub (>=0.1)"], ["kvhub~=0.1; python_version>='3.8'"]]
)
def test_ranges_that_fit(dists: Any, requires: list[str]) -> None:
    dists.add("fits", "fits", requires=requires)
    assert Registry().store("fits")


def test_a_stranger_s_unreadable_metadata_hides_nobody(dists: Any) -> None:
    dists.add("good", "good")
    info = dists.root / "torn-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_bytes(b"\xff\xfe\x00")
    (info / "entry_points.txt").write_bytes(b"[kvhub\nbroken")
    assert Registry().store("good")


def test_E16_a_misspelt_hook_is_a_start_error(registry: Registry) -> None:
    # pluggy itself takes it silently, as this shows; that is what we close.
    pm = pluggy.PluginManager("kvhub")
    pm.register(plugin(kvhub_stroe=lambda: ()))
    with pytest.raises(
        PluginError, match=r"'kvhub_register_storse' is no hook of kvhub; did you mean 'kvhub_register_stores'?"
    ):
        registry.add("typo", plugin(kvhub_register_storse=lambda: ()))
    assert not registry._pm.has_plugin("typo")


def test_a_hook_that_is_not_marked_is_a_start_error(registry: Registry) -> None:
    with pytest.raises(PluginError, match=r"'kvhub_register_stores' is not marked as a hook; write @kvhub.hookimpl"):
        registry.add("bare", SimpleNamespace(kvhub_register_stores=lambda: ()))


def test_a_hook_with_a_wrong_argument_is_a_start_error_and_leaves_nothing(registry: Registry) -> None:
    said = "hook 'kvhub_hub_opened' has an argument 'more' that kvhub does not give; it may take hub"
    with pytest.raises(PluginError, match=said):
        registry.add("extra", plugin(kvhub_hub_opened=lambda hub, more: None, kvhub_register_stores=lambda: ()))
    assert not registry._pm.has_plugin("extra")
    assert registry.tell("kvhub_hub_opened", hub=None) == []


def test_hook_wrappers_are_refused(registry: Registry) -> None:
    wrapper = pluggy.HookimplMarker("kvhub")(wrapper=True)

    def kvhub_hub_opened(hub: Any) -> Any:
        yield

    with pytest.raises(PluginError, match="is a wrapper"):
        registry.add("wraps", SimpleNamespace(kvhub_hub_opened=wrapper(kvhub_hub_opened)))


def test_a_plugin_without_hooks_and_one_object_under_two_names(registry: Registry) -> None:
    with pytest.raises(PluginError, match="implements no hook at all"):
        registry.add("empty", SimpleNamespace())
    same = plugin(kvhub_hub_closing=lambda hub: None)
    registry.add("one", same)
    with pytest.raises(PluginError, match="already registered under a different name"):
        registry.add("two", same)
    with pytest.raises(PluginError, match="this name is taken"):
        registry.add("one", plugin(kvhub_hub_closing=lambda hub: None))
    assert registry._pm.has_plugin("one")


class Unfinished(Store):
    pass


@attrs.frozen
class Options:
    root: str = ""


class NoSubmit(Store):
    Config = Options


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (Unfinished, "returned the class Unfinished; return a tuple of classes, as (MyStore,)"),
        (7, "returned an object of int; return a tuple"),
        ([object()], "returned an object of object in its list; return classes"),
        ([dict], "returned dict, which is no Store; subclass it"),
        ([Transport], "returned Transport, which is no Store"),
        ([Unfinished], "Unfinished has no Config; give it a frozen attrs class"),
        ([NoSubmit], "NoSubmit does not implement attach, capabilities, close, poll, submit, used_bytes"),
        (["x"], "returned an object of str"),
    ],
)
def test_E16_wrong_classes_are_refused_by_name(registry: Registry, result: Any, said: str) -> None:
    with pytest.raises(PluginError) as caught:
        registry.add("bad", plugin(kvhub_register_stores=lambda: result))
    assert said in str(caught.value)
    assert str(caught.value).startswith("plugin 'bad'")
    assert not registry._pm.has_plugin("bad")


def test_two_classes_of_one_kind_and_a_kind_that_is_no_word(registry: Registry) -> None:
    store = registry.store("dir")
    first, second = (type(name, (store,), {}) for name in ("First", "Second"))
    with pytest.raises(PluginError, match="First and Second are both 'bad'; give one another kind"):
        registry.add("bad", plugin(kvhub_register_stores=lambda: (first, second)))
    odd = type("Odd", (store,), {"kind": "a/b"})
    with pytest.raises(PluginError, match=r"Odd.kind must be a short word, found 'a/b'"):
        registry.add("bad", plugin(kvhub_register_stores=lambda: (odd,)))


def test_options_that_no_one_could_set(registry: Registry) -> None:
    store = registry.store("dir")
    with pytest.raises(PluginError, match=r"Bad.Config is not an attrs class"):
        registry.add("bad", plugin(kvhub_register_stores=lambda: (type("Bad", (store,), {"Config": int}),)))


def test_a_hook_that_raises_is_the_cause(registry: Registry) -> None:
    def kvhub_register_stores() -> Any:
        raise SystemExit(4)

    with pytest.raises(PluginError, match="cannot be registered: SystemExit: 4") as caught:
        registry.add("bad", plugin(kvhub_register_stores=kvhub_register_stores))
    assert isinstance(caught.value.__cause__, SystemExit)
    assert not registry._pm.has_plugin("bad")
