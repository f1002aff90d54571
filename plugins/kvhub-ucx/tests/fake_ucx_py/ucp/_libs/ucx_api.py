"""The stand-in's classes; see the package's docstring.  Structures are written down anew here, not taken from kvhub."""

import ctypes as c
import enum
import functools
import weakref

_ucp = c.CDLL("libucp.so.0")
_P = c.c_void_p
for _name in ("ucp_tag_probe_nb", "ucp_tag_msg_recv_nbx"):
    getattr(_ucp, _name).restype = _P
_ucp.ucp_tag_probe_nb.argtypes = (_P, c.c_uint64, c.c_uint64, c.c_int, _P)
_ucp.ucp_tag_msg_recv_nbx.argtypes = (_P, _P, c.c_size_t, _P, _P)
_ucp.ucp_request_check_status.restype = c.c_int8
_IN_PROGRESS, _MULTI = 1, 2


class Feature(enum.Enum):
    TAG, RMA, AMO32, AMO64, WAKEUP, STREAM, AM = (1 << bit for bit in range(7))


class UCXError(Exception):
    pass


class UCXConfigError(UCXError):
    pass


class _Request(c.Structure):
    """What ucx-py keeps in front of each request of UCX."""

    _fields_ = (("finished", c.c_bool), ("uid", c.c_uint), ("info", _P))


_RESET = c.CFUNCTYPE(None, _P)
_reset = _RESET(lambda request: c.memset(request, 0, c.sizeof(_Request)) and None)


class _Params(c.Structure):
    _fields_ = (
        ("field_mask", c.c_uint64),
        ("features", c.c_uint64),
        ("request_size", c.c_size_t),
        ("request_init", _RESET),
        ("rest", c.c_uint64 * 8),
    )


class _WorkerParams(c.Structure):
    _fields_ = (("field_mask", c.c_uint64), ("thread_mode", c.c_int), ("rest", c.c_uint64 * 24))


def _check(status):
    if status:
        raise UCXError(f"status {c.c_int8(status).value}")


def get_ucx_version():
    numbers = [c.c_uint() for _ in range(3)]
    _ucp.ucp_get_version(*(c.byref(number) for number in numbers))
    return tuple(number.value for number in numbers)


def _end(children, destroy, handle, *arguments):
    for child in children:
        if (alive := child()) is not None:
            alive.close()
    destroy(handle, *arguments)


class UCXObject:
    def __init__(self):
        self._finalizer, self._children = None, []

    @property
    def initialized(self):
        return self._finalizer is not None and self._finalizer.alive

    def close(self):
        if self.initialized:
            self._finalizer()

    def add_child(self, child):
        self._children.append(weakref.ref(child))

    def add_handle_finalizer(self, destroy, handle, *arguments):
        self._finalizer = weakref.finalize(self, _end, self._children, destroy, handle, *arguments)

    @property
    def handle(self):
        assert self.initialized
        return self._handle


class UCXContext(UCXObject):
    def __init__(self, config_dict={}, feature_flags=(Feature.TAG, Feature.WAKEUP, Feature.STREAM)):  # noqa: B006
        super().__init__()
        config, handle = _P(), _P()
        _check(_ucp.ucp_config_read(None, None, c.byref(config)))
        try:
            for name, value in config_dict.items():
                if _ucp.ucp_config_modify(config, name.encode(), value.encode()):
                    raise UCXConfigError(f"failed to set UCX option {name} to {value}")
            features = functools.reduce(lambda bits, flag: bits | flag.value, feature_flags, 0)
            params = _Params(7, features, c.sizeof(_Request), _reset)
            _check(_ucp.ucp_init_version(1, 13, c.byref(params), config, c.byref(handle)))
        finally:
            _ucp.ucp_config_release(config)
        self._handle, self._feature_flags = handle.value, tuple(feature_flags)
        self.add_handle_finalizer(lambda value: _ucp.ucp_cleanup(_P(value)), self._handle)


class UCXWorker(UCXObject):
    def __init__(self, context):
        super().__init__()
        assert context.initialized
        self._context, handle = context, _P()
        params = _WorkerParams(1, _MULTI)
        _check(_ucp.ucp_worker_create(_P(context.handle), c.byref(params), c.byref(handle)))
        self._handle = handle.value
        self.add_handle_finalizer(_end_worker, self._handle, context, Feature.TAG in context._feature_flags)
        context.add_child(self)


def _end_worker(handle, context, tags):
    assert context.initialized
    if tags:
        _drain(_P(handle))
    _ucp.ucp_worker_destroy(_P(handle))


def _drain(worker):
    info, param = (c.c_uint64 * 2)(), (c.c_uint64 * 9)()
    while message := _ucp.ucp_tag_probe_nb(worker, 0, 0, 1, info):
        buffer = c.create_string_buffer(info[1])
        request = _ucp.ucp_tag_msg_recv_nbx(worker, buffer, info[1], message, param)
        if request is None or request > (1 << 64) - 128:
            continue
        while _ucp.ucp_request_check_status(_P(request)) == _IN_PROGRESS:
            _ucp.ucp_worker_progress(worker)
        _ucp.ucp_request_free(_P(request))
