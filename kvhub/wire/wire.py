"""`Wire`: one hub's connections, peers and transfers; all of it runs on the loop's one thread."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Callable, Sequence

from kvhub.errors import KvhubError
from kvhub.transport import Source
from kvhub.types import Batch, Completion, Held, Key, Peer, Region
from kvhub.wire import addresses, frames, mapped, options
from kvhub.wire.channel import Channel
from kvhub.wire.greeting import Refusal
from kvhub.wire.lane import Fabric, Lane
from kvhub.wire.link import Link, State
from kvhub.wire.listener import Listener
from kvhub.wire.loop import Loop
from kvhub.wire.options import WireConfig
from kvhub.wire.serve import ServeLink
from kvhub.wire.stream import Stream, TlsStream
from kvhub.wire.target import Target

_MOST_TOLD = 1000


class Wire(Loop):
    """`submit`, `connect`, `forget`, `fulfil` and `cancel` may be called from any thread."""

    def __init__(
        self,
        config: WireConfig,
        name: str,
        card: frames.Card,
        region: Region,
        fabric: Fabric,
        report: Callable[[str, int], None],
        done: Callable[[Batch, Completion], None],
    ) -> None:
        self.config, self.card, self.region, self.fabric = config, card, region, fabric
        self.report = report
        self.complete = done
        self.address = ""
        self.source: Source | None = None
        exposed = f"listen={config.listen!r}" if options.listens_beyond(config) else fabric.exposed()
        self.secret = options.secret(config, name, exposed)
        self._tls = options.tls(config, name)
        super().__init__(name)
        self._listener: Listener | None = None
        self._targets: dict[str, Target] = {}
        self._told: set[tuple[str, str]] = set()

    # From other threads.

    def start(self) -> None:
        """Listen, open the fabric, prove that it moves bytes.  Raises KvhubError; then nothing is left behind."""
        try:
            if self.config.listen:
                self._listener = Listener(self.config, self.name)
                self.address = self._listener.address
                self.watch_fd(self._listener.fd)
        except Exception:
            self.abandon()
            raise
        self.launch()

    def submit(self, batch: Batch) -> bool:
        """Whether the batch was taken; then it will be completed."""
        peer = batch.peer
        assert peer is not None
        return self.post(lambda: self._target(peer.address).submit(batch))

    def connect(self, peer: Peer) -> None:
        self.post(lambda: self._target(peer.address).connect(peer.incarnation))

    def forget(self, peer: Peer) -> None:
        self.post(lambda: self._target(peer.address).forget())

    def fulfil(self, peer: Peer) -> None:
        self.post(lambda: self._target(peer.address).fulfil(peer.incarnation, peer.promise))

    def cancel(self, batch_id: int) -> None:
        def cancel() -> None:
            for target in self._targets.values():
                target.cancel(batch_id)

        self.post(cancel)

    def problems(self) -> list[str]:
        """Peers that could not be paired, or that may still write, for operators."""
        found = [f"{t.address}: {t.problem}" for t in list(self._targets.values()) if t.problem]
        hung = [f"{link.label}: hangs with slots of this hub, which stay lent" for link in list(self._quarantined)]
        return hung + found

    # The source.

    def take(self, keys: Sequence[Key], deadline: float, ready: Callable[[int, list[Held | None]], None]) -> int:
        if self.source is None:
            raise KvhubError(f"{self.name}: this hub serves nothing yet")
        return self.source.take(keys, deadline, ready)

    def give_back(self, ticket: int) -> None:
        self._tell_source(lambda source: source.give_back(ticket))

    def fulfilled(self, promise: str) -> None:
        self._tell_source(lambda source: source.fulfilled(promise))

    def _tell_source(self, say: Callable[[Source], None]) -> None:
        try:
            if self.source is not None:
                say(self.source)
        except Exception as error:
            self.log.error("wire.source_failed", exc_info=error)

    # Links and lanes.

    def server_card(self) -> frames.Card:
        """The card for those who proved themselves: with the arena's name, where it may be mapped."""
        region, identity = self.region, mapped.identity(self.region)
        if not identity or self.config.path not in ("auto", "mapped"):
            return self.card
        return frames.Card(
            self.card.incarnation,
            self.card.namespace,
            self.card.namespace_json,
            self.card.layout,
            region.name,
            identity,
            region.slots,
            region.slot_bytes,
        )

    def open_lane(self, link: Link) -> Lane:
        if isinstance(link, ServeLink):
            lane = self.fabric.server_lane()
        else:
            # The address that was dialled, not what its name would be resolved to now.
            family, where, host = link.channel.stream.sock.family, _peer_of(link), link.label.rpartition(":")[0]
            lane = self.fabric.lane(lambda: self.dial(family, where, host)[0])
        self.watch_lane(link, lane)
        return lane

    def close_lane(self, link: Link, lane: Lane) -> None:
        self.unwatch_lane(lane)
        lane.destroy()

    def _serving(self, paired: bool) -> list[Link]:
        return [one for one in self._links.values() if isinstance(one, ServeLink) and one.was_up is paired]

    def check_room(self) -> None:
        """Raises Refusal when as many peers are served as may be."""
        if len(self._serving(True)) >= self.config.most_peers:
            raise Refusal("full", f"this hub serves {self.config.most_peers} peers already (option most_peers)")

    def hand_over(self, link: Link, token: bytes) -> None:
        """This connection is another link's data lane: give it away and forget it."""
        self.forget_descriptor(link)
        link.state = State.CLOSED
        self.gone(link)
        lane = self.fabric.adopt(token, link.channel.stream) if not link.channel.unread else None
        owner = self._lanes.get(lane.efd) if lane is not None else None
        if owner is not None:
            self.heat(owner)
            return
        link.reason, link.text = "protocol", "a data connection that nobody waits for"
        link.channel.close()
        self._refused(link)

    def check_lanes(self, link: Link) -> None:
        """Raises Refusal where the fabric is not content with what a link really uses."""
        names = link.names()
        problem = self.fabric.objection(names, link.label)
        if problem:
            raise Refusal("lane", problem)
        for name in dict.fromkeys(name.partition("/")[0] for name in names):
            self.report(f"lane_{name}", 1)

    def add(self, link: Link) -> None:
        self._links[link.channel.fd] = link
        self.watch(link)
        if link.state is State.GREETING:
            link.begin_greeting()

    def unwatch(self, link: Link) -> None:
        self.forget_descriptor(link)
        if isinstance(link, ServeLink) and link.peer is None and link.reason not in ("closed", "peer"):
            self._refused(link)

    def _refused(self, link: Link) -> None:
        self.report("handshake_refused", 1)
        self._tell(link.label, link.reason, link.text)

    def _tell(self, label: str, reason: str, text: str) -> None:
        host = label.rpartition(":")[0]
        if (host, reason) not in self._told and len(self._told) < _MOST_TOLD:
            self._told.add((host, reason))
            self.log.warning("wire.refused", peer=label, reason=reason, text=text)

    def _may_knock(self, sock: socket.socket) -> bool:
        """Without a secret only this machine can reach the port, and of its users only this one (and root) may."""
        if self.secret or self.config.tls_ca:
            return True
        try:
            owner = addresses.owner_of(sock.getsockname(), sock.getpeername())
        except OSError:
            return False
        return owner in (os.getuid(), 0)

    def _target(self, address: str) -> Target:
        found = self._targets.get(address)
        if found is None:
            found = self._targets[address] = Target(self, address)
        return found

    # Connections.

    def dial(self, family: socket.AddressFamily, where: tuple[object, ...], host: str) -> tuple[Stream, int]:
        """(stream, errno or 0 when it is being made) of a connection to `where`; `host` is what TLS must prove."""
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setblocking(False)
        code = sock.connect_ex(where)
        problem = code if code not in (0, errno.EINPROGRESS) else 0
        if problem or self._tls.client is None:
            return Stream(sock), problem
        return TlsStream(sock, self._tls.client, server=False, host=host.strip("[]").partition("%")[0]), 0

    def dialled(self, link: Link) -> None:
        code = link.channel.stream.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            link.close("refused" if code == errno.ECONNREFUSED else "unreachable", os.strerror(code))
        else:
            link.begin_greeting()
            self.watch(link)

    def on_descriptor(self, fd: int) -> None:
        if self._listener is None or fd != self._listener.fd:
            return
        for sock, label in self._listener.accept():
            # A data connection counts only until it was handed over, or the last peer could never make its own.
            if len(self._serving(False)) >= self.config.most_peers:
                self.report("handshake_refused", 1)
                sock.close()
                continue
            if not self._may_knock(sock):
                self.report("handshake_refused", 1)
                self._tell(label, "user", "it is another user's process, and this hub has no secret")
                sock.close()
                continue
            with contextlib.suppress(OSError):
                server = self._tls.server
                stream = Stream(sock) if server is None else TlsStream(sock, server, server=True)
                self.add(ServeLink(self, Channel(stream), label))

    # The thread.

    def open(self) -> None:
        facts = self.fabric.open(self.region, self.secret)
        self.log.info(
            "wire.opened", address=self.address, secret=bool(self.secret), tls=self._tls.server is not None, **facts
        )

    def clocks(self, now: float) -> float:
        due = float("inf")
        for target in list(self._targets.values()):
            if target.due() <= now:
                target.tick(now)
            due = min(due, target.due())
        if len(self._targets) > self.config.most_peers:
            # What is known of an idle one is only when to try it again and which incarnations are gone.
            for address in [address for address, target in self._targets.items() if target.idle]:
                del self._targets[address]
        return due

    def shut(self) -> None:
        for target in self._targets.values():
            target.forget()

    def let_go(self) -> None:
        if not self._lanes:
            self.fabric.close()
        if self._listener is not None:
            self._listener.close()


def _peer_of(link: Link) -> tuple[object, ...]:
    try:
        return tuple(link.channel.stream.sock.getpeername())
    except OSError:
        return ()
