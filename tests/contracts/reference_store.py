"""A correct store in as few lines as it takes: the contract must pass it, and `mutants` breaks it on purpose."""

import queue
import threading
import time
from collections import deque, namedtuple

import attrs

from kvhub import chunkfile
from kvhub.errors import MisuseError
from kvhub.store import Store
from kvhub.types import Capabilities, Completion, Op, Outcome

LIMIT = 32000


ReferenceConfig = attrs.make_class("ReferenceConfig", {"objects": attrs.field(type=dict)}, frozen=True)
End = namedtuple("End", "outcome length layout generated moved reason", defaults=(0, "", 0, 0, ""))


class ReferenceStore(Store):
    """Objects in a dict that all members of one test share; a worker thread for each member."""

    Config = ReferenceConfig
    capabilities = Capabilities(persistent=True, shared=True, removes=True, scans=True, max_chunk_bytes=LIMIT)
    closed, thread = False, None

    def attach(self, region, wake):
        self.objects, self.space = self.config.objects, self.context.namespace
        self.queue, self.done, self.cancelled = queue.SimpleQueue(), deque(), set()
        self.region, self.wake = region, wake
        self.thread = threading.Thread(target=self.work, daemon=True)
        self.thread.start()

    def submit(self, batch):
        count, moves = len(batch.keys), batch.op in (Op.LOAD, Op.SAVE)
        if self.closed or (moves and not count == len(batch.slots) == len(batch.lengths)):
            raise MisuseError("closed, or keys, slots and lengths differ")
        if any(count != len(extra) for extra in (batch.layouts, batch.generated) if extra is not None):
            raise MisuseError("layouts or generated differ from keys")
        self.queue.put(batch)

    def work(self):
        while (batch := self.queue.get()) is not None:
            ends = [self.do(batch, at, (self.space, key)) for at, key in enumerate(batch.keys)]
            outcomes, *loaded, moved, reasons = zip(*ends, strict=True) if ends else ((),) * 6
            loaded = loaded if batch.op is Op.LOAD else [(), None, None]
            self.done.append(Completion(batch.id, outcomes, *loaded, sum(moved), max(reasons, default="")))
            self.wake()

    def do(self, batch, at, name):
        if self.closed or batch.id in self.cancelled or time.monotonic() > batch.deadline:
            return End(Outcome.LATE)
        if batch.op is Op.FIND:
            return End(Outcome.DONE if name in self.objects else Outcome.MISS)
        if batch.op is Op.REMOVE:
            self.objects.pop(name, None)
            return End(Outcome.DONE)
        slot = self.region.slot(batch.slots[at], batch.lengths[at])
        return self.save(batch, at, name, slot) if batch.op is Op.SAVE else self.load(name, slot)

    def save(self, batch, at, name, slot):
        if slot.nbytes > LIMIT:
            return End(Outcome.FULL, reason="size")
        old = self.objects.get(name)
        if old is not None and not (batch.replace and old[8:10] == b"\1\0"):  # never over another version's
            return End(Outcome.KEPT)
        layout = (batch.layouts[at] if batch.layouts else "") or self.context.layout.text
        made = batch.generated[at] if batch.generated else 0
        header = chunkfile.pack(name[1], self.space, slot, layout=layout, generated=made)
        self.objects[name] = header + bytes(slot)
        return End(Outcome.DONE, moved=slot.nbytes)

    def load(self, name, slot):
        data = self.objects.get(name)
        if data is None:
            return End(Outcome.MISS)
        try:
            header, payload = chunkfile.parse(data), memoryview(data)[chunkfile.HEADER_BYTES :]
            chunkfile.check(header, name[1], self.space, len(data), len(data))
            chunkfile.check_payload(header, payload)
        except chunkfile.Foreign:
            return End(Outcome.MISS)
        except chunkfile.Damaged as why:
            self.objects.pop(name)
            return End(Outcome.CORRUPT, reason=why.reason)
        if payload.nbytes > slot.nbytes:
            return End(Outcome.MISS, reason="room")
        slot[: payload.nbytes] = payload
        layout = "" if header.layout == self.context.layout.text else header.layout
        return End(Outcome.DONE, payload.nbytes, layout, header.generated, payload.nbytes)

    def poll(self):
        return [self.done.popleft() for _ in range(len(self.done))]

    def cancel(self, batch_id):
        self.cancelled.add(batch_id)

    def scan(self):
        return iter([(key, len(data)) for (space, key), data in self.objects.items() if space == self.space])

    def used_bytes(self):
        return sum(len(data) for data in self.objects.values())

    def close(self):
        self.closed = True
        if self.thread is not None:
            self.queue.put(None)
            self.thread.join()
