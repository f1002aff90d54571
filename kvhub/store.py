"""`Store`, and `BlockingStore`, the easy way to write one: three methods, everything hard done here."""

from __future__ import annotations

import abc
import errno
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from kvhub import chunkfile
from kvhub.codec import About, CodecError, Codecs, Scratch
from kvhub.errors import Foreign, KvhubError, MisuseError
from kvhub.member import Member
from kvhub.types import KEY_BYTES, Batch, Capabilities, Completion, Key, MemberContext, Op, Outcome, Region
from kvhub.workers import STUCK_SECONDS, End, Workers, within

if TYPE_CHECKING:
    from kvhub.pool.medium import Medium

OPEN_SECONDS = 10.0
CLOSE_SECONDS = 4.5
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_NOTHING = memoryview(bytearray())


class Store(Member):
    """Member + scan.  FIND, LOAD, SAVE and, where claimed, REMOVE come as batches."""

    def scan(self) -> Iterator[tuple[Key, int]]:
        """(key, stored bytes) of every chunk of this hub's namespace, in no order; may block; for operators only.

        Never called while serving.  Works where the capabilities claim `scans`.
        """
        raise MisuseError(f"{self.context.name}: this store does not claim to scan")

    @abc.abstractmethod
    def used_bytes(self) -> int | None:
        """Bytes now kept, as far as known without listing; None where the store cannot tell."""

    @classmethod
    def medium(cls, config: Any) -> Medium:
        """The medium of a member with these options (an instance of `Config`), for `kvhub pool`; may block.

        Raises KvhubError with a full sentence where it cannot be reached, or where the store keeps nothing that
        outlives it.
        """
        raise KvhubError("this store offers no housekeeping: nothing outlives it, or its plugin does not support it")


class Late(Exception):
    """A call was given up because nobody waits for it any more (`BlockingStore.time_left`): no fault of the medium."""


class Seen(int):
    """The size that `read` returns, with what tells that very object from a later one of the same name."""

    identity: object
    """An inode, an ETag: whatever `drop_seen` of the same store understands."""
    checksum: bytes
    """`chunkfile.PayloadChecksum` of every payload byte that was put into the buffer, if it was taken on the way, which
    costs half of what it costs afterwards; else empty."""

    def __new__(cls, size: int, identity: object, checksum: bytes = b"") -> Seen:
        self = super().__new__(cls, size)
        self.identity = identity
        self.checksum = checksum
        return self


class BlockingStore(Store):
    """A store whose author writes `has`, `read` and `write` as plain blocking calls on whole objects.

    An object is 4096 bytes of header followed by the payload (see `kvhub.chunkfile`), under a name that is safe
    everywhere: 64 lower-case hex digits.  Names are unique within `context.namespace` only; keep namespaces apart.

    The methods are called from `workers` threads at once, never twice for one chunk of a batch; batches have no order
    among them.  They may block and may raise anything: ENOSPC and EDQUOT mean FULL, everything else FAILED.
    Verification, codecs, deadlines, cancelling, queueing, layouts and the counters `integrity_errors`, `io_errors`,
    `codec_errors`, `codec_declined`, `foreign_objects` and `conflicts` are done here.
    """

    workers: int = 4
    """Threads, and so the most calls under way; an instance may set its own before `attach`."""
    most_queued: int = 64
    """Batches that may wait, for each of (FIND, LOAD) and (SAVE, REMOVE); beyond it a batch is FULL."""
    persistent: ClassVar[bool] = False
    shared: ClassVar[bool] = False

    def __init__(self, config: Any, context: MemberContext) -> None:
        super().__init__(config, context)
        self._writer = context.incarnation.encode()[:16]
        self._codecs = context.codecs or Codecs()
        self._encoded = Scratch()
        self._workers: Workers | None = None
        self._call = threading.local()
        self._closing = threading.Lock()
        self._closed = False
        self._capabilities = Capabilities(
            persistent=self.persistent,
            shared=self.shared,
            removes=type(self).drop is not BlockingStore.drop,
            scans=type(self).names is not BlockingStore.names,
            codecs=True,
        )

    @abc.abstractmethod
    def has(self, name: str) -> bool:
        """Whether the object is there, as cheaply as the medium can tell; a hint."""

    @abc.abstractmethod
    def read(self, name: str, header: memoryview, payload: memoryview) -> int | None:
        """Fill `header` (4096 bytes), then `payload` (whatever its length, also empty), as far as the object goes.

        Returns the object's whole size in bytes, also when that is more than the buffers take, or None when it is
        absent.  A `Seen` instead of a plain int lets `drop_seen` remove that very object.  Both buffers are valid
        until the return and not after it.
        """

    @abc.abstractmethod
    def write(self, name: str, header: bytes, payload: memoryview) -> bool:
        """Make the object visible whole or not at all, over whatever has its name.

        True when written, False when another writer was first.  Called only when no good object was seen there.
        """

    def write_sealed(
        self, name: str, seal: Callable[[bytes], bytes], payload: memoryview, *, replace: bool = False
    ) -> bool:
        """`write` or `replace` with the header that `seal` makes of `chunkfile.PayloadChecksum` of the payload.

        Define it where a payload can be hashed while it is written, and the header be put before it afterwards.
        """
        put = self.replace if replace else self.write
        return put(name, seal(chunkfile.payload_checksum(payload)), payload)

    def replace(self, name: str, header: bytes, payload: memoryview) -> bool:
        """Like `write`, for a save that replaces what is there; readers see the old object or the new one.

        Define it where `write` refuses to overwrite.
        """
        return self.write(name, header, payload)

    def drop(self, name: str) -> None:
        """Remove the object if it is there.  Defining it claims `removes`."""
        raise NotImplementedError

    def drop_seen(self, name: str, seen: int, header: bytes) -> None:
        """Remove the object that `read` returned as `seen`, with its first bytes in `header`, and no newer one.

        Without own means of telling, this looks again and drops what still is the same; a newer object that comes
        in between is lost, which costs a miss.  Stores that do not remove leave everything as it is.
        """
        if self._capabilities.removes:
            again = memoryview(bytearray(chunkfile.HEADER_BYTES))
            if self.read(name, again, _NOTHING) == seen and again == header:
                self.drop(name)

    def used(self, name: str, seen: int) -> None:
        """Told after a load from the object or a save that kept it, with what `read` returned.

        For stores that note when a chunk was last of use.  Never blocks and never raises: note it and do it elsewhere.
        """

    def make_room(self, size: int) -> bool:
        """Told by a save that the medium has no room for `size` bytes; whether to try that once more.

        For stores whose rules say what may go.  Called by several workers at once; must not raise.
        """
        return False

    def names(self) -> Iterator[tuple[str, int]]:
        """(name, whole size) of every object of the namespace; may block.  Defining it claims `scans`."""
        raise NotImplementedError

    def open(self) -> None:
        """Connect, and probe the medium with a real write, read and delete; raise `KvhubError` with a full sentence.

        Called once by `attach`, before any worker runs, and given up after 10 seconds.
        """

    def shut(self) -> None:
        """Let go of what `open` took.  Called once; workers may still hang in calls of theirs."""

    def time_left(self) -> float:
        """Seconds until nobody waits any more for what the calling worker is at; `inf` without a deadline.

        For media that can end a call early: by raising `Late`.  Nothing needs to be done with it, though.
        """
        return float(getattr(self._call, "deadline", float("inf"))) - time.monotonic()

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    def attach(self, region: Region, wake: Callable[[], None]) -> None:
        name = self.context.name
        if self._workers is not None or self._closed:
            raise MisuseError(f"{name}: attach is called once, on a member that is not closed")
        ended, error = within(OPEN_SECONDS, self.open, f"kvhub-{name}-open")
        if isinstance(error, KvhubError):
            raise error
        if error is not None:
            raise KvhubError(f"{name}: the store cannot start: {type(error).__name__}: {error}") from error
        if not ended:
            raise KvhubError(
                f"{name}: the store did not answer within {OPEN_SECONDS:.0f} s when probed with a write and a read; "
                "check that its server is up and reachable, then start again"
            )
        self._region = region
        self._workers = Workers(
            name, self.workers, self._do, wake, most_queued=self.most_queued, report=self.context.report
        )

    def submit(self, batch: Batch) -> None:
        if self._workers is None:
            raise MisuseError(f"{self.context.name}: submit to a member that is not attached")
        self._hold_to_contract(batch)
        self._workers.submit(batch)

    def poll(self) -> list[Completion]:
        return self._workers.poll() if self._workers is not None else []

    def cancel(self, batch_id: int) -> None:
        if self._workers is not None:
            self._workers.cancel(batch_id)

    def healthy(self) -> str:
        stuck = self._workers.stuck() if self._workers is not None else 0
        return f"{stuck} calls have not returned for more than {STUCK_SECONDS:.0f} s" * (stuck > 0)

    def close(self) -> None:
        with self._closing:
            if self._closed:
                return
            self._closed = True
            until = time.monotonic() + CLOSE_SECONDS
            if self._workers is not None:
                self._workers.close(CLOSE_SECONDS - 1.0)
                _, error = within(until - time.monotonic(), self.shut, f"kvhub-{self.context.name}-shut")
                if error is not None:
                    self.context.report("io_errors", 1)

    def scan(self) -> Iterator[tuple[Key, int]]:
        if not self._capabilities.scans:
            yield from super().scan()
        for name, size in self.names():
            yield bytes.fromhex(name), max(0, size - chunkfile.HEADER_BYTES)

    def used_bytes(self) -> int | None:
        return None

    def _hold_to_contract(self, batch: Batch) -> None:
        name, count = self.context.name, len(batch.keys)
        if batch.op is Op.REMOVE and not self._capabilities.removes:
            raise MisuseError(
                f"{name}: REMOVE is not among this store's capabilities; ask `capabilities.removes` first"
            )
        allowed = (count,) if batch.op in (Op.LOAD, Op.SAVE) else (0, count)
        for field, values in (("slots", batch.slots), ("lengths", batch.lengths)):
            if len(values) not in allowed:
                raise MisuseError(f"{name}: {batch.op.name} of {count} keys came with {len(values)} {field}")
        for field, optional in (("layouts", batch.layouts), ("generated", batch.generated), ("tenants", batch.tenants)):
            if optional is not None and len(optional) != count:
                raise MisuseError(f"{name}: {batch.op.name} of {count} keys came with {len(optional)} {field}")
        if any(len(key) != KEY_BYTES for key in batch.keys):
            raise MisuseError(f"{name}: a key has {KEY_BYTES} bytes")
        region = self._region
        if batch.slots and not all(0 <= slot < region.slots for slot in batch.slots):
            raise MisuseError(f"{name}: slots run from 0 to {region.slots - 1}, found {batch.slots}")
        if batch.lengths and not all(0 <= length <= region.slot_bytes for length in batch.lengths):
            raise MisuseError(f"{name}: lengths run from 0 to {region.slot_bytes} bytes, found {batch.lengths}")

    def _do(self, batch: Batch, index: int, again: bool = True) -> End:
        key = batch.keys[index]
        name = key.hex()
        self._call.deadline = batch.deadline
        try:
            if batch.op is Op.LOAD:
                return self._load(name, key, self._region.slot(batch.slots[index], batch.lengths[index]))
            if batch.op is Op.SAVE:
                return self._save(name, batch, index)
            if batch.op is Op.FIND:
                return End(Outcome.DONE if self.has(name) else Outcome.MISS)
            self.drop(name)
            return End(Outcome.DONE)
        except Late:
            return End(Outcome.LATE, "deadline")
        except BaseException as error:  # a worker has nobody to hand even SystemExit to, and its batch must complete
            code = error.errno if isinstance(error, OSError) else None
            if code in _NO_ROOM:
                size = batch.lengths[index] + chunkfile.HEADER_BYTES if batch.op is Op.SAVE and again else 0
                if size and self.time_left() > 0 and self.make_room(size):
                    return self._do(batch, index, again=False)
                return End(Outcome.FULL, errno.errorcode[code])
            self.context.report("io_errors", 1)
            return End(Outcome.FAILED, errno.errorcode.get(code or 0, type(error).__name__))

    def _load(self, name: str, key: Key, room: memoryview) -> End:
        head = memoryview(bytearray(chunkfile.HEADER_BYTES))
        # Where chunks are expected as they are, they are read right into the slot; an encoded one is then read again.
        target = self._encoded.take(room.nbytes) if self._codecs.own else room
        total = self.read(name, head, target)
        if total is not None and target is room and head[chunkfile.CODEC_AT] in self._codecs.encoded:
            target = self._encoded.take(room.nbytes)
            total = self.read(name, head, target)
        if total is None:
            return End(Outcome.MISS)
        moved = max(0, min(total - chunkfile.HEADER_BYTES, target.nbytes))
        try:
            header = self._verified(head, key, total, room.nbytes)
            stored = target[: header.stored_bytes]
            chunkfile.check_payload(header, stored, total.checksum if isinstance(total, Seen) else b"")
            if target is not room:
                about = About(
                    key, header.namespace, header.layout, header.payload_bytes, header.generated, header.tenant
                )
                self._codecs.decode(header.codecs, stored, room[: header.payload_bytes], about, header.between)
        except chunkfile.Foreign as why:
            self.context.report("foreign_objects", 1)
            return End(Outcome.MISS, why.reason, moved=moved)
        except chunkfile.Damaged as why:
            if why.reason == "oversize":  # a good chunk of a hub with larger slots: not ours to remove
                return End(Outcome.MISS, why.reason, moved=moved)
            self.context.report("integrity_errors", 1)
            self._discard(name, total, head)
            return End(Outcome.CORRUPT, why.reason, moved=moved)
        layout = "" if header.layout == self.context.layout.text else header.layout
        self.used(name, total)
        return End(Outcome.DONE, "", header.payload_bytes, layout, header.generated, moved)

    def _save(self, name: str, batch: Batch, index: int) -> End:
        payload = self._region.slot(batch.slots[index], batch.lengths[index]).toreadonly()
        layout = (batch.layouts[index] if batch.layouts else "") or self.context.layout.text
        if self.has(name) and self._stays(name, batch.keys[index], payload, layout, batch.replace):
            return End(Outcome.KEPT)
        generated = batch.generated[index] if batch.generated else 0
        tenant = batch.tenants[index] if batch.tenants else b""
        about = About(batch.keys[index], self.context.namespace, layout, payload.nbytes, generated, tenant)
        try:
            encoded = self._codecs.encode(payload, about)
        except Foreign as why:
            self.context.report("codec_declined", 1)
            return End(Outcome.MISS, why.reason)
        except CodecError:
            self.context.report("codec_errors", 1)
            return End(Outcome.FAILED, "codec")

        def seal(checksum: bytes) -> bytes:
            return chunkfile.pack(
                about.key, about.namespace, encoded.stored, layout=layout, generated=generated, writer=self._writer,
                codecs=encoded.codecs, between=encoded.between, payload_bytes=payload.nbytes, checksum=checksum,
                tenant=tenant,
            )  # fmt: skip

        written = self.write_sealed(name, seal, encoded.stored, replace=batch.replace)
        return End(Outcome.DONE, moved=encoded.stored.nbytes) if written else End(Outcome.KEPT)

    def _stays(self, name: str, key: Key, payload: memoryview, layout: str, replace: bool) -> bool:
        """Whether the object that is there stays as it is; a damaged one is removed to make way.

        Only its header is read.  Of its payload that tells the length; a load finds the rest.
        """
        head = memoryview(bytearray(chunkfile.HEADER_BYTES))
        total = self.read(name, head, _NOTHING)
        if total is None:
            return False
        try:
            header = self._verified(head, key, total, sys.maxsize)
        except chunkfile.Foreign:
            self.context.report("foreign_objects", 1)
            return True
        except chunkfile.Damaged:
            self.context.report("integrity_errors", 1)
            self._discard(name, total, head)
            return False
        if replace:
            return False
        # Of what a codec made the payload's checksum is not known, and encryption makes other bytes each time.
        comparable = not header.codecs and header.stored_bytes == payload.nbytes and header.layout == layout
        if comparable and header.checksum != chunkfile.payload_checksum(payload):
            self.context.report("conflicts", 1)
        self.used(name, total)
        return True

    def _verified(self, head: memoryview, key: Key, total: int, room: int) -> chunkfile.Header:
        header = chunkfile.parse(head[: min(total, chunkfile.HEADER_BYTES)])
        chunkfile.check(header, key, self.context.namespace, total, room, self._codecs.readable)
        self._codecs.hold(header.codecs)
        return header

    def _discard(self, name: str, seen: int, head: memoryview) -> None:
        try:
            self.drop_seen(name, seen, bytes(head))
        except Exception:  # it stays a miss for every reader; removing it was only a courtesy
            self.context.report("io_errors", 1)
