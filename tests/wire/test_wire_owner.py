"""Whose a connection of this machine is, and what follows without a secret."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time

import pytest

from kvhub.testing import FakeSource, make_context, make_region
from kvhub.testing.wire_peer import make_member
from kvhub.wire.addresses import owner_of

NOBODY = 65534
KNOCK = """if True:
    import os, socket, sys
    "loads what the other user may not read".encode("idna")
    os.setuid(int(sys.argv[3]))
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), 5) as sock:
        sock.sendall(bytes.fromhex(sys.argv[4]))
        try:
            print(len(sock.recv(4096)))
        except ConnectionError:
            print(0)
"""


@pytest.mark.parametrize(("listen", "dial"), [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("::", "127.0.0.1")])
def test_own_connections_are_known(listen: str, dial: str) -> None:
    family = socket.AF_INET6 if ":" in listen else socket.AF_INET
    try:
        server = socket.create_server((listen, 0), family=family, dualstack_ipv6=listen == "::")
    except OSError as error:
        pytest.skip(f"no {listen} here: {error}")
    with server, socket.create_connection((dial, server.getsockname()[1])):
        one, _ = server.accept()
        with one:
            assert owner_of(one.getsockname(), one.getpeername()) == os.getuid()
            assert owner_of(one.getsockname(), ("127.0.0.1", 1)) is None


@pytest.mark.parametrize("secret", [False, True])
def test_another_user_gets_nothing_without_a_secret(monkeypatch: pytest.MonkeyPatch, secret: bool) -> None:
    """He is hung up on before he has said anything; with a secret it is that which decides."""
    if os.getuid():
        pytest.skip("needs root, to be somebody else")
    pytest.importorskip("kvhub_tcp")
    from kvhub.wire import frames

    monkeypatch.setenv("KVHUB_TEST_OWNER", "correct horse")
    counts: dict[str, int] = {}
    context = make_context("wire", report=lambda name, count: counts.update({name: counts.get(name, 0) + count}))
    member = make_member("tcp", {"secret_env": "KVHUB_TEST_OWNER"} if secret else {}, context)
    region = make_region()
    member.attach(region, lambda: None)
    member.serve(FakeSource(region))
    try:
        host, _, port = member.address().rpartition(":")
        hello = frames.encode(frames.Hello(frames.VERSION, bytes(32)), None).hex()
        heard = {}
        for user in (NOBODY, 0):
            run = subprocess.run(
                [sys.executable, "-c", KNOCK, host, port, str(user), hello], capture_output=True, text=True, timeout=30
            )
            assert not run.returncode, run.stderr
            heard[user] = int(run.stdout)
        assert heard[0] > 0 and (heard[NOBODY] > 0) is secret
        end = time.monotonic() + 5
        while not secret and counts.get("handshake_refused") != 1:
            assert time.monotonic() < end, counts
            time.sleep(0.01)
    finally:
        member.close()
