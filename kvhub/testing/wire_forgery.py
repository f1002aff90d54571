"""Laws of the wire: what strangers send, replay, cut and change is never believed."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from kvhub.testing.region import make_key
from kvhub.testing.stage import until
from kvhub.testing.wire_hub import SECRET, SECRET_ENV, Hub, OpensHub, StartsPeer, Wired
from kvhub.testing.wire_raw import Change, Raw, Stranger, between
from kvhub.types import Outcome, Peer
from kvhub.wire import frames
from kvhub.wire.lane import Fabric

COUNT, LENGTH = 6, 20000
DONE, FAILED, LATE, CORRUPT = Outcome.DONE, Outcome.FAILED, Outcome.LATE, Outcome.CORRUPT
ROUNDS = 300
JUNK = 45


def _keyed(more: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"secret_env": SECRET_ENV, **(more or {})}


class ForgeryLaws(Wired):
    """The network is the attacker's: with a secret or TLS, that gains nothing."""

    def _pair(self, open_hub: OpensHub, **options: Any) -> tuple[Hub, Hub]:
        ours, theirs = (open_hub(name, slots=32, **options) for name in ("ours", "theirs"))
        theirs.offer(COUNT, LENGTH)
        return ours, theirs

    def _no_tls(self) -> None:
        if self.tls:
            self.leave_out("strangers without a certificate do not come as far as that, see the law about them")

    # -- recorded, cut, changed

    def test_a_session_replayed_to_the_server(self, open_hub: OpensHub) -> None:
        """What a puller once said is worth nothing in another session: nothing is asked of the source again."""
        ours, theirs = self._pair(open_hub, **_keyed())
        said: list[bytes] = []

        def record(data: bytes, before: int, connection: int) -> bytes:
            if connection == 0:
                said.append(data)
            return data

        with between(theirs.transport.address(), to_server=record) as proxy:
            assert set(ours.pull(Peer(proxy.address, theirs.peer().incarnation), COUNT).outcomes) == {DONE}
        asked = len(theirs.source.taken)
        for cut in (None, 1, 40):
            with Raw.dial(theirs.transport.address()) as raw:
                raw.raw(b"".join(said)[:cut])
                if cut:
                    continue
                heard = raw.rest()
                # TLS answers with its own first words, and is not convinced either.
                assert self.tls or len(heard) < 700, "a replayed session was answered"
        assert len(theirs.source.taken) == asked
        assert set(ours.pull(theirs.peer(), COUNT).outcomes) == {DONE}

    def test_a_session_replayed_to_the_puller(self, open_hub: OpensHub) -> None:
        """What a server once said proves nothing to a puller that made a new nonce."""
        ours, theirs = self._pair(open_hub, **_keyed())
        said: list[bytes] = []

        def record(data: bytes, before: int, connection: int) -> bytes:
            if connection == 0:
                said.append(data)
            return data

        with between(theirs.transport.address(), to_puller=record) as proxy:
            assert set(ours.pull(Peer(proxy.address, theirs.peer().incarnation), COUNT).outcomes) == {DONE}

        def replay(raw: Raw) -> None:
            raw.sock.recv(65536)
            raw.raw(b"".join(said))
            raw.rest()

        with Stranger(replay) as fake:
            done = ours.pull(Peer(fake.address, theirs.peer().incarnation), COUNT)
        assert set(done.outcomes) == {FAILED} and done.reason in ("secret", "tls"), done

    def test_bytes_changed_on_the_way(self, open_hub: OpensHub) -> None:
        """Flipped, repeated, dropped and cut bytes, anywhere in either direction, end a pull; none is wrongly DONE."""
        ours, theirs = self._pair(open_hub, **_keyed({"stop_timeout": 0.1, "handshake_timeout": 0.5}))
        dice = random.Random(5)
        ended = set()
        for n in range(40):
            at, kind = int(10 ** dice.uniform(0, 5)), ("flip", "repeat", "drop", "cut")[n % 4]

            def change(data: bytes, before: int, _: int, at: int = at, kind: str = kind) -> bytes | None:
                place = at - before
                if not 0 <= place < len(data):
                    return data
                if kind == "flip":
                    return data[:place] + bytes([data[place] ^ (1 << at % 8)]) + data[place + 1 :]
                if kind == "repeat":
                    return data[: place + 1] + data[max(place - 40, 0) :]
                return data[:place] + data[place + 30 :] if kind == "drop" else None

            ways: dict[str, Change] = {("to_server", "to_puller")[n // 4 % 2]: change}
            with between(theirs.transport.address(), **ways) as proxy:
                peer = Peer(proxy.address, theirs.peer().incarnation)
                done = ours.end(ours.start(peer, COUNT, 0.5), COUNT)
                ours.transport.forget(peer)
            ended |= set(done.outcomes)
        assert len(ended) > 1, "nothing of all this had any effect"
        until(lambda: not theirs.source.lent, self.patience, "leases are back")
        assert set(ours.pull(theirs.peer(), COUNT).outcomes) == {DONE}

    # -- strangers

    @pytest.mark.parametrize("keyed", [False, True], ids=["open", "keyed"])
    def test_rubbish_in_every_state(self, open_hub: OpensHub, keyed: bool) -> None:
        """Random and damaged frames from a caller, at every step of a greeting, cost it the connection, us nothing."""
        self._no_tls()
        options = _keyed() if keyed else {}
        theirs = open_hub("theirs", slots=32, **options)
        theirs.offer(COUNT, LENGTH)
        dice, secret = random.Random(9), SECRET.encode() if keyed else b""
        pull = frames.Pull(1, make_key(0) * 2, bytes(16), 1.0)
        for n in range(ROUNDS // 2):
            with Raw.dial(theirs.transport.address()) as raw:
                raw.greet(theirs, n % 4, secret)
                body = frames.encode(dice.choice([pull, frames.Go(1), frames.Ack(1, 1), raw.card(theirs)]), raw._out)
                raw.raw(_damage(body, dice, n))
        until(lambda: not theirs.source.lent and not theirs.links, self.patience, "strangers leave nothing")
        ours = open_hub("ours", slots=32, **options)
        assert set(ours.pull(theirs.peer(), COUNT).outcomes) == {DONE}

    @pytest.mark.parametrize("keyed", [False, True], ids=["open", "keyed"])
    def test_rubbish_instead_of_a_server(self, open_hub: OpensHub, keyed: bool) -> None:
        """A pull from someone who speaks nonsense at any step fails soon, and touches no slot."""
        self._no_tls()
        options = _keyed() if keyed else {}
        ours = open_hub("ours", slots=32, handshake_timeout=0.3, **options)
        secret = SECRET.encode() if keyed else b""
        for n in range(ROUNDS // 6):

            def meet(raw: Raw, n: int = n) -> None:
                dice = random.Random(n)
                if n % 3:
                    hello = raw.heard()
                    nonce = os.urandom(32)
                    raw.send(frames.Challenge(frames.VERSION, nonce, keyed))
                    if secret:
                        raw.seal(secret, hello.nonce, nonce, mine="server")
                if n % 3 == 2:
                    raw.heard()
                    raw.send(raw.card(ours, arena="/proc/1/fd/1", arena_id=bytes(48), slots=4, slot_bytes=4096))
                answer = dice.choice([frames.Ready("mapped"), frames.Ready("put", bytes(40)), raw.card(ours)])
                raw.raw(_damage(frames.encode(answer, raw._out), dice, n))
                raw.rest()

            with Stranger(meet) as fake:
                batch = ours.start(Peer(fake.address, "stranger"), COUNT, 1.0)
                done = ours.end(batch, COUNT)
                assert DONE not in done.outcomes and done.reason, done
                assert ours.spoilt(COUNT) == []

    def test_junk_instead_of_a_lane_address(self, open_hub: OpensHub, start_peer: StartsPeer) -> None:
        """Who knows the secret and names a lane that is none is refused; the hub lives and serves on."""
        self._no_tls()
        if self.path == "mapped":
            self.leave_out("a mapped arena has no lanes")
        ours, peer, dice = open_hub("ours"), start_peer(chunks=COUNT, length=LENGTH), random.Random(5)
        lane = ours.wire.fabric.lane(lambda: None)
        good = lane.address() or os.urandom(32)
        lane.destroy()
        for n in range(JUNK):
            junk = bytearray(dice.randbytes(dice.randrange(1, 200)) if n % 3 == 0 else good)
            if n % 3 == 1:
                junk[dice.randrange(len(junk))] ^= 1 << dice.randrange(8)
            elif n % 3 == 2:
                junk = junk[: dice.randrange(len(junk))]
            with Raw.dial(peer.peer.address) as raw:
                raw.greet(ours, 2)
                raw.send(frames.Join("message", bytes(junk)))
                raw.heard()
        assert not peer.dead, "the hub died of an address"
        assert set(ours.pull(peer.peer, COUNT).outcomes) == {DONE}

    def test_every_port_and_a_stranger(self, open_hub: OpensHub, start_peer: StartsPeer) -> None:
        """Without the secret no port that we open gives anything, changes anything, or fills the log."""
        peer = start_peer(chunks=COUNT, length=LENGTH, options=_keyed(), environment={SECRET_ENV: SECRET})
        # With a peer paired, whatever a fabric opens for one is open.
        ours = open_hub("ours", slots=32, **_keyed())
        assert set(ours.pull(peer.peer, COUNT).outcomes) == {DONE}
        before, ports = peer.ask("arena"), peer.ask("state")["ports"]
        assert ports and all(host in ("127.0.0.1", "::1") for host, _ in ports), ports
        links = peer.ask("state")["links"]
        hello = frames.encode(frames.Hello(frames.VERSION, bytes(32)), None)
        knocks: list[Callable[[], bytes]] = [
            lambda: b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            lambda: bytes.fromhex("16030100c8010000c40303") + os.urandom(197),
            lambda: os.urandom(3000),
            lambda: struct.pack("<Q", 0xCAFEBABE12345678) + os.urandom(512),
            lambda: hello,
            lambda: hello + frames.encode(frames.Card("x", bytes(32), "{}", ""), None),
            lambda: hello + hello,
            lambda: struct.pack(">I", 0xFFFFFFFF) + bytes(100),
            lambda: frames.encode(frames.Attach(os.urandom(32), os.urandom(32)), None),
            lambda: frames.encode(frames.Pull(1, make_key(0), bytes(8), 1.0), None),
        ]
        for _ in range(3):
            for host, port in ports:
                for knock in knocks:
                    with Raw.dial(f"[{host}]:{port}" if ":" in host else f"{host}:{port}", 1.0) as raw:
                        raw.raw(knock())
                        with contextlib.suppress(OSError):
                            # Unless the hub has hung up already.
                            raw.sock.shutdown(socket.SHUT_WR)
                        try:
                            heard = raw.rest()
                        except TimeoutError:
                            heard = b""
                        assert len(heard) < 400, f"port {port} says {len(heard)} bytes to a stranger"
        state = peer.until(lambda now: now["links"] <= links, self.patience, "strangers are gone")
        assert peer.ask("arena") == before, "a stranger changed the arena"
        told = [(peer.rpartition(":")[0], reason) for peer, reason in state["refused"]]
        assert len(told) == len(set(told)), f"the log repeats itself: {told}"
        assert told and state["counts"]["handshake_refused"] > len(told)
        assert not {"wire.bug", "wire.broken"} & set(state["events"])
        assert set(ours.pull(peer.peer, COUNT).outcomes) == {DONE}
        # And the source was never asked on behalf of one.
        assert state["asked"] == 1

    def test_a_data_connection_of_a_stranger(self, open_hub: OpensHub) -> None:
        """A token without its proof, a proof without its token and a token of nobody's all end in nothing."""
        self._no_tls()
        theirs = open_hub("theirs", **_keyed())
        token = os.urandom(32)
        proof = frames.lane_proof(SECRET.encode(), token)
        for attach in (frames.Attach(token, bytes(32)), frames.Attach(bytes(32), proof), frames.Attach(token, proof)):
            with Raw.dial(theirs.transport.address()) as raw:
                raw.send(attach)
                assert len(raw.rest()) < 200
        until(lambda: theirs.counts.get("handshake_refused") == 3, self.patience, "all three are counted")
        assert not theirs.wire._lanes
        if self.path != "message" or type(theirs.wire.fabric).adopt is Fabric.adopt:
            return
        # Somebody saw on the network what another one was told.
        with Raw.dial(theirs.transport.address()) as raw:
            raw.greet(theirs, 2, SECRET.encode())
            raw.send(frames.Join("message"))
            token = raw.heard().address
            with Raw.dial(theirs.transport.address()) as thief:
                thief.send(frames.Attach(token, bytes(32)))
                heard = thief.rest()
            assert b"proof" in heard and len(heard) < 200, heard

    def test_a_stranger_s_join(self, open_hub: OpensHub) -> None:
        """A caller that was let in and asks for a path or an arena that cannot be is refused by name."""
        self._no_tls()
        theirs = open_hub("theirs")
        for path in ("", "mapped " * 20, "nonsense", "message" if self.path == "mapped" else "mapped"):
            with Raw.dial(theirs.transport.address()) as raw:
                raw.greet(theirs, 2)
                raw.send(frames.Join(path, slots=1 << 62, slot_bytes=1 << 62, base=1 << 63))
                answer = raw.heard()
                assert answer is None or isinstance(answer, frames.Refused), answer
        until(lambda: not theirs.links, self.patience, "strangers leave nothing")

    def test_a_map_of_somebody_else_s_file(self, open_hub: OpensHub) -> None:
        """A server cannot make a puller open files: only the memory that it proves by device and inode is mapped."""
        if self.path != "mapped":
            self.leave_out("this path maps nothing")
        ours = open_hub("ours")
        good, region = ours.wire.server_card(), ours.driver.region
        names = ["/etc/passwd", "../../etc/passwd", region.name + "/..", "/proc/self/mem", "/proc/1/fd/0", ""]
        cards = [{"arena": name, "arena_id": good.arena_id} for name in names]
        cards += [{"arena": good.arena, "arena_id": data} for data in (bytes(len(good.arena_id)), b"")]
        for more in cards:

            def meet(raw: Raw, more: dict[str, Any] = more) -> None:
                raw.heard()
                raw.send(frames.Challenge(frames.VERSION, bytes(32), False))
                raw.heard()
                raw.send(raw.card(ours, slots=region.slots, slot_bytes=region.slot_bytes, **more))
                raw.rest()

            with Stranger(meet) as fake:
                done = ours.pull(Peer(fake.address, "stranger"), 1, 2.0)
                assert set(done.outcomes) == {FAILED} and done.reason in ("path", "tls"), (more, done)
            ours.transport.forget(Peer(fake.address, "stranger"))


def _damage(frame: bytes, dice: random.Random, n: int) -> bytes:
    """A frame with something wrong in it, or something that is no frame."""
    kind = n // 4 % 6
    if kind == 0:
        return dice.randbytes(dice.randrange(1, 200))
    if kind == 1:
        return frame[: dice.randrange(1, len(frame))]
    if kind == 2:
        place = dice.randrange(4, len(frame))
        return frame[:place] + bytes([frame[place] ^ (1 << dice.randrange(8))]) + frame[place + 1 :]
    if kind == 3:
        return struct.pack(">I", dice.choice([0, 1 << 20, 1 << 31, (1 << 32) - 1])) + frame[4:]
    if kind == 4:
        junk = msgspec.msgpack.encode([dice.randrange(25), *[dice.choice([1, -1, b"x", "y", None, [1]])] * 4])
        return frames.HEAD.pack(len(junk) + 1, 0) + junk
    return frame + frame
