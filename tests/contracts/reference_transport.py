"""A correct transport in as few lines as it takes: a TCP connection and a thread for each pull, JSON and bytes."""

import contextlib
import json
import queue
import select
import socket
import threading
import time
from collections import deque

import attrs

from kvhub.errors import MisuseError
from kvhub.transport import Transport
from kvhub.types import Capabilities, Completion, Op, Outcome


@attrs.frozen
class ReferenceConfig:
    host: str = "127.0.0.1"


def fill(sock, view):
    while view.nbytes:
        count = sock.recv_into(view)
        if not count:
            raise ConnectionError("hung up")
        view = view[count:]


def gone(sock):
    return select.select([sock], [], [], 0)[0] and not sock.recv(1, socket.MSG_PEEK)


class ReferenceTransport(Transport):
    Config = ReferenceConfig
    capabilities = Capabilities()
    server, source, closed = None, None, False

    def attach(self, region, wake):
        self.region, self.wake, self.done, self.calls, self.threads = region, wake, deque(), {}, []
        self.server = socket.create_server((self.config.host, 0), backlog=256)
        self.start(self.listen)

    def start(self, work, *given):
        self.threads = [thread for thread in self.threads if thread.is_alive()]
        self.threads.append(threading.Thread(target=work, args=given, daemon=True))
        self.threads[-1].start()

    def address(self):
        return "{}:{}".format(*self.server.getsockname())

    def serve(self, source):
        self.source = source

    def listen(self):
        while not self.closed:
            if select.select([self.server], [], [], 0.05)[0]:
                self.start(self.answer, self.server.accept()[0])

    def answer(self, sock):
        ticket, found = None, queue.SimpleQueue()
        with sock, sock.makefile("rb") as file:
            try:
                while not select.select([sock], [], [], 0.05)[0]:
                    if self.closed:
                        return None
                sock.settimeout(1.0)
                ask = json.loads(file.readline(1 << 20))
                if "promise" in ask:
                    return self.source.fulfilled(ask["promise"])
                if (ask["space"], ask["incarnation"]) != (self.context.namespace.hex(), self.context.incarnation):
                    return sock.sendall(b'{"refused": "namespace or incarnation"}\n')
                keys, until = [bytes.fromhex(key) for key in ask["keys"]], time.monotonic() + ask["seconds"]
                ticket = self.source.take(keys, until, lambda ticket, helds: found.put(helds))
                while found.empty():
                    if self.closed or gone(sock):
                        return None
                    time.sleep(0.005)
                helds = found.get()
                heads = [
                    held and [held.length, held.layout or self.context.layout.text, held.generated] for held in helds
                ]
                sock.sendall(json.dumps({"found": heads}).encode() + b"\n")
                for held in helds:
                    sock.sendall(self.region.slot(held.slot, held.length) if held else b"")
            except (OSError, ValueError, RuntimeError, TypeError, KeyError):
                pass
            finally:
                if ticket is not None:
                    self.source.give_back(ticket)

    def submit(self, batch):
        lengths = {len(batch.keys), len(batch.slots), len(batch.lengths)}
        if self.closed or batch.op is not Op.LOAD or batch.peer is None or len(lengths) > 1:
            raise MisuseError("closed, not a LOAD, no peer, or tuples of unequal length")
        self.calls[batch.id] = {"peer": batch.peer, "end": None, "sock": None}
        self.start(self.pull, batch, self.calls[batch.id])

    def dial(self, peer, seconds):
        host, _, port = peer.address.rpartition(":")
        return socket.create_connection((host.strip("[]"), int(port)), timeout=max(0.001, min(seconds, 2.0)))

    def pull(self, batch, call):
        ends, seconds, reason = [], min(batch.deadline - time.monotonic(), 1e6), ""
        try:
            with self.dial(batch.peer, seconds) as call["sock"], call["sock"].makefile("rb", 0) as file:
                ask = {"space": self.context.namespace.hex(), "incarnation": batch.peer.incarnation}
                ask |= {"keys": [key.hex() for key in batch.keys], "seconds": seconds}
                call["sock"].sendall(json.dumps(ask).encode() + b"\n")
                call["sock"].settimeout(max(0.001, seconds))
                line = b"" if call["end"] is not None or self.closed else file.readline()
                for at, head in enumerate(json.loads(line)["found"]):
                    ends.append(self.take_in(call["sock"], batch, at, *head) if head else (Outcome.MISS, 0, "", 0))
        except (OSError, ValueError, KeyError) as error:
            reason = type(error).__name__
            late = time.monotonic() >= batch.deadline or isinstance(error, TimeoutError)
            end = call["end"] or (Outcome.LATE if late else Outcome.FAILED)
            ends += [(end, 0, "", 0)] * (len(batch.keys) - len(ends))
        outcomes, lengths, layouts, generated = zip(*ends, strict=True) if ends else ((),) * 4
        del self.calls[batch.id]
        self.done.append(Completion(batch.id, outcomes, lengths, layouts, generated, sum(lengths), reason))
        self.wake()

    def take_in(self, sock, batch, at, length, layout, generated):
        if length > batch.lengths[at]:
            fill(sock, memoryview(bytearray(length)))
            return Outcome.FAILED, 0, "", 0
        fill(sock, self.region.slot(batch.slots[at], length))
        return Outcome.DONE, length, "" if layout == self.context.layout.text else layout, generated

    def end(self, call, outcome):
        call["end"] = outcome
        with contextlib.suppress(OSError, AttributeError, KeyError):
            call["sock"].shutdown(socket.SHUT_RDWR)

    def poll(self):
        return [self.done.popleft() for _ in range(len(self.done))]

    def cancel(self, batch_id):
        self.end(self.calls.get(batch_id, {}), Outcome.LATE)

    def connect(self, peer):
        pass

    def forget(self, peer):
        for call in list(self.calls.values()):
            if call["peer"].address == peer.address:
                self.end(call, Outcome.FAILED)

    def fulfil(self, peer):
        self.start(self.tell, peer)

    def tell(self, peer):
        try:
            with self.dial(peer, 1.0) as sock:
                sock.sendall(json.dumps({"promise": peer.promise}).encode() + b"\n")
        except (OSError, ValueError):
            pass

    def close(self):
        self.closed = True
        if self.server is not None:
            for call in list(self.calls.values()):
                self.end(call, Outcome.LATE)
            for thread in self.threads:
                thread.join(2.0)
            self.server.close()
