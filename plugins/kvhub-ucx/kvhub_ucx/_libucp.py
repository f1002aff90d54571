"""The one file that knows libucp's calls: checks the library and wraps the few that the wire needs, through ctypes.

Structures are those of the UCP API, checked against `_layout` before any is passed.  Contexts and workers are made by
the provider's binding where it has one, else here; everything after that works on their handles.
Calls that may take long release the GIL (CDLL), calls of a few microseconds keep it (PyDLL), because taking the GIL
back from a busy engine thread can cost 5 ms.

Nothing here is thread-safe: one thread owns a context and all its workers.
"""

from __future__ import annotations

import ctypes as c
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

from kvhub.errors import KvhubError
from kvhub_ucx import _layout
from kvhub_ucx._bindings import Maker, Owner
from kvhub_ucx._lanes import printed
from kvhub_ucx._layout import (
    ERROR_CALLBACK,
    EndpointAttr,
    EndpointParams,
    ErrorHandler,
    LaneEntry,
    MapParams,
    Params,
    ReceiveInfo,
    RequestParam,
    WorkerParams,
)
from kvhub_ucx._providers import INSTALL, SONAME, Found, find

IN_PROGRESS, BUSY, CANCELED = 1, -15, -16
_TAG, _RMA, _WAKEUP = 1, 2, 16
_ERR_MODE_PEER, _FORCE, _IOV = 1, 1, 2
_ATTR_DATATYPE, _ATTR_FLAGS, _NEVER_AT_ONCE = 8, 16, 1 << 16
_ALL_BITS = (1 << 64) - 1
_VERSION_BITS, _LEAST_ADDRESS, _ADDRESS_PADDING = 15, 16, 64 * 1024
_MAP_WITH_TYPE = 1 | 2 | 16
MEMORY_TYPES = {"host": 0, "cuda": 1, "rocm": 3}
"""ucs_memory_type_t."""

_P, _PP = c.c_void_p, c.POINTER(c.c_void_p)
# name: (result, arguments, whether the call may take long)
_CALLS: dict[str, tuple[Any, tuple[Any, ...], bool]] = {
    "ucp_config_read": (c.c_int8, (c.c_char_p, c.c_char_p, _PP), False),
    "ucp_config_modify": (c.c_int8, (_P, c.c_char_p, c.c_char_p), False),
    "ucp_config_release": (None, (_P,), False),
    "ucp_init_version": (c.c_int8, (c.c_uint, c.c_uint, _P, _P, _PP), True),
    "ucp_cleanup": (None, (_P,), True),
    "ucp_mem_map": (c.c_int8, (_P, _P, _PP), True),
    "ucp_mem_unmap": (c.c_int8, (_P, _P), True),
    "ucp_worker_create": (c.c_int8, (_P, _P, _PP), True),
    "ucp_worker_destroy": (None, (_P,), True),
    "ucp_worker_get_address": (c.c_int8, (_P, _PP, c.POINTER(c.c_size_t)), False),
    "ucp_worker_release_address": (None, (_P, _P), False),
    "ucp_worker_get_efd": (c.c_int8, (_P, c.POINTER(c.c_int)), False),
    "ucp_worker_arm": (c.c_int8, (_P,), False),
    "ucp_ep_create": (c.c_int8, (_P, _P, _PP), True),
    "ucp_ep_close_nbx": (_P, (_P, _P), True),
    "ucp_ep_query": (c.c_int8, (_P, _P), False),
    "ucp_tag_send_nbx": (_P, (_P, _P, c.c_size_t, c.c_uint64, _P), True),
    "ucp_tag_recv_nbx": (_P, (_P, _P, c.c_size_t, c.c_uint64, c.c_uint64, _P), False),
    "ucp_tag_recv_request_test": (c.c_int8, (_P, _P), False),
    "ucp_tag_probe_nb": (_P, (_P, c.c_uint64, c.c_uint64, c.c_int, _P), False),
    "ucp_rkey_pack": (c.c_int8, (_P, _P, _PP, c.POINTER(c.c_size_t)), False),
    "ucp_rkey_buffer_release": (None, (_P,), False),
    "ucp_ep_rkey_unpack": (c.c_int8, (_P, _P, _PP), False),
    "ucp_rkey_destroy": (None, (_P,), False),
    "ucp_put_nbx": (_P, (_P, _P, c.c_size_t, c.c_uint64, _P, _P), True),
    "ucp_ep_flush_nbx": (_P, (_P, _P), False),
    "ucp_request_check_status": (c.c_int8, (_P,), False),
    "ucp_request_cancel": (None, (_P, _P), False),
    "ucp_request_free": (None, (_P,), False),
}


class UcxError(KvhubError):
    """libucp said no; `status` is its negative code."""

    def __init__(self, status: int, call: str, text: str) -> None:
        self.status = status
        super().__init__(f"UCX: {call} failed: {text} ({status})")


class Library:
    """libucp, loaded and bound; one per process, see `load`."""

    def __init__(self, found: Found) -> None:
        _layout.check()
        self.provider, self.passed_over = found.provider, found.passed_over
        quick, long = c.PyDLL(SONAME, mode=os.RTLD_LOCAL), c.CDLL(SONAME, mode=os.RTLD_LOCAL)
        numbers = [c.c_uint() for _ in range(3)]
        quick.ucp_get_version(*(c.byref(number) for number in numbers))
        self.version = tuple(number.value for number in numbers)
        _layout.check_version(self.version, found.provider, INSTALL)
        self.maker: Maker = found.binding or _Plain(self)
        for name, (result, arguments, takes_long) in _CALLS.items():
            function = getattr(long if takes_long else quick, name)
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)
        self._progress_at = c.cast(long.ucp_worker_progress, c.c_void_p).value
        self._lfind = c.CDLL(None).lfind
        self._lfind.restype, self._lfind.argtypes = c.c_void_p, (_P, _P, c.POINTER(c.c_size_t), c.c_size_t, _P)
        self._status_text = c.PyDLL("libucs.so.0", mode=os.RTLD_LOCAL).ucs_status_string
        self._status_text.restype, self._status_text.argtypes = c.c_char_p, (c.c_int8,)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    @property
    def version_text(self) -> str:
        return ".".join(map(str, self.version))

    def text(self, status: int) -> str:
        """UCX's own words for a status."""
        return str(self._status_text(status).decode())

    def check(self, status: int, call: str) -> None:
        if status != 0:
            raise UcxError(status, call, self.text(status))

    def progress(self, worker: int | None, most: int) -> int:
        """Call ucp_worker_progress until it has nothing to do, at most `most` times; how often it had.

        The loop runs in C with the GIL released, or an engine thread at work in Python would cost up to 5 ms for every
        64 KiB that arrive.  libc has that loop: lfind calls compar(worker, element) for one element after the other
        until it returns 0, and tells at which element that was; elements are never looked at, so they may be numbers.
        """
        first = 1 << 20
        found = self._lfind(worker, first, c.byref(c.c_size_t(most)), 1, self._progress_at)
        return most if found is None else int(found) - first

    def request(self, pointer: int | None, call: str) -> int:
        """A request handle, or 0 when the operation has ended at once.  Raises UcxError."""
        if pointer is None:
            return 0
        if pointer > _ALL_BITS - 128:
            status = pointer - (1 << 64)
            raise UcxError(status, call, self.text(status))
        return pointer


_lock = threading.Lock()
_loaded: list[Library] = []


def load(provider: str = "auto") -> Library:
    """libucp of this process; loads it on the first call.  Raises KvhubError that says how to install it."""
    with _lock:
        if not _loaded:
            _loaded.append(Library(find(provider)))
        return _loaded[0]


class _Plain:
    """Makes contexts and workers by UCP's own calls, where no binding does."""

    drains = False

    def __init__(self, library: Library) -> None:
        self._library = library

    def context(self, settings: Mapping[str, str]) -> Owner:
        library, config, handle = self._library, c.c_void_p(), c.c_void_p()
        library.check(library.ucp_config_read(None, None, c.byref(config)), "ucp_config_read")
        try:
            for name, value in settings.items():
                status = library.ucp_config_modify(config, name.encode(), value.encode())
                library.check(status, f"setting {name}={value}")
            params = Params(field_mask=1, features=_TAG | _RMA | _WAKEUP)
            status = library.ucp_init_version(*_layout.OLDEST, c.byref(params), config, c.byref(handle))
            library.check(status, "ucp_init")
        finally:
            library.ucp_config_release(config)
        return _Own(handle.value or 0, library.ucp_cleanup)

    def worker(self, context: Owner) -> Owner:
        library, handle = self._library, c.c_void_p()
        params = WorkerParams(field_mask=1, thread_mode=0)
        status = library.ucp_worker_create(context.handle, c.byref(params), c.byref(handle))
        library.check(status, "ucp_worker_create")
        return _Own(handle.value or 0, library.ucp_worker_destroy)


class _Own:
    def __init__(self, handle: int, destroy: Callable[[int], None]) -> None:
        self.handle, self._destroy = handle, destroy

    def close(self) -> None:
        self._destroy(self.handle)


class Context:
    """A UCP context with the tag, RMA and wake-up features, made with `settings` (names without UCX_)."""

    def __init__(self, library: Library, settings: Mapping[str, str]) -> None:
        self.library = library
        self.owner: Owner | None = library.maker.context(settings)
        self.handle: int | None = self.owner.handle
        self._mapped: list[int | None] = []

    def register(self, address: int, length: int, memory: str = "host") -> None:
        """Make memory known to the devices once, so that no transfer registers it again.

        `memory` is `host`, or a device's as in `cuda:0`, for which libucp must have been built with its transports.
        """
        kind = memory.partition(":")[0]
        if kind not in MEMORY_TYPES:
            raise KvhubError(f"UCX: no memory of kind {memory!r} is known; known are {', '.join(MEMORY_TYPES)}")
        params = MapParams(field_mask=_MAP_WITH_TYPE, address=address, length=length, memory_type=MEMORY_TYPES[kind])
        handle = c.c_void_p()
        self.library.check(self.library.ucp_mem_map(self.handle, c.byref(params), c.byref(handle)), "ucp_mem_map")
        self._mapped.append(handle.value)

    def ticket(self) -> bytes:
        """The packed remote key of what was registered first: what a peer needs to put into it."""
        pointer, length = c.c_void_p(), c.c_size_t()
        status = self.library.ucp_rkey_pack(self.handle, self._mapped[0], c.byref(pointer), c.byref(length))
        self.library.check(status, "ucp_rkey_pack")
        try:
            return c.string_at(pointer.value or 0, length.value)
        finally:
            self.library.ucp_rkey_buffer_release(pointer)

    def close(self) -> None:
        """All workers must be destroyed before."""
        while self._mapped:
            self.library.ucp_mem_unmap(self.handle, self._mapped.pop())
        owner, self.owner, self.handle = self.owner, None, None
        if owner is not None:
            owner.close()


class Worker:
    """One worker with at most one endpoint: what one link owns, so that destroying it fences that link alone."""

    def __init__(self, context: Context) -> None:
        self.library = library = context.library
        if context.owner is None:
            raise KvhubError("UCX: a worker cannot be made of a closed context")
        efd = c.c_int()
        self._owner: Owner | None = library.maker.worker(context.owner)
        self.handle: int | None = self._owner.handle
        library.check(library.ucp_worker_get_efd(self.handle, c.byref(efd)), "ucp_worker_get_efd")
        self.efd = efd.value
        self.endpoint: int | None = None
        self.failed = 0
        """Status with which the error handler was called; 0 while the endpoint is well."""
        self._rkey: int | None = None
        self._callback = ERROR_CALLBACK(self._on_error)
        self._out = RequestParam(op_attr_mask=_ATTR_DATATYPE, datatype=_IOV)
        self._out_at = c.addressof(self._out)
        self._in = RequestParam(op_attr_mask=_ATTR_DATATYPE | _NEVER_AT_ONCE, datatype=_IOV)
        self._in_at = c.addressof(self._in)
        self._plain = RequestParam(op_attr_mask=0)
        self._plain_at = c.addressof(self._plain)
        self._info = ReceiveInfo()
        self._info_at = c.addressof(self._info)

    def _on_error(self, _argument: object, _endpoint: object, status: int) -> None:
        self.failed = status

    def address(self) -> bytes:
        """What the peer needs to reach this worker."""
        pointer, length = c.c_void_p(), c.c_size_t()
        status = self.library.ucp_worker_get_address(self.handle, c.byref(pointer), c.byref(length))
        self.library.check(status, "ucp_worker_get_address")
        try:
            return c.string_at(pointer.value or 0, length.value)
        finally:
            self.library.ucp_worker_release_address(self.handle, pointer)

    def connect(self, address: bytes) -> None:
        """Make the endpoint, with peer error handling, which both sides must have alike."""
        self._check_address(address)
        # UCX looks for the end in the address itself: one that was cut off ends in the padding, not in foreign memory.
        buffer, handle = c.create_string_buffer(address, len(address) + _ADDRESS_PADDING), c.c_void_p()
        params = EndpointParams(
            field_mask=7, address=c.addressof(buffer), err_mode=_ERR_MODE_PEER,
            err_handler=ErrorHandler(self._callback, None),
        )  # fmt: skip
        self.library.check(self.library.ucp_ep_create(self.handle, c.byref(params), c.byref(handle)), "ucp_ep_create")
        self.endpoint = handle.value

    def _check_address(self, address: bytes) -> None:
        """Refuse what UCX would answer with an assertion, which ends the process.  Raises KvhubError."""
        version = self.address()[0] & _VERSION_BITS
        if len(address) < _LEAST_ADDRESS or address[0] & _VERSION_BITS != version:
            raise KvhubError(
                f"UCX: an address of {len(address)} bytes that begins with {address[:1].hex() or 'nothing'} is none of "
                f"format {version}, which this libucp speaks"
            )

    def lanes(self) -> tuple[str, ...]:
        """`transport/device` of every lane of the endpoint, once it is connected."""
        if self.library.version[:2] < _layout.SINCE["ucp_ep_attr_t.transports"]:
            return printed(SONAME, self.endpoint)
        attr = EndpointAttr(field_mask=8, num_entries=16, entry_size=c.sizeof(LaneEntry))
        entries = (LaneEntry * 16)()
        attr.entries = c.cast(entries, c.POINTER(LaneEntry))
        if self.library.ucp_ep_query(self.endpoint, c.byref(attr)) != 0:
            return ()
        found = [f"{e.transport.decode()}/{e.device.decode()}" for e in entries[: attr.num_entries] if e.transport]
        return tuple(dict.fromkeys(found))

    def progress(self, most: int = 64) -> int:
        """Move things along; 0 when there was nothing to do.  Releases the GIL, see `Library.progress`."""
        return self.library.progress(self.handle, most)

    def arm(self) -> bool:
        """Whether `efd` will become readable at the next event; False: there are events now, progress first."""
        return bool(self.library.ucp_worker_arm(self.handle) == 0)

    def send(self, tag: int, iov: int, entries: int) -> int:
        """Send the pieces that the array of (address, length) at `iov` lists, as one message.

        Returns a request, 0 if the message is on its way already.  `iov` and the pieces are lent until the end.
        """
        pointer = self.library.ucp_tag_send_nbx(self.endpoint, iov, entries, tag, self._out_at)
        return self.library.request(pointer, "ucp_tag_send")

    def receive(self, tag: int, iov: int, entries: int) -> int:
        """Post a receive into pieces; lent likewise.  Always returns a request, so that its length can be asked."""
        pointer = self.library.ucp_tag_recv_nbx(self.handle, iov, entries, tag, _ALL_BITS, self._in_at)
        return self.library.request(pointer, "ucp_tag_recv")

    def use_ticket(self, ticket: bytes) -> None:
        """Unpack the peer's remote key: from now on `put` goes into what it registered."""
        buffer, rkey = c.create_string_buffer(ticket, len(ticket)), c.c_void_p()
        status = self.library.ucp_ep_rkey_unpack(self.endpoint, buffer, c.byref(rkey))
        self.library.check(status, "ucp_ep_rkey_unpack")
        self._rkey = rkey.value

    def drop_ticket(self) -> None:
        """Let go of the remote key; every put must have ended, since each keeps a pointer to it."""
        rkey, self._rkey = self._rkey, None
        if rkey is not None:
            self.library.ucp_rkey_destroy(rkey)

    def put(self, address: int, length: int, remote: int) -> int:
        """Write into the peer's memory.  Its end says only that `address` may be used again; see `flush`."""
        pointer = self.library.ucp_put_nbx(self.endpoint, address, length, remote, self._rkey, self._plain_at)
        return self.library.request(pointer, "ucp_put")

    def flush(self) -> int:
        """Ends when all puts so far are in the peer's memory."""
        return self.library.request(self.library.ucp_ep_flush_nbx(self.endpoint, self._plain_at), "ucp_ep_flush")

    def status(self, request: int) -> int:
        """IN_PROGRESS, 0, or a negative status."""
        return int(self.library.ucp_request_check_status(request))

    def received(self, request: int) -> tuple[int, int]:
        """(status, bytes) of a receive; bytes mean something when the status is 0."""
        status = self.library.ucp_tag_recv_request_test(request, self._info_at)
        return int(status), int(self._info.length)

    def cancel(self, request: int) -> None:
        """Withdraw a receive that no message has met; it then ends with CANCELED."""
        self.library.ucp_request_cancel(self.handle, request)

    def free(self, request: int) -> None:
        self.library.ucp_request_free(request)

    def force_close(self) -> int:
        """Cut the endpoint off without asking the peer.  Returns a request, 0 if that is done or there is none."""
        endpoint, self.endpoint = self.endpoint, None
        if endpoint is None:
            return 0
        param = RequestParam(op_attr_mask=_ATTR_FLAGS, flags=_FORCE)
        return self.library.request(self.library.ucp_ep_close_nbx(endpoint, c.byref(param)), "ucp_ep_close")

    def destroy(self) -> None:
        """After this no message of the peer can reach memory any more, whatever state its requests were in."""
        owner, self._owner = self._owner, None
        if owner is None:
            return
        if self.library.maker.drains:
            # It would receive what came unasked and progress until that is complete: for ever, when a peer stopped half
            # way.  What is taken out of UCX's queue it does not find; that memory goes with the worker.
            while self.library.ucp_tag_probe_nb(self.handle, 0, 0, 1, self._info_at):
                pass
        self.handle = None
        owner.close()
