"""Faults of machine, file, plugins and engines, planted one by one: each is said word for word like this."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from doctor.conftest import HEALTHY, line
from doctor.texts import FLIPS, HOST, POOL, WIRE, bad

from kvhub.doctor import machine
from kvhub.doctor.bounded import bounded

Doctor = Callable[..., list[str]]


def test_a_healthy_machine_has_nothing_but_passes(doctor: Doctor) -> None:
    lines = doctor(POOL)
    assert bad(lines) == []
    told = {each.partition(":")[0] for each in lines}
    assert {
        "pass file configuration", "pass machine environment", "pass machine shared memory", "pass machine memory",
        "pass machine open files", "pass machine layout canary", "pass machine plugin nfs",
        "pass stores.pool file system", "pass stores.pool free space", "pass stores.pool start", "pass stores.pool "
        "mount",
        "pass stores.pool round trip",
    } <= told  # fmt: skip


# -- the machine -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"available": 1 << 20},
            "fail machine memory: one engine process takes 64.0 MiB for its arena and 1.0 MiB are available here -> "
            "lower capacity (or limits.staging), or raise the memory of machine or cgroup",
        ),
        (
            {"available": 66 << 20},
            "warn machine memory: one engine process takes 64.0 MiB for its arena and 66.0 MiB are available here -> "
            "leave room for the engine itself: lower capacity, or raise the cgroup's limit",
        ),
        (
            {"available": None},
            "warn machine memory: one engine process takes 64.0 MiB for its arena; how much there is cannot be told "
            "-> compare it with the machine's memory",
        ),
        (
            {"files": 64},
            "warn machine open files: the limit is 64, and members and engine may need 256 -> raise it, as "
            "`ulimit -n 4096`, or LimitNOFILE of the service",
        ),
        (
            {"anonymous": "Operation not permitted"},
            "fail machine shared memory: memfd_create is refused: Operation not permitted; the arena is such memory "
            "-> permit the system call in the container's seccomp profile",
        ),
        (
            {"locked": 8 << 20},
            "fail machine locked memory: the limit is 8.0 MiB, and RDMA locks the arena of 64.0 MiB -> raise it, as "
            "`ulimit -l unlimited`, LimitMEMLOCK of the service or CAP_IPC_LOCK",
        ),
        (
            {"ports": (("mlx5_0:1", "DOWN"),)},
            "fail machine RDMA devices: mlx5_0:1 DOWN: none is up -> check cable, switch and subnet manager with "
            "`ibstat`",
        ),
        (
            {"ports": (("mlx5_0:1", "ACTIVE"), ("mlx5_1:1", "INIT"))},
            "warn machine RDMA devices: mlx5_0:1 ACTIVE, mlx5_1:1 INIT -> name the ports to use in the transport's "
            "options, or bring all up",
        ),
        (
            {"reachable": False},
            "fail machine RDMA access: 1 ports, and this process may not open /dev/infiniband/uverbs* -> hand the "
            "devices to the container, and check their group and mode",
        ),
    ],
)
def test_limits_of_the_machine(doctor: Doctor, change: dict[str, Any], said: str) -> None:
    found = bad(doctor(WIRE, attrs.evolve(HEALTHY, **change), role="decode"))
    assert [each for each in found if each.split()[1] == "machine"] == [said]


def test_rdma_devices_are_read_from_the_kernel_s_files(tmp_path: Path) -> None:
    for port, state in (("mlx5_0/ports/1", "4: ACTIVE"), ("mlx5_1/ports/1", "1: DOWN")):
        folder = tmp_path / "class" / port
        folder.mkdir(parents=True)
        (folder / "state").write_text(f"{state}\n")
    found = machine.look(tmp_path / "class", tmp_path / "dev")
    assert found.ports == (("mlx5_0:1", "ACTIVE"), ("mlx5_1:1", "DOWN"))
    assert not found.reachable
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "uverbs0").touch()
    assert machine.look(tmp_path / "class", tmp_path / "dev").reachable


def test_without_rdma_devices_little_locked_memory_is_no_fault(doctor: Doctor) -> None:
    lines = doctor(WIRE, attrs.evolve(HEALTHY, ports=(), reachable=False, locked=1 << 16), role="prefill")
    assert "pass machine RDMA devices: none; transports use shared memory and TCP" in lines
    assert not [each for each in lines if "locked" in each]


# -- file, plugins, engines ------------------------------------------------------------------------------------------


def test_every_problem_of_the_file_is_a_finding(doctor: Doctor) -> None:
    step = "-> correct it; `kvhub check` tells when it is right"
    assert bad(doctor(HOST.replace("capacity", "capcity").replace("64MiB", "64"))) == [
        f"fail file configuration: stores.host.capcity: unknown option; did you mean 'capacity'? (kv.yaml:3) {step}",
        "fail file configuration: stores.host.capacity: required: bytes of host memory, all of them taken at start "
        f"(kv.yaml:3) {step}",
    ]
    assert bad(doctor(HOST + "limts: {}\n"))[0].startswith("fail file configuration: limts: unknown key")


def test_a_warning_of_the_file_is_one_here(doctor: Doctor) -> None:
    assert bad(doctor(HOST.replace("roles:", "  other: {use: nfs/local, root: /nowhere}\nroles:"))) == [
        "warn file configuration: stores.other: no role uses this member (kv.yaml:4) -> change it, unless it is meant"
    ]


def test_a_broken_plugin_that_nothing_names_is_a_warning_and_a_named_one_a_failure(doctor: Doctor, dists: Any) -> None:
    dists.add("bad-kv", "bad", "raise TypeError('protobuf clash')")
    said = "plugin 'bad' (bad-kv 1.0) cannot be imported: TypeError: protobuf clash"
    assert bad(doctor(HOST)) == [
        f"warn machine plugin bad: {said} -> nothing names it, so engines start; repair or uninstall it all the same"
    ]
    named = bad(doctor(POOL.replace("nfs/local", "bad")))
    assert named[0] == (
        f"fail file configuration: stores.pool.use: {said} (kv.yaml:3) -> correct it; `kvhub check` tells when it is "
        "right"
    )


def test_a_named_plugin_whose_import_is_slow(doctor: Doctor, dists: Any) -> None:
    dists.add("slow-kv", "slow", "import time\ntime.sleep(0.6)\n" + FLIPS)
    [found] = [each for each in bad(doctor(POOL.replace("nfs/local, root: ROOT", "slow"))) if "import takes" in each]
    assert found.startswith("warn machine plugin slow: slow-kv 1.0 brings store slow; its import takes 0.")
    assert found.endswith(" s of every start -> have its authors import what is heavy later, where it is used")


ENGINE = """
from kvhub import hookimpl
from kvhub.engine import Engine

class Old(Engine):
    name, distribution, versions = "odd", "attrs", {versions!r}

@hookimpl
def kvhub_register_engines():
    return (Old,)
"""


def test_an_engine_outside_of_the_tested_range(doctor: Doctor, dists: Any) -> None:
    from importlib.metadata import version

    dists.add("kvhub-odd", "odd", ENGINE.format(versions="<1"))
    lines = doctor(HOST)
    assert (
        f"fail machine engine odd: {version('attrs')} is outside of the tested <1 -> install a release inside of it, "
        "or another release of the adapter; an untested one starts only by allow_untested"
    ) in lines


def test_an_environment_without_an_engine(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvhub.engine.Engine.installed", classmethod(lambda cls: None))
    assert [each for each in doctor(HOST) if "machine engine" in each and "vllm" not in each] == [
        "warn machine engine: none that an installed adapter serves is in this environment -> run `kvhub doctor` in "
        "the engine's environment, with the adapter's package installed"
    ]


def test_a_codec_without_its_key(doctor: Doctor) -> None:
    text = POOL.replace("stores:", "codecs:\n  sealed: {use: aes, key: {env: NOWHERE_KEY}}\nstores:")
    found = bad(doctor(text.replace("store: [pool]", "store: [{to: pool, codec: sealed}]")))
    assert found[0].startswith("fail ") and "NOWHERE_KEY" in found[0]


# -- the doctor itself -----------------------------------------------------------------------------------------------


def test_what_hangs_is_given_up_and_what_raises_is_the_plugin_s_fault() -> None:
    from kvhub.findings import passed

    release = threading.Event()

    def hangs() -> Any:
        yield passed("first", "well")
        release.wait(10)

    try:
        assert [line(each) for each in bounded("start", hangs, patience=0.2)] == [
            "pass  first: well",
            "fail  start: it did not answer within 0.2 s -> check that its server is up; a hung mount is best "
            "unmounted with `umount -f`",
        ]
    finally:
        release.set()

    def raises() -> Any:
        raise ZeroDivisionError("division by zero")
        yield

    assert [line(each) for each in bounded("start", raises)] == [
        "fail  start: it raised ZeroDivisionError: division by zero -> this is a fault of the plugin, tell its authors"
    ]


def test_a_member_that_tells_something_of_its_own_is_heard(doctor: Doctor, dists: Any) -> None:
    """By `diagnose` alone: the core knows nothing of the plugin."""
    source = FLIPS.replace(
        "    def used_bytes",
        "    def diagnose(self):\n"
        "        from kvhub.findings import warned\n"
        "        yield warned('tape', 'the tape is at its end', 'turn it')\n"
        "    def used_bytes",
    )
    dists.add("tape-kv", "tape", source)
    lines = doctor(POOL.replace("nfs/local, root: ROOT", "tape"))
    assert "warn stores.pool tape: the tape is at its end -> turn it" in lines
