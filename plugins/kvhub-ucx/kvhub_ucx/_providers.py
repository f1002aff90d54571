"""Where libucp comes from: finds the library and puts it into the process, once and quietly.

`wheel` is the `libucx` module (distribution libucx-cu12 or libucx-cu13: TCP and shared memory, no RDMA verbs), `system`
the loader's own `libucp.so.0` (Debian's libucx0, DOCA: with verbs).  A binding such as ucxx would be a third entry: it
brings the same library, and all that is needed of a provider is that `libucp.so.0` can be opened afterwards.
"""

from __future__ import annotations

import contextlib
import ctypes as c
import importlib.util
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from kvhub.errors import KvhubError

INSTALL = "install one with: pip install 'kvhub-ucx[libucx]', or for RDMA: apt-get install libucx0"

# UCX reads these while it is loaded, not from ucp_config: it must install no signal handler in the engine's process
# (by default it takes SIGHUP for its debugger), start no thread of its own, and keep warnings out of the engine's log.
_AT_LOAD = {
    "UCX_HANDLE_ERRORS": "none",
    "UCX_ERROR_SIGNALS": "",
    "UCX_DEBUG_SIGNO": "0",
    "UCX_VFS_ENABLE": "n",
    "UCX_WARN_UNUSED_ENV_VARS": "n",
    "UCX_LOG_LEVEL": "error",
}


def _already_loaded() -> str | None:
    """The soname when some other package has loaded libucp: a second copy in one process would not share its state."""
    try:
        c.CDLL("libucp.so.0", mode=os.RTLD_NOLOAD | os.RTLD_LOCAL)
    except OSError:
        return None
    return "libucp.so.0"


def _wheel() -> str | None:
    spec = importlib.util.find_spec("libucx")
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(next(iter(spec.submodule_search_locations))) / "lib"
    # These names, in this order, are what `libucx.load_library()` opens: the wheel holds copies under several names,
    # and opening another one would map a second UCX.  Its libucs_signal is left out: it installs signal handlers.
    for name in ("libucs.so", "libuct.so", "libucp.so"):
        path = folder / name
        if not path.exists():
            return None
        c.CDLL(str(path), mode=os.RTLD_LOCAL)
    return "libucp.so.0"


def _system() -> str | None:
    try:
        c.CDLL("libucp.so.0", mode=os.RTLD_LOCAL)
    except OSError:
        return None
    return "libucp.so.0"


_PROVIDERS: dict[str, Callable[[], str | None]] = {"wheel": _wheel, "system": _system}
PROVIDERS = ("auto", *_PROVIDERS)


def _rdma_here() -> bool:
    try:
        return any(Path("/sys/class/infiniband").iterdir())
    except OSError:
        return False


def _order(provider: str) -> tuple[str, ...]:
    """`auto`: the system's library first where there is RDMA hardware, since no wheel on the index has verbs."""
    if provider != "auto":
        return (provider,)
    return ("system", "wheel") if _rdma_here() else ("wheel", "system")


@contextlib.contextmanager
def _load_environment() -> Iterator[None]:
    added = [name for name in _AT_LOAD if name not in os.environ]
    os.environ.update({name: _AT_LOAD[name] for name in added})
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def find(provider: str) -> tuple[str, str]:
    """(soname to open, name of the provider that had it).  Raises KvhubError."""
    if _already_loaded():
        return "libucp.so.0", "already loaded"
    with _load_environment():
        for name in _order(provider):
            soname = _PROVIDERS[name]()
            if soname is not None:
                return soname, name
    raise KvhubError(f"UCX: no libucp found (provider {provider}); {INSTALL}")
