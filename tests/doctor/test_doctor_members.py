"""Faults of members and of what they stand on, planted one by one: each is said word for word like this."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Callable, Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from time import time
from types import SimpleNamespace
from typing import Any

import pytest
from doctor.texts import FLIPS, POOL, WIRE, bad

from kvhub import mounts
from kvhub.wire import addresses

Doctor = Callable[..., list[str]]


# -- file systems ----------------------------------------------------------------------------------------------------


def test_a_root_that_is_missing_and_one_that_is_a_file(doctor: Doctor, tmp_path: Path) -> None:
    gone = bad(doctor(POOL.replace("ROOT", "/nowhere/kv")))
    assert gone == [
        "fail stores.pool start: pool: root /nowhere/kv does not exist -> mount or create it, then start again"
    ]
    (tmp_path / "file").touch()
    [found] = bad(doctor(POOL.replace("ROOT", str(tmp_path / "file"))))
    assert found == (
        f"fail stores.pool start: pool: root {tmp_path / 'file'} is not a directory -> name the directory that is to "
        "hold the chunks"
    )


NFS = "36 35 0:40 / {root} rw,relatime shared:1 - nfs4 server:/kv rw,vers=4.2,{options}\n"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("softerr,lookupcache=positive", []),
        ("softerr,actimeo=1", []),
        (
            "softerr,acdirmax=30",
            [
                "warn stores.pool mount: ROOT is mounted without lookupcache=positive: chunks of other hubs are "
                "missed for up to 30 s -> mount it with lookupcache=positive"
            ],
        ),
        (
            "hard,lookupcache=pos",
            [
                "warn stores.pool mount: ROOT is mounted hard: calls to a server that died never return, and a "
                "process that has one cannot end -> mount it with softerr,timeo=50,retrans=2"
            ],
        ),
    ],
)
def test_nfs_mount_options_that_the_documentation_demands(
    doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: str, said: list[str]
) -> None:
    table = tmp_path / "mountinfo"
    table.write_text("1 0 8:1 / / rw - ext4 /dev/sda1 rw\n" + NFS.format(root=tmp_path / "pool", options=options))
    monkeypatch.setattr(mounts, "MOUNTINFO", table)
    lines = doctor(POOL.replace("nfs/local", "nfs"))
    assert bad(lines) == said
    assert "pass stores.pool file system: ROOT is on nfs4, mounted at ROOT" in lines


@pytest.mark.parametrize(
    ("use", "kind", "said"),
    [
        (
            "nfs",
            "ext4",
            "warn stores.pool mount: ROOT is on ext4 of this machine, where no other machine sees its chunks -> "
            "mount the share there and check it in /etc/fstab, or say use: nfs/local",
        ),
        (
            "nfs/local",
            "nfs4",
            "warn stores.pool mount: ROOT is on nfs4, which other machines may share -> say use: nfs, or name a "
            "local directory",
        ),
        (
            "nfs/local",
            "tmpfs",
            "warn stores.pool file system: ROOT is on tmpfs: chunks take memory and are gone after a restart of the "
            "machine -> name a directory on a disk or a share; memory is what the host tier is for",
        ),
    ],
)
def test_a_file_system_of_the_wrong_kind(
    doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use: str, kind: str, said: str
) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(f"1 0 8:1 / / rw - {kind} /dev/sda1 rw\n")
    monkeypatch.setattr(mounts, "MOUNTINFO", table)
    assert bad(doctor(POOL.replace("nfs/local", use))) == [said]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"f_bavail": 0}, "fail stores.pool free space: 0.0 of 100.0 GiB free: saves will be dropped -> "),
        ({"f_bavail": 5 << 18}, "warn stores.pool free space: 5.0 of 100.0 GiB free -> "),
        (
            {"f_favail": 12},
            "fail stores.pool free space: 50.0 of 100.0 GiB free, and 12 inodes: a chunk takes one -> ",
        ),
    ],
)
def test_a_file_system_that_is_nearly_full(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch, change: dict[str, int], said: str
) -> None:
    full = {"f_frsize": 4096, "f_bavail": 50 << 18, "f_blocks": 100 << 18, "f_files": 10**6, "f_favail": 10**6}
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(**(full | change)))
    assert bad(doctor(POOL)) == [said + "free some, or have `kvhub pool gc` hold the pool to a size"]


def test_a_disk_that_fails_as_it_is_written_to(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("kvhub_nfs.files.write_whole", refuse)
    [found] = bad(doctor(POOL))
    assert found == (
        "fail stores.pool start: pool: root ROOT is on a read-only file system -> mount it read-write or name "
        "another root"
    )


def test_a_store_that_returns_other_bytes_with_a_good_checksum(doctor: Doctor, dists: Any) -> None:
    dists.add("flip-kv", "flip", FLIPS)
    [found] = [each for each in bad(doctor(POOL.replace("nfs/local, root: ROOT", "flip"))) if "round trip" in each]
    assert found == (
        "fail stores.pool round trip: the chunk that was loaded is not the one that was saved -> look into the "
        "plugin's page for what this means; `kvhub verify` runs the store's whole contract"
    )


def test_E15_a_store_that_removes_nothing_is_asked_for_nothing_that_it_does_not_claim(
    doctor: Doctor, dists: Any
) -> None:
    """It would raise for REMOVE, and what was saved would stay."""
    dists.add("keep-kv", "keep", FLIPS.replace("removes=True", "removes=False"))
    lines = doctor(POOL.replace("nfs/local, root: ROOT", "keep"))
    assert bad(lines) == []
    said = "a miss is told as one; nothing was stored, as this store removes nothing"
    assert f"pass stores.pool round trip: {said}" in lines


def test_a_role_that_only_retrieves_writes_nothing(doctor: Doctor, tmp_path: Path) -> None:
    text = POOL.replace("store: [pool]", "store: [host]").replace("retrieve: [pool]", "retrieve: [host, pool]")
    lines = doctor(text.replace("stores:", "stores:\n  host: {use: host, capacity: 64MiB}"))
    assert "pass stores.pool start: opens, and nothing was written: this role only retrieves there" in lines
    assert (
        "pass stores.pool round trip: a miss is told as one; nothing was stored, as this role does not store there"
        in lines
    )
    assert list((tmp_path / "pool").iterdir()) == []


# -- transports ------------------------------------------------------------------------------------------------------


def test_E10_a_port_that_is_taken_is_told_with_its_owner(doctor: Doctor) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = bad(doctor(WIRE.replace("127.0.0.1:0", f"127.0.0.1:{port}"), role="prefill"))
    name = Path("/proc/self/comm").read_text().strip()
    assert found == [
        f"fail transports.wire start: wire: cannot listen on 127.0.0.1:{port}: Address already in use by process "
        f"{os.getpid()} ({name}) -> choose another port, or port 0"
    ]


def test_E11_loopback_is_a_warning_that_names_the_addresses_there_are(doctor: Doctor, monkeypatch: Any) -> None:
    monkeypatch.setattr(addresses, "routable", lambda: ["10.0.0.7", "fd00::7"])
    [found] = bad(doctor(WIRE, role="prefill"))
    said, _, step = found.partition(" -> ")
    assert said.startswith("warn transports.wire address: listens on 127.0.0.1:0; peers dial 127.0.0.1:")
    assert said.endswith(" (IPv4), which is loopback: only peers on this machine reach it")
    assert step == "with peers on others, set listen and advertise to an address of this machine (10.0.0.7, fd00::7)"


def test_E11_an_address_of_another_machine_and_a_name_that_nobody_knows(doctor: Doctor, monkeypatch: Any) -> None:
    monkeypatch.setattr(addresses, "routable", lambda: ["10.0.0.7"])
    text = WIRE.replace('"127.0.0.1:0"', '"127.0.0.1:0", advertise: "ADDRESS"')
    [elsewhere] = bad(doctor(text.replace("ADDRESS", "198.51.100.9:7700"), role="decode"))[:1]
    assert elsewhere == (
        "warn transports.wire address: listens on 127.0.0.1:0; peers dial 198.51.100.9:7700 (IPv4), which is no "
        "address of this machine -> right behind address translation only; otherwise advertise one of 10.0.0.7"
    )


def test_E11_IPv6_is_told_as_such(doctor: Doctor) -> None:
    if not socket.has_ipv6 or not any(":" in text for _, text in addresses.interfaces()):
        pytest.skip("no IPv6 on this machine")
    [found] = bad(doctor(WIRE.replace("127.0.0.1:0", "[::1]:0"), role="prefill"))
    assert "peers dial [::1]:" in found and "(IPv6), which is loopback" in found


def test_beyond_loopback_without_a_secret(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    [found] = bad(doctor(WIRE.replace("127.0.0.1:0", "0.0.0.0:0"), role="prefill"))
    assert found.startswith(
        "fail file configuration: transports.wire.secret_env: needed, since other machines can reach"
    )
    # What a name stands for is known on the machine only.
    monkeypatch.setattr(addresses, "is_loopback", lambda host: False)
    found_here = bad(doctor(WIRE.replace("127.0.0.1:0", "localhost:0"), role="prefill"))
    assert any(
        each.startswith("fail transports.wire start: wire: ") and "there is no secret" in each for each in found_here
    )
    assert (
        "fail transports.wire access: listens on localhost:0, where others reach it, without a secret -> set "
        "secret_env, or tls_cert and tls_ca"
    ) in found_here


def test_E12_the_lanes_in_use_are_told_by_a_real_pull(doctor: Doctor) -> None:
    [found] = [each for each in doctor(WIRE, role="decode") if "transport in use" in each]
    assert found.startswith("pass transports.wire transport in use: 4 chunks came from 127.0.0.1:")
    assert found.endswith(", over tcp; the peer's arena was not mapped, as it cannot be from another machine")


# -- buckets ---------------------------------------------------------------------------------------------------------

BUCKET = """\
kvhub: 1
stores:
  pool: {{use: s3, bucket: kv-pool, endpoint: "http://127.0.0.1:{port}", stall_timeout: 300ms, connect_timeout: 300ms}}
limits: {{staging: 64MiB}}
roles:
  both: {{store: [pool], retrieve: [pool]}}
"""


@pytest.fixture
def clock() -> Iterator[Callable[[float], int]]:
    """A server that refuses everything and dates it so many seconds before now; its port."""
    servers: list[HTTPServer] = []

    def clock(behind: float) -> int:
        class Answer(BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                self.send_response(403)
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_GET = do_PUT = do_HEAD

            def date_time_string(self, timestamp: float | None = None) -> str:
                return formatdate(time() - behind, usegmt=True)

            def log_message(self, *_: Any) -> None: ...

        servers.append(HTTPServer(("127.0.0.1", 0), Answer))
        threading.Thread(target=servers[-1].serve_forever, args=(0.05,), daemon=True).start()
        return servers[-1].server_port

    yield clock
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(("behind", "grade"), [(0, "pass"), (120, "warn"), (1000, "fail")])
def test_a_clock_that_differs_from_the_bucket_s(
    doctor: Doctor, clock: Callable[[float], int], monkeypatch: pytest.MonkeyPatch, behind: float, grade: str
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush-hush")
    lines = doctor(BUCKET.format(port=clock(behind)))
    [found] = [each for each in lines if " stores.pool clock: " in each]
    step = " -> synchronise this machine's clock, with NTP for instance"
    limit = f", and S3 refuses requests from 900 s on{step}" if behind else ""
    near = [f"this machine's is {behind + off:+.0f} s from the server's" for off in (0, 1)]
    assert found in [f"{grade} stores.pool clock: {text}{limit}" for text in near]
    assert any(each.startswith("fail stores.pool start: pool: bucket kv-pool at ") for each in lines)
    assert "hush-hush" not in "".join(lines)


def test_a_bucket_s_server_that_nobody_is_at(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush-hush")
    assert bad(doctor(BUCKET.format(port=9))) == [
        "fail stores.pool start: pool: bucket kv-pool at http://127.0.0.1:9/kv-pool cannot be reached (no "
        "connection) -> check endpoint, name service, routes and firewalls",
        "fail stores.pool server: http://127.0.0.1:9/kv-pool cannot be reached (no connection) -> check endpoint, "
        "routes and TLS",
    ]
