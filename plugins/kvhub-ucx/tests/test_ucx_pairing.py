"""Who is let in, who is refused and what is said about it; real connections, real UCX."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvhub.errors import KvhubError
from kvhub.testing import make_context, make_key, make_payload, make_region
from kvhub.types import Op, Outcome, Peer
from kvhub.wire import frames

kvhub_ucx = pytest.importorskip("kvhub_ucx")

DONE, FAILED = Outcome.DONE, Outcome.FAILED
OpenHub = Callable[..., Any]


def _pull(hub: Any, peer: Peer, seconds: float = 10.0) -> Any:
    batch = hub.driver.submit(Op.LOAD, [make_key(0)], [0], deadline=time.monotonic() + seconds, peer=peer)
    return hub.driver.wait(batch)


def _knock(hub: Any) -> socket.socket:
    host, _, port = hub.transport.address().rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), timeout=5.0)


def _hung_up(sock: socket.socket) -> bytes:
    """What the hub says before it hangs up."""
    heard = b""
    try:
        while data := sock.recv(65536):
            heard += data
    except ConnectionResetError:
        pass
    return heard


@pytest.fixture
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_SECRET_ONE", "correct horse")
    monkeypatch.setenv("TEST_SECRET_TWO", "battery staple")


def test_same_secret(open_hub: OpenHub, secrets: None) -> None:
    ours, theirs = (open_hub(name, secret_env="TEST_SECRET_ONE") for name in ("ours", "theirs"))
    theirs.source.put(make_key(0), make_payload(0, 5000))
    assert _pull(ours, theirs.peer()).outcomes == (DONE,)


@pytest.mark.parametrize(
    ("mine", "other"), [("TEST_SECRET_ONE", "TEST_SECRET_TWO"), ("TEST_SECRET_ONE", ""), ("", "TEST_SECRET_TWO")]
)
def test_another_secret(open_hub: OpenHub, secrets: None, mine: str, other: str) -> None:
    """Refused by name on both sides; nothing of UCX was made, nothing asked of the source."""
    ours, theirs = open_hub("ours", secret_env=mine), open_hub("theirs", secret_env=other)
    theirs.source.put(make_key(0), make_payload(0, 5000))
    done = _pull(ours, theirs.peer())
    assert done.outcomes == (FAILED,) and done.reason == "secret"
    assert "secret" in ours.transport.healthy() and theirs.transport.address() in ours.transport.healthy()
    assert not theirs.source.taken and not theirs.transport._wire._lanes


def test_another_namespace(open_hub: OpenHub) -> None:
    ours, theirs = open_hub("ours", namespace="llama"), open_hub("theirs", namespace="qwen")
    done = _pull(ours, theirs.peer())
    assert done.outcomes == (FAILED,) and done.reason == "namespace"
    said = ours.transport.healthy()
    assert "model ('llama' here, 'qwen' there)" in said or "model ('qwen' here, 'llama' there)" in said
    assert theirs.counts["handshake_refused"] == 1


def test_A26_B17_another_incarnation(open_hub: OpenHub) -> None:
    """A process that took over the address is no substitute; the one that is there goes on undisturbed."""
    ours, theirs = open_hub("ours"), open_hub("theirs", incarnation="second")
    theirs.source.put(make_key(0), make_payload(0, 100))
    assert _pull(ours, theirs.peer()).outcomes == (DONE,)
    link = next(iter(ours.transport._wire._links.values()))
    for _ in range(2):
        done = _pull(ours, theirs.peer(incarnation="first"))
        assert done.outcomes == (FAILED,) and done.reason == "incarnation"
    assert _pull(ours, theirs.peer()).outcomes == (DONE,)
    assert next(iter(ours.transport._wire._links.values())) is link, "a stale name cut a healthy link"


def test_another_version(open_hub: OpenHub, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = open_hub("theirs")
    with _knock(theirs) as sock:
        sock.sendall(frames.encode(frames.Hello(99, bytes(32)), None))
        heard = frames.decode(_hung_up(sock)[4:], None)
    assert isinstance(heard, frames.Refused) and heard.reason == "version" and "99" in heard.text


@pytest.mark.parametrize(
    "rubbish",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        struct.pack(">I", 1 << 31) + b"x" * 1000,
        struct.pack(">I", 0),
        struct.pack(">IB", 3, 0) + b"\xc1\xc1",
        struct.pack(">IB", 40, 7) + os.urandom(39),
        frames.encode(frames.Pull(1, bytes(32), bytes(8), 1.0), None),
        frames.encode(frames.Hello(1, bytes(32)), None) + frames.encode(frames.Join(b"x"), None),
    ],
    ids=["http", "oversized", "empty", "not msgpack", "no such flag", "out of turn", "skips a step"],
)
def test_rubbish_gets_nothing(open_hub: OpenHub, rubbish: bytes) -> None:
    """Hung up on at once, without an address of UCX, counted once; the hub serves on."""
    ours, theirs = open_hub("ours"), open_hub("theirs")
    theirs.source.put(make_key(0), make_payload(0, 100))
    with _knock(theirs) as sock:
        sock.sendall(rubbish)
        assert len(_hung_up(sock)) < 300
    assert theirs.counts["handshake_refused"] == 1 and not theirs.transport._wire._lanes
    assert _pull(ours, theirs.peer()).outcomes == (DONE,)


def test_who_says_nothing_is_hung_up_on(open_hub: OpenHub) -> None:
    hub = open_hub(handshake_timeout="200ms")
    with _knock(hub) as sock:
        before = time.monotonic()
        assert _hung_up(sock) == b""
        assert 0.15 < time.monotonic() - before < 1.5


def test_most_peers(open_hub: OpenHub) -> None:
    hub = open_hub(most_peers=2)
    held = [_knock(hub) for _ in range(2)]
    with _knock(hub) as sock:
        assert _hung_up(sock) == b""
    for sock in held:
        sock.close()


def test_D12_a_peer_that_never_answers(open_hub: OpenHub) -> None:
    """Pairing is off every caller's thread and disturbs no other peer."""
    ours, theirs = open_hub("ours", handshake_timeout="600ms"), open_hub("theirs")
    theirs.source.put(make_key(0), make_payload(0, 100))
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        silent = Peer(f"127.0.0.1:{deaf.getsockname()[1]}", "silent")
        before = time.monotonic()
        batch = ours.driver.submit(Op.LOAD, [make_key(0)], [1], deadline=before + 10, peer=silent)
        ours.transport.connect(silent)
        assert time.monotonic() - before < 0.05
        assert _pull(ours, theirs.peer()).outcomes == (DONE,)
        done = ours.driver.wait(batch)
        assert done.outcomes == (FAILED,) and done.reason == "handshake" and time.monotonic() - before < 2.0


def test_nobody_listens(open_hub: OpenHub) -> None:
    """Refused at once, and again at once without a new attempt while the pause lasts."""
    with socket.create_server(("127.0.0.1", 0)) as gone:
        address = f"127.0.0.1:{gone.getsockname()[1]}"
    hub = open_hub()
    for _ in range(4):
        before = time.monotonic()
        done = _pull(hub, Peer(address, "nobody"))
        assert done.outcomes == (FAILED,) and done.reason == "refused" and time.monotonic() - before < 0.5
    assert address in hub.transport.healthy()
    assert hub.counts["pair_failed"] <= 3


def test_a_name_that_nobody_knows(open_hub: OpenHub) -> None:
    done = _pull(open_hub(), Peer("no-such-host.invalid:7700", "x"))
    assert done.outcomes == (FAILED,) and done.reason == "unreachable"


def test_E11_ipv6(open_hub: OpenHub) -> None:
    if not socket.has_ipv6 or not Path("/proc/net/if_inet6").exists():
        pytest.skip("no IPv6 on this machine")
    theirs, ours = open_hub("theirs", listen="[::1]:0"), open_hub("ours")
    assert theirs.transport.address().startswith("[::1]:")
    theirs.source.put(make_key(0), make_payload(0, 5000))
    assert _pull(ours, theirs.peer()).outcomes == (DONE,)


def test_E10_sixteen_hubs_at_once(open_hub: OpenHub) -> None:
    addresses = {open_hub(f"hub {n}").transport.address() for n in range(16)}
    assert len(addresses) == 16


def test_E10_a_port_in_use(open_hub: OpenHub) -> None:
    taken = open_hub().transport.address()
    with pytest.raises(KvhubError, match=rf"second: cannot listen on {taken}: .*; choose another port, or port 0"):
        open_hub("second", listen=taken)


def test_nothing_listens_beyond_loopback(open_hub: OpenHub) -> None:
    """Neither the control connection nor UCX, which listens on every interface unless it is told."""
    open_hub()
    inodes = {str(fd.readlink()) for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                found.add(fields[1].partition(":")[0])
    assert found and found <= {"0100007F", "00000000000000000000000001000000"}, found


def test_E12_required_transport_is_missing(open_hub: OpenHub) -> None:
    ours, theirs = open_hub("ours", require="rc_mlx5,dc_mlx5"), open_hub("theirs")
    done = _pull(ours, theirs.peer())
    assert done.outcomes == (FAILED,) and done.reason == "lane"
    assert "require='rc_mlx5,dc_mlx5', but UCX chose" in ours.transport.healthy()


def test_E12_no_such_transport_or_device(ucx: None, secrets: None) -> None:
    config = kvhub_ucx.Config(devices="nosuch0", transports="tcp", secret_env="TEST_SECRET_ONE")
    transport = kvhub_ucx.UcxTransport(config, make_context("wire"))
    with pytest.raises(KvhubError, match=r"wire: UCX: .* with TLS=tcp,self NET_DEVICES=nosuch0; check the options"):
        transport.attach(make_region(), lambda: None)
    transport.close()


def test_ucx_changes_nothing_of_the_process(ucx: None) -> None:
    """No signal handler (UCX would take SIGHUP), no environment variable, no UCX before `attach`."""
    code = """if True:
        import contextlib, os, sys, kvhub_ucx
        with contextlib.suppress(ImportError):
            import numpy  # ucxx imports it, and its linear algebra starts a thread
        from pathlib import Path
        def caught():
            line = next(l for l in Path('/proc/self/status').read_text().splitlines() if l.startswith('SigCgt'))
            return int(line.split()[1], 16) & 0x7fffffff  # beyond are those that libc itself takes for threads
        assert 'libucx' not in sys.modules and 'libucp' not in Path('/proc/self/maps').read_text()
        before, environment, threads = caught(), dict(os.environ), len(os.listdir('/proc/self/task'))
        from kvhub_ucx import _libucp
        library = _libucp.load(os.environ.get("KVHUB_TEST_UCX_PROVIDER", "auto"))
        assert len(os.listdir('/proc/self/task')) == threads
        context = _libucp.Context(library, {"TLS": "posix,tcp,self"})
        assert caught() == before and dict(os.environ) == environment
        context.close()
    """
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
