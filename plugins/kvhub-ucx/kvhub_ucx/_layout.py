"""The structures that are handed to UCP, how its API lays them out, and the check that ours are laid out so.

1.x releases append fields and move none, and field masks keep new ones out of an old library's way, so a structure may
have any of its known sizes.  Another major version may change anything and is refused before a structure is passed.
"""

from __future__ import annotations

import ctypes as c

from kvhub.errors import KvhubError

OLDEST, MAJOR = (1, 13), 1


class Params(c.Structure):
    _fields_ = (
        ("field_mask", c.c_uint64), ("features", c.c_uint64), ("request_size", c.c_size_t),
        ("request_init", c.c_void_p), ("request_cleanup", c.c_void_p), ("tag_sender_mask", c.c_uint64),
        ("mt_workers_shared", c.c_int), ("estimated_num_eps", c.c_size_t), ("estimated_num_ppn", c.c_size_t),
        ("name", c.c_char_p),
    )  # fmt: skip


class WorkerParams(c.Structure):
    _fields_ = (
        ("field_mask", c.c_uint64), ("thread_mode", c.c_int), ("cpu_mask", c.c_uint64 * 16), ("events", c.c_uint),
        ("user_data", c.c_void_p), ("event_fd", c.c_int), ("flags", c.c_uint64), ("name", c.c_char_p),
        ("am_alignment", c.c_size_t), ("client_id", c.c_uint64),
    )  # fmt: skip


ERROR_CALLBACK = c.CFUNCTYPE(None, c.c_void_p, c.c_void_p, c.c_int8)


class ErrorHandler(c.Structure):
    _fields_ = (("callback", ERROR_CALLBACK), ("argument", c.c_void_p))


class SockAddr(c.Structure):
    _fields_ = (("address", c.c_void_p), ("length", c.c_uint))


class EndpointParams(c.Structure):
    _fields_ = (
        ("field_mask", c.c_uint64), ("address", c.c_void_p), ("err_mode", c.c_int), ("err_handler", ErrorHandler),
        ("user_data", c.c_void_p), ("flags", c.c_uint), ("sockaddr", SockAddr), ("conn_request", c.c_void_p),
        ("name", c.c_char_p), ("local_sockaddr", SockAddr),
    )  # fmt: skip


class MapParams(c.Structure):
    _fields_ = (
        ("field_mask", c.c_uint64), ("address", c.c_void_p), ("length", c.c_size_t), ("flags", c.c_uint),
        ("prot", c.c_uint), ("memory_type", c.c_int), ("exported", c.c_void_p),
    )  # fmt: skip


class RequestParam(c.Structure):
    _fields_ = (
        ("op_attr_mask", c.c_uint32), ("flags", c.c_uint32), ("request", c.c_void_p), ("callback", c.c_void_p),
        ("datatype", c.c_uint64), ("user_data", c.c_void_p), ("reply_buffer", c.c_void_p),
        ("memory_type", c.c_int), ("recv_info", c.c_void_p), ("memh", c.c_void_p),
    )  # fmt: skip


class ReceiveInfo(c.Structure):
    _fields_ = (("sender_tag", c.c_uint64), ("length", c.c_size_t))


class LaneEntry(c.Structure):
    _fields_ = (("transport", c.c_char_p), ("device", c.c_char_p))


class EndpointAttr(c.Structure):
    _fields_ = (
        ("field_mask", c.c_uint64), ("name", c.c_char * 32), ("local", c.c_uint64 * 16), ("remote", c.c_uint64 * 16),
        ("entries", c.POINTER(LaneEntry)), ("num_entries", c.c_uint), ("entry_size", c.c_size_t),
        ("user_data", c.c_void_p),
    )  # fmt: skip


STRUCTURES: dict[str, tuple[type[c.Structure], dict[str, str]]] = {
    "ucp_params_t": (Params, {}),
    "ucp_worker_params_t": (WorkerParams, {}),
    "ucp_err_handler_t": (ErrorHandler, {"cb": "callback", "arg": "argument"}),
    "ucs_sock_addr_t": (SockAddr, {"addr": "address", "addrlen": "length"}),
    "ucp_ep_params_t": (EndpointParams, {}),
    "ucp_mem_map_params_t": (MapParams, {"exported_memh_buffer": "exported"}),
    "ucp_request_param_t": (RequestParam, {"cb": "callback"}),
    "ucp_tag_recv_info_t": (ReceiveInfo, {}),
    "ucp_transport_entry_t": (LaneEntry, {"transport_name": "transport", "device_name": "device"}),
    "ucp_ep_attr_t": (
        EndpointAttr,
        {"local_sockaddr": "local", "remote_sockaddr": "remote", "transports": "entries"},
    ),
}
"""API name: (ours, {API's field: ours} where the names differ)."""

LAYOUT: dict[str, tuple[tuple[int, ...], dict[str, int]]] = {
    "ucp_params_t": (
        (80, 88),
        {
            "field_mask": 0, "features": 8, "request_size": 16, "request_init": 24, "request_cleanup": 32,
            "tag_sender_mask": 40, "mt_workers_shared": 48, "estimated_num_eps": 56, "estimated_num_ppn": 64,
            "name": 72,
        },
    ),
    "ucp_worker_params_t": (
        (200,),
        {
            "field_mask": 0, "thread_mode": 8, "cpu_mask": 16, "events": 144, "user_data": 152, "event_fd": 160,
            "flags": 168, "name": 176, "am_alignment": 184, "client_id": 192,
        },
    ),
    "ucp_ep_params_t": (
        (104,),
        {
            "field_mask": 0, "address": 8, "err_mode": 16, "err_handler": 24, "user_data": 40, "flags": 48,
            "sockaddr": 56, "conn_request": 72, "name": 80, "local_sockaddr": 88,
        },
    ),
    "ucp_err_handler_t": ((16,), {"cb": 0, "arg": 8}),
    "ucs_sock_addr_t": ((16,), {"addr": 0, "addrlen": 8}),
    "ucp_mem_map_params_t": (
        (40, 48),
        {
            "field_mask": 0, "address": 8, "length": 16, "flags": 24, "prot": 28, "memory_type": 32,
            "exported_memh_buffer": 40,
        },
    ),
    "ucp_request_param_t": (
        (72,),
        {
            "op_attr_mask": 0, "flags": 4, "request": 8, "cb": 16, "datatype": 24, "user_data": 32,
            "reply_buffer": 40, "memory_type": 48, "recv_info": 56, "memh": 64,
        },
    ),
    "ucp_tag_recv_info_t": ((16,), {"sender_tag": 0, "length": 8}),
    "ucp_transport_entry_t": ((16,), {"transport_name": 0, "device_name": 8}),
    "ucp_transports_t": ((24,), {"entries": 0, "num_entries": 8, "entry_size": 16}),
    "ucp_ep_attr_t": (
        (296, 320, 328),
        {"field_mask": 0, "name": 8, "local_sockaddr": 40, "remote_sockaddr": 168, "transports": 296, "user_data": 320},
    ),
    "ucp_mem_attr_t": ((32,), {"field_mask": 0, "address": 8, "length": 16, "mem_type": 24}),
}  # fmt: skip
"""API name: (bytes in 1.13 and after each growth, {field: offset}), on a 64-bit machine."""

SINCE = {"ucp_ep_attr_t.transports": (1, 14)}
"""Which fields an old library leaves alone: what they would have said must be found out in another way."""


def check_version(version: tuple[int, ...], where: str, remedy: str) -> None:
    """Raises KvhubError for a libucp whose structures are not known to be these."""
    if version[0] != MAJOR or version[:2] < OLDEST:
        raise KvhubError(
            f"UCX: found libucp {'.'.join(map(str, version))} ({where}), but this plugin knows the structures of 1.13 "
            f"and later 1.x only; {remedy}"
        )


def check() -> None:
    """Compare our structures with the table.  Raises KvhubError."""
    for api, (structure, ours) in STRUCTURES.items():
        sizes, offsets = LAYOUT[api]
        if c.sizeof(structure) not in sizes:
            raise _unlike(f"{api} has {c.sizeof(structure)} bytes", " or ".join(map(str, sizes)))
        for field, offset in offsets.items():
            name = ours.get(field, field)
            found = getattr(structure, name).offset if hasattr(structure, name) else c.sizeof(structure)
            # A structure of an earlier size ends before the later fields begin.
            if found != offset and offset < c.sizeof(structure):
                raise _unlike(f"{api}.{field} is at byte {found}", f"{offset}")


def _unlike(ours: str, theirs: str) -> KvhubError:
    return KvhubError(f"UCX: {ours} here, in the UCP API {theirs}; this plugin supports 64-bit Linux only")
