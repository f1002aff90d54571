"""`WirePairing`: who is let in, who is refused and what is said about it, as pytest laws."""

from __future__ import annotations

import os
import socket
import struct
import time
from pathlib import Path
from typing import Any

import pytest

from kvhub.errors import KvhubError
from kvhub.testing.stage import until
from kvhub.testing.wire_certs import authority, certificate
from kvhub.testing.wire_hub import Hub, OpensHub, Wired
from kvhub.testing.wire_peer import listening
from kvhub.testing.wire_raw import Raw
from kvhub.types import Completion, Outcome, Peer
from kvhub.wire import frames

DONE, FAILED = Outcome.DONE, Outcome.FAILED
LENGTH = 5000
ONE, TWO = "KVHUB_TEST_WIRE_ONE", "KVHUB_TEST_WIRE_TWO"
LOOPBACK = {"127.0.0.1", "::1"}


class WirePairing(Wired):
    """Subclass this once for each fabric, and once more with `tls`; see `WireFaults` for the settings."""

    @pytest.fixture(autouse=True)
    def wire_secrets(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Two secrets, for hubs that are to trust each other or not."""
        monkeypatch.setenv(ONE, "correct horse")
        monkeypatch.setenv(TWO, "battery staple")

    def _pair(self, open_hub: OpensHub, mine: dict[str, Any], other: dict[str, Any]) -> tuple[Hub, Hub]:
        ours, theirs = open_hub("ours", **mine), open_hub("theirs", **other)
        theirs.offer(1, LENGTH)
        return ours, theirs

    def _pull(self, hub: Hub, peer: Peer) -> Completion:
        return hub.pull(peer, 1, 10.0)

    # -- secrets, namespaces, names

    def test_same_secret(self, open_hub: OpensHub) -> None:
        """Who proves the same secret is let in."""
        ours, theirs = self._pair(open_hub, {"secret_env": ONE}, {"secret_env": ONE})
        assert self._pull(ours, theirs.peer()).outcomes == (DONE,)

    @pytest.mark.parametrize(("mine", "other"), [(ONE, TWO), (ONE, ""), ("", TWO)])
    def test_another_secret(self, open_hub: OpensHub, mine: str, other: str) -> None:
        """Refused by name on both sides; no lane was made, and nothing was asked of the source."""
        ours, theirs = self._pair(open_hub, {"secret_env": mine}, {"secret_env": other})
        done = self._pull(ours, theirs.peer())
        assert done.outcomes == (FAILED,) and done.reason == "secret"
        assert "secret" in ours.transport.healthy() and theirs.transport.address() in ours.transport.healthy()
        assert not theirs.source.taken and not theirs.wire._lanes

    def test_A26_another_namespace(self, open_hub: OpensHub) -> None:
        """Another model's KV is refused, with what differs, and nothing is asked of the source."""
        ours, theirs = open_hub("ours", namespace="llama"), open_hub("theirs", namespace="qwen")
        done = self._pull(ours, theirs.peer())
        assert done.outcomes == (FAILED,) and done.reason == "namespace"
        said = ours.transport.healthy()
        assert "model ('llama' here, 'qwen' there)" in said or "model ('qwen' here, 'llama' there)" in said
        until(lambda: theirs.counts.get("handshake_refused") == 1, self.patience, "the refusal is counted")
        assert not theirs.source.taken

    def test_A26_B17_another_incarnation(self, open_hub: OpensHub) -> None:
        """A process that took over the address is no substitute; the one that is there goes on undisturbed."""
        ours, theirs = open_hub("ours"), open_hub("theirs", incarnation="second")
        theirs.offer(1, LENGTH)
        assert self._pull(ours, theirs.peer()).outcomes == (DONE,)
        (link,) = ours.wire._links.values()
        for _ in range(2):
            done = self._pull(ours, theirs.peer(incarnation="first"))
            assert done.outcomes == (FAILED,) and done.reason == "incarnation"
        assert self._pull(ours, theirs.peer()).outcomes == (DONE,)
        assert [*ours.wire._links.values()] == [link], "a stale name cut a healthy link"

    # -- callers that are no hubs

    def test_another_version(self, open_hub: OpensHub) -> None:
        """A hub of another protocol is told both versions."""
        theirs = open_hub("theirs")
        if self.tls:
            self.leave_out("a caller without a certificate is not told the version")
        with Raw.dial(theirs.transport.address()) as raw:
            raw.send(frames.Hello(99, bytes(32)))
            heard = raw.heard()
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
            frames.encode(frames.Hello(1, bytes(32)), None) + frames.encode(frames.Join("x"), None),
        ],
        ids=["http", "oversized", "empty", "not-msgpack", "no-such-flag", "out-of-turn", "skips-a-step"],
    )
    def test_rubbish_gets_nothing(self, open_hub: OpensHub, wire_log: list[Any], rubbish: bytes) -> None:
        """Hung up on at once, without an address of a lane, counted each time and told once; the hub serves on."""
        ours, theirs = self._pair(open_hub, {}, {})
        for _ in range(3):
            with Raw.dial(theirs.transport.address()) as raw:
                raw.raw(rubbish + bytes(self.tls and 400))
                assert len(raw.rest()) < 300
        until(lambda: theirs.counts.get("handshake_refused") == 3, self.patience, "all three are counted")
        assert len([one for one in wire_log if one["event"] == "wire.refused"]) == 1
        assert not theirs.wire._lanes
        assert self._pull(ours, theirs.peer()).outcomes == (DONE,)

    def test_who_says_nothing_is_hung_up_on(self, open_hub: OpensHub) -> None:
        """A connection that greets nobody keeps its place no longer than a greeting may take."""
        hub = open_hub(handshake_timeout="200ms")
        with Raw.dial(hub.transport.address()) as raw:
            before = time.monotonic()
            assert raw.rest() == b""
            assert 0.15 < time.monotonic() - before < 2.0

    def test_most_peers(self, open_hub: OpensHub) -> None:
        """Callers beyond the limit are turned away at the door."""
        hub = open_hub(most_peers=2)
        held = [Raw.dial(hub.transport.address()) for _ in range(2)]
        with Raw.dial(hub.transport.address()) as raw:
            assert raw.rest() == b""
        for one in held:
            one.close()

    # -- addresses

    def test_D12_a_port_that_never_answers(self, open_hub: OpensHub) -> None:
        """Pairing is off every caller's thread and disturbs no other peer."""
        ours, theirs = self._pair(open_hub, {"handshake_timeout": "600ms"}, {})
        with socket.create_server(("127.0.0.1", 0)) as deaf:
            silent = Peer(f"127.0.0.1:{deaf.getsockname()[1]}", "silent")
            before = time.monotonic()
            batch = ours.start(silent, 1, 10.0, slot=0)
            ours.transport.connect(silent)
            assert time.monotonic() - before < 0.05
            assert self._pull(ours, theirs.peer()).outcomes == (DONE,)
            done = ours.end(batch, 1, slot=0)
            assert done.outcomes == (FAILED,) and done.reason == "handshake"
            assert time.monotonic() - before < 0.6 + 2.0

    def test_nobody_listens(self, open_hub: OpensHub) -> None:
        """Refused at once, and again at once without a new attempt while the pause lasts."""
        with socket.create_server(("127.0.0.1", 0)) as gone:
            address = f"127.0.0.1:{gone.getsockname()[1]}"
        hub = open_hub()
        for _ in range(4):
            before = time.monotonic()
            done = self._pull(hub, Peer(address, "nobody"))
            assert done.outcomes == (FAILED,) and done.reason == "refused" and time.monotonic() - before < 1.0
        assert address in hub.transport.healthy()
        assert hub.counts["pair_failed"] <= 3

    def test_a_name_that_nobody_knows(self, open_hub: OpensHub) -> None:
        """A host name without an address is that peer's failure."""
        done = self._pull(open_hub(), Peer("no-such-host.invalid:7700", "x"))
        assert done.outcomes == (FAILED,) and done.reason == "unreachable"

    def test_E11_a_name(self, open_hub: OpensHub) -> None:
        """A host name is resolved aside, and serves as well as an address."""
        ours, theirs = self._pair(open_hub, {}, {"advertise": "localhost:0"})
        assert theirs.transport.address().startswith("localhost:")
        if socket.getaddrinfo("localhost", 1, type=socket.SOCK_STREAM)[0][0] != socket.AF_INET:
            self.leave_out("localhost is IPv6 here first, and the hub listens on IPv4")
        assert self._pull(ours, theirs.peer()).outcomes == (DONE,)

    def test_E11_ipv6(self, open_hub: OpensHub) -> None:
        """IPv6 addresses work as they are told to peers, in brackets."""
        if not socket.has_ipv6 or not Path("/proc/net/if_inet6").exists():
            self.leave_out("no IPv6 on this machine")
        ours, theirs = self._pair(open_hub, {}, {"listen": "[::1]:0"})
        assert theirs.transport.address().startswith("[::1]:")
        assert self._pull(ours, theirs.peer()).outcomes == (DONE,)

    def test_E10_sixteen_hubs_at_once(self, open_hub: OpensHub) -> None:
        """Hubs of one machine find ports of their own."""
        assert len({open_hub(f"hub {n}", slots=2).transport.address() for n in range(16)}) == 16

    def test_E10_a_port_in_use(self, open_hub: OpensHub) -> None:
        """A port that is taken stops the start, and the message says what to do."""
        taken = open_hub().transport.address()
        with pytest.raises(KvhubError, match=rf"second: cannot listen on {taken}: .*; choose another port, or port 0"):
            open_hub("second", listen=taken)

    def test_nothing_listens_beyond_loopback(self, open_hub: OpensHub) -> None:
        """Neither the control connection nor what a fabric opens for a peer, which may listen on every interface."""
        before = set(listening())
        ours, theirs = self._pair(open_hub, {}, {})
        assert self._pull(ours, theirs.peer()).outcomes == (DONE,)
        found = set(listening()) - before
        assert found and {host for host, _ in found} <= LOOPBACK, found

    # -- certificates

    def test_who_has_no_certificate(
        self, open_hub: OpensHub, tmp_path: Path, wire_options: dict[str, Any], wire_log: list[Any]
    ) -> None:
        """Without a certificate of the authority nobody is served or believed, whichever side lacks it."""
        if not self.tls:
            self.leave_out("this class has no certificates")
        authority(tmp_path)
        authority(tmp_path, "other")
        stranger = str(certificate(tmp_path, "other", "stranger"))
        elsewhere = str(certificate(tmp_path, "other", "elsewhere", "subjectAltName=DNS:elsewhere.invalid"))
        theirs = open_hub("theirs")
        theirs.offer(1, LENGTH)
        plain: dict[str, Any] = {"tls_cert": "", "tls_ca": ""}
        for name, options in (
            ("plain", plain),
            ("own authority", {"tls_cert": stranger, "tls_ca": str(tmp_path / "other.pem")}),
            ("other's certificate", {"tls_cert": stranger}),
        ):
            more: dict[str, Any] = options
            caller = open_hub(name, **more)
            caller.offer(1, LENGTH)
            assert self._pull(caller, theirs.peer()).outcomes == (FAILED,), name
            # And the other way round: a server that cannot prove itself is not asked.
            done = self._pull(theirs, caller.peer())
            assert done.outcomes == (FAILED,) and not caller.source.taken, (name, done)
        impostor = open_hub("impostor", tls_cert=elsewhere, tls_ca=str(tmp_path / "other.pem"))
        assert self._pull(theirs, impostor.peer()).outcomes == (FAILED,)
        assert not theirs.source.taken
        good = open_hub("good")
        assert self._pull(good, theirs.peer()).outcomes == (DONE,)

    def test_a_certificate_of_another_host(
        self, open_hub: OpensHub, tmp_path: Path, wire_options: dict[str, Any]
    ) -> None:
        """A certificate of the right authority for another machine's name does not do for this one."""
        if not self.tls:
            self.leave_out("this class has no certificates")
        authority(tmp_path)
        mine, other = (
            {"tls_cert": str(certificate(tmp_path, "ca", name, f"subjectAltName={text}")),
             "tls_ca": str(tmp_path / "ca.pem")}
            for name, text in (("mine", "IP:127.0.0.1"), ("other", "DNS:elsewhere.invalid"))
        )  # fmt: skip
        ours, theirs = self._pair(open_hub, mine, other)
        done = self._pull(ours, theirs.peer())
        assert done.outcomes == (FAILED,) and done.reason == "tls" and not theirs.source.taken
        assert "127.0.0.1" in ours.transport.healthy()
