"""Where UCX comes from: which provider is chosen, that each carries the plugin, and what ends with its workers.

A process has one libucp, so each provider runs in processes of its own; KVHUB_TEST_UCX_PROVIDER says which is meant.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from kvhub.errors import KvhubError
from kvhub.testing import make_key, make_payload
from kvhub.types import Op, Outcome

kvhub_ucx = pytest.importorskip("kvhub_ucx")
_bindings, _lanes, _libucp, _providers, _settings = (
    pytest.importorskip(f"kvhub_ucx.{name}") for name in ("_bindings", "_lanes", "_libucp", "_providers", "_settings")
)

HERE = Path(__file__).parent
FAKE_UCX_PY = HERE / "fake_ucx_py"
SYSTEM_UCX = HERE.parents[2] / ".ucx-system" / "lib"
PROVIDER = os.environ.get("KVHUB_TEST_UCX_PROVIDER", "")
OpenHub = Callable[..., Any]

outside_only = pytest.mark.skipif(bool(PROVIDER), reason="this is one of the processes that it would start")
each_provider = pytest.mark.parametrize("provider", ["ucxx", "wheel", "ucx-py", "system"])


def _environment(provider: str, **more: str) -> dict[str, str]:
    """Of a process that can have this provider; skips the test where this machine cannot."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("UCX_")}
    if provider == "system":
        if not (SYSTEM_UCX / _providers.SONAME).exists() and _providers._system_library() is None:
            pytest.skip("no libucp of the system here, and `make venv` could not get one from apt")
        environment["LD_LIBRARY_PATH"] = str(SYSTEM_UCX)
    elif provider == "ucx-py":
        if importlib.util.find_spec("libucx") is None:
            pytest.skip("the stand-in for ucx-py takes its library from libucx-cu12, which is not installed")
        environment["PYTHONPATH"] = str(FAKE_UCX_PY)
    elif importlib.util.find_spec({"ucxx": "ucxx", "wheel": "libucx"}[provider]) is None:
        pytest.skip(f"the package of provider {provider} is not installed")
    return environment | more


def _run(code: str, environment: Mapping[str, str]) -> Any:
    """What the code says, in JSON, at its end."""
    done = subprocess.run(
        [sys.executable, "-c", code], env=dict(environment), capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


# The choice.


def _device(root: Path) -> Path:
    (root / "infiniband" / "mlx5_0" / "ports" / "1").mkdir(parents=True)
    return root / "infiniband"


def _library_with_verbs(root: Path) -> Path:
    (root / "lib" / "ucx").mkdir(parents=True)
    (root / "lib" / _providers.SONAME).touch()
    (root / "lib" / "ucx" / "libuct_ib.so.0").touch()
    return root / "lib"


def test_auto_without_rdma(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(_providers, "RDMA_DEVICES", tmp_path / "none")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(_library_with_verbs(tmp_path)))
    assert _providers._order() == ("ucxx", "wheel", "ucx-py", "system")


def test_auto_with_rdma(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The library with verbs goes first, if it is there; devices alone change nothing."""
    monkeypatch.setattr(_providers, "RDMA_DEVICES", _device(tmp_path))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    if _providers._system_library() is None:
        assert _providers._order() == ("ucxx", "wheel", "ucx-py", "system")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{tmp_path}:{_library_with_verbs(tmp_path)}")
    assert _providers._order()[0] == "system"
    assert _settings.rdma_devices() == ["mlx5_0:1"]


def test_auto_keeps_a_binding_whose_library_has_verbs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(_providers, "RDMA_DEVICES", _device(tmp_path))
    monkeypatch.setattr(_providers, "_library", lambda name: _library_with_verbs(tmp_path / name) / "libucp.so.0")
    assert _providers._order() == ("ucxx", "wheel", "ucx-py", "system")


def test_where_modules_of_ucx_are_looked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    library = _library_with_verbs(tmp_path / "one") / _providers.SONAME
    assert _providers.has_verbs(library) and not _providers.has_verbs(None)
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / _providers.SONAME).symlink_to(library)
    assert _providers.has_verbs(tmp_path / "link" / _providers.SONAME)
    monkeypatch.setenv("UCX_MODULE_DIR", str(tmp_path))
    assert not _providers.has_verbs(library)


_WHICH = """if True:
    import json, pathlib, sys
    from kvhub_ucx import _libucp, _providers
    {before}
    library = _libucp.load({provider!r})
    print(json.dumps([library.provider, list(library.version), list(library.passed_over)]))
"""


@outside_only
def test_auto_is_ucxx() -> None:
    found = _run(_WHICH.format(before="", provider="auto"), _environment("ucxx"))
    assert found[0] == "ucxx" and not found[2]


@outside_only
def test_auto_is_the_systems_with_rdma(tmp_path: Path) -> None:
    """A real one, which has verbs: devices are pretended, so all that is shown is that it is the one that is loaded."""
    before = f"_providers.RDMA_DEVICES = pathlib.Path({str(_device(tmp_path))!r})"
    found = _run(_WHICH.format(before=before, provider="auto"), _environment("system"))
    assert found[0] == "system"


@outside_only
def test_a_library_that_is_there_is_used_as_it_is() -> None:
    before = "import ctypes, libucx; libucx.load_library()"
    for provider in ("auto", "system", "wheel"):
        found = _run(_WHICH.format(before=before, provider=provider), _environment("wheel"))
        assert re.fullmatch(r"already loaded \(.*/libucp\.so[.0-9]*\)", found[0])
    # Whoever uses a binding already goes on with its library, and so do we.
    assert _run(_WHICH.format(before="import ucxx", provider="auto"), _environment("ucxx"))[0] == "ucxx"


def test_nothing_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> None:
        raise KvhubError("is not here")

    monkeypatch.setattr(_providers, "loaded_from", lambda: None)
    monkeypatch.setattr(_providers, "_LOADERS", dict.fromkeys(_providers._LOADERS, absent))
    with pytest.raises(
        KvhubError, match=r"no libucp found \(provider wheel: wheel: is not here\); install one with: pip"
    ):
        _providers.find("wheel")
    with pytest.raises(KvhubError, match=r"ucxx: is not here; wheel: .*; ucx-py: .*; system: "):
        _providers.find("auto")


@outside_only
def test_another_package_called_ucp(tmp_path: Path) -> None:
    """Named, it is refused by what it is; in `auto` it is passed over.  It is never imported."""
    (tmp_path / "ucp").mkdir()
    (tmp_path / "ucp" / "__init__.py").write_text("raise SystemExit('imported')\n")
    environment = _environment("ucxx", PYTHONPATH=str(tmp_path))
    code = """if True:
        import json
        from kvhub_ucx import _libucp, _providers
        said = []
        for provider in ("ucx-py", "auto"):
            _providers._ORDER = ("ucx-py", "ucxx")
            try:
                said.append(_libucp.load(provider).provider)
            except Exception as error:
                said.append(str(error))
        print(json.dumps(said))
    """
    named, auto = _run(code, environment)
    assert re.search(r"the module ucp at .*ucp/__init__.py is not ucx-py: it has no ucp\._libs\.ucx_api", named)
    assert "the public index has something else under the name ucp" in named and "install one with" in named
    assert auto == "ucxx"


@outside_only
def test_a_binding_that_does_not_start(tmp_path: Path) -> None:
    """Named, it says why; in `auto` the next one is taken and the reason kept for the log."""
    for folder in ("ucxx", "ucxx/_lib"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").touch()
    (tmp_path / "ucxx" / "_lib" / "libucxx.py").write_text("raise ImportError('Support for UCX 1.13.1 has ended')\n")
    environment = _environment("wheel", PYTHONPATH=str(tmp_path))
    found = _run(_WHICH.format(before="", provider="auto"), environment)
    assert found[0] == "wheel" and "Support for UCX 1.13.1 has ended" in found[2][0]
    code = _WHICH.format(before="", provider="ucxx")
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert "importing ucxx failed: ImportError: Support for UCX 1.13.1 has ended" in done.stderr


def test_the_real_ucx_py() -> None:
    spec = importlib.util.find_spec("ucp")
    if spec is None or str(FAKE_UCX_PY) in str(spec.origin):
        pytest.skip("ucx-py is not installed (the public index has none that can be); its stand-in is tested instead")
    assert _bindings.missing("ucx-py") == ""


# The environment, which is the user's.


@outside_only
@pytest.mark.parametrize("module", ["ucxx", "ucp"])
def test_what_a_binding_sets_is_not_the_users(module: str) -> None:
    """Both bindings write UCX_RNDV_THRESH=8192 and more into the environment; that must not win over our settings."""
    code = f"""if True:
        import json, os
        before = dict(os.environ)
        from kvhub_ucx import Config, _bindings, _libucp, _settings
        import {module}
        assert os.environ["UCX_RNDV_THRESH"] == "8192"
        _libucp.load({"ucxx" if module == "ucxx" else "ucx-py"!r})
        chosen = _settings.choose(Config(), _bindings.users_environment())
        print(json.dumps([chosen.get("RNDV_THRESH"), "UCX_MAX_RNDV_RAILS" in _bindings.users_environment()]))
    """
    environment = _environment("ucxx" if module == "ucxx" else "ucx-py")
    assert _run(code, environment) == ["inf", False]
    assert _run(code, environment | {"UCX_RNDV_THRESH": "8192"}) == [None, False], "the user's own, from the start"


# What the lanes are.

_PRINTED = """
# UCP endpoint
#               peer: <no debug data>
#                 lane[0]:  3:rc_mlx5/mlx5_0:1.0 md[2]      -> md[2]/ib/sysdev[0] rma_bw#0 am am_bw#0
#                 lane[1]:  1:tcp/eth0.0 md[1]              -> md[1]/tcp/sysdev[255] keepalive wireup
#                 lane[2]:  1:tcp/eth0.1 md[1]              -> md[1]/tcp/sysdev[255]
#                tag_send: 0..<egr/short>..8185..<egr/zcopy>..(inf)
"""


def test_lanes_of_a_printout() -> None:
    assert _lanes.parse(_PRINTED) == ("rc_mlx5/mlx5_0:1", "tcp/eth0")
    assert _lanes.parse("") == ()


def test_lanes_that_are_asked_for() -> None:
    config = kvhub_ucx.Config(require="rc_mlx5,dc_mlx5")
    assert not _lanes.lacking(config, ("tcp/eth0", "dc_mlx5/mlx5_0:1"))
    assert _lanes.lacking(config, ("tcp/eth0",)) == "require='rc_mlx5,dc_mlx5', but UCX chose tcp/eth0"
    assert "UCX chose nothing" in _lanes.lacking(config, ())
    assert not _lanes.lacking(kvhub_ucx.Config(), ())
    with pytest.raises(ValueError, match="require_action: expected one of refuse, warn"):
        kvhub_ucx.Config(require_action="ignore")


def _pull_one(ours: Any, theirs: Any) -> Any:
    batch = ours.driver.submit(Op.LOAD, [make_key(0)], [0], deadline=time.monotonic() + 20, peer=theirs.peer())
    return ours.driver.wait(batch, 25.0)


def test_a_missing_lane_may_be_a_warning(open_hub: OpenHub, capsys: pytest.CaptureFixture[str]) -> None:
    ours, theirs = open_hub("ours", path="message", require="rc_mlx5", require_action="warn"), open_hub("theirs")
    theirs.source.put(make_key(0), make_payload(0, 5000))
    for _ in range(2):
        assert _pull_one(ours, theirs).outcomes == (Outcome.DONE,)
    assert ours.counts["lane_unwanted"] == 1 and ours.counts["lane_posix"] == 1, "counted by pairings, not by pulls"
    said = capsys.readouterr().out
    assert said.count("wire.lane_unwanted") == 1 and "require='rc_mlx5', but UCX chose posix/memory" in said
    assert said.count("wire.paired") == 1


def test_lanes_in_use_are_counted(open_hub: OpenHub) -> None:
    ours, theirs = (
        open_hub("ours", path="message", transports="tcp", require="tcp"),
        open_hub("theirs", transports="tcp"),
    )
    theirs.source.put(make_key(0), make_payload(0, 5000))
    assert _pull_one(ours, theirs).outcomes == (Outcome.DONE,)
    lanes = {name: count for name, count in ours.counts.items() if name.startswith("lane_")}
    assert lanes == {"lane_tcp": 1}


@pytest.mark.parametrize(("slot_bytes", "path"), [(256 << 10, "put"), ((256 << 10) - 4096, "message")])
def test_over_tcp_large_slots_are_put_into(
    open_hub: OpenHub, capsys: pytest.CaptureFixture[str], slot_bytes: int, path: str
) -> None:
    ours, theirs = (
        open_hub(name, slots=16, slot_bytes=slot_bytes, elsewhere=True, transports="tcp") for name in ("ours", "theirs")
    )
    data = make_payload(0, slot_bytes)
    theirs.source.put(make_key(0), data)
    done = _pull_one(ours, theirs)
    assert done.outcomes == (Outcome.DONE,) and ours.driver.bytes_of(0, slot_bytes) == data
    assert f"path={path}" in capsys.readouterr().out


# Each provider, in processes of its own.


def test_the_provider_that_was_meant(ucx: None) -> None:
    library = _libucp.load()
    if PROVIDER:
        assert library.provider == PROVIDER
    assert library.maker.drains == (library.provider in ("ucxx", "ucx-py"))


@pytest.mark.alone
def test_idle_costs_next_to_nothing(open_hub: OpenHub) -> None:
    """Two paired hubs in this process, nothing to do: no thread spins, neither ours nor one of a binding."""
    ours, theirs = open_hub("ours"), open_hub("theirs")
    theirs.source.put(make_key(0), make_payload(0, 5000))
    assert _pull_one(ours, theirs).outcomes == (Outcome.DONE,)
    shares = []
    for _ in range(3):
        used, began = time.process_time(), time.monotonic()
        time.sleep(1.0)
        shares.append((time.process_time() - used) / (time.monotonic() - began))
    assert min(shares) <= 0.01, shares


@outside_only
@each_provider
@pytest.mark.parametrize("case", ["posted", "unasked"])
def test_B11_a_worker_ends_when_it_is_destroyed(provider: str, case: str) -> None:
    """At once, whatever is half way in it; its descriptor is closed, and no byte lands any more."""
    done = subprocess.run(
        [sys.executable, str(HERE / "ucx_fence.py"), provider, case],
        env=_environment(provider), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["provider"] == provider and len(seen["loaded"]) == 1, seen
    assert (0 < seen["half"] < 8 << 20) == (case == "posted")
    assert not seen["efd_open"] and seen["late"] == 0 and seen["took"] < 5.0
    # UCX has a thread for its asynchronous events; a binding has none, and none is left when the context is closed.
    assert seen["started"] == ["async"] and seen["left"] == 0


_SHORT = (
    "test_pull or (TestTcp and (B05 or B11 or B19 or any_order or both_directions or forget_ends or server_closes)) "
    "or the_provider_that_was_meant or idle_costs or lanes_in_use or changes_nothing"
)


# Puts are tried by cross-memory attach, which UCX 1.13 does not use together with peer error handling.
_CANNOT = {"system": "TestPut"}


def _inside(provider: str, *names: str, chosen: str = "test_") -> None:
    if provider in _CANNOT:
        chosen = f"({chosen}) and not {_CANNOT[provider]}"
    arguments = ["-k", chosen, "-m", "not slow"]
    files = [str(HERE / f"test_ucx_{name}.py") for name in names]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "--timeout", "120", *files, *arguments],
        env=_environment(provider, KVHUB_TEST_UCX_PROVIDER=provider), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout[-5000:]}\n{done.stderr[-5000:]}"
    assert int(re.findall(r"(\d+) passed", done.stdout)[-1]) > 12, done.stdout[-2000:]


@outside_only
@pytest.mark.timeout(300)
@pytest.mark.parametrize("provider", ["wheel", "ucx-py", "system"])
def test_the_plugin_on_each_provider(provider: str) -> None:
    """What passes through contexts, workers and fences; `auto`, with which all other tests run, is ucxx."""
    _inside(provider, "contract", "pairing", "providers", chosen=_SHORT)


@outside_only
@pytest.mark.slow
@pytest.mark.timeout(1800)
@each_provider
def test_all_laws_on_each_provider(provider: str) -> None:
    _inside(provider, "contract", "faults", "pairing", "providers")
