"""Where libucp comes from: chooses a provider, and puts its library into the process, once and quietly.

`ucxx` and `ucx-py` are bindings that bring a library and make contexts and workers; `wheel` is the library of the
module `libucx` (distribution libucx-cu12 or libucx-cu13) alone; `system` is the loader's own `libucp.so.0` (Debian's
libucx0, DOCA).  No UCX on the public index has RDMA verbs, so with RDMA hardware the one that has them comes first.
"""

from __future__ import annotations

import ctypes as c
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import attrs

from kvhub.errors import KvhubError
from kvhub_ucx import _bindings

SONAME = "libucp.so.0"
INSTALL = (
    "install one with: pip install 'kvhub-ucx[ucxx]', or the lighter 'kvhub-ucx[libucx]', "
    "or for RDMA: apt-get install libucx0; or say `use: tcp` (pip install kvhub-tcp), which needs none"
)
RDMA_DEVICES = Path("/sys/class/infiniband")
_ORDER = ("ucxx", "wheel", "ucx-py", "system")
PROVIDERS = ("auto", *_ORDER)


@attrs.frozen
class Found:
    """A library in this process, and the binding that makes contexts on it, if any does."""

    provider: str
    binding: _bindings.Binding | None = None
    passed_over: tuple[str, ...] = ()
    """`provider: why not` of those that came before it in the order."""


def find(provider: str) -> Found:
    """Load libucp as `provider` says; a libucp that is there already stays the only one.  Raises KvhubError."""
    there = loaded_from()
    order = _order() if provider == "auto" else (provider,)
    if there is not None:
        # A second library in the process would not share the first one's state.
        others = [name for name in order if name in _bindings.imported() or (name == provider and name in _BINDINGS)]
        if not others:
            return Found(f"already loaded ({there})")
        order = tuple(others)
    passed_over: list[str] = []
    with _bindings.load_environment():
        for name in order:
            try:
                return Found(name, _LOADERS[name](), tuple(passed_over))
            except KvhubError as error:
                passed_over.append(f"{name}: {error}")
                if provider == "auto" and (left := loaded_from()) is not None:
                    # A binding that would not start has loaded a library all the same.
                    return Found(f"already loaded ({left})", None, tuple(passed_over))
    raise KvhubError(f"UCX: no libucp found (provider {provider}: {'; '.join(passed_over)}); {INSTALL}")


def loaded_from() -> str | None:
    """The file of the libucp that is in this process; None when there is none."""
    try:
        c.CDLL(SONAME, mode=os.RTLD_NOLOAD | os.RTLD_LOCAL)
    except OSError:
        return None
    lines = Path("/proc/self/maps").read_text().splitlines()
    return next((line.split(maxsplit=5)[5] for line in lines if re.search(r"/libucp\.so[.0-9]*$", line)), SONAME)


def rdma_here() -> bool:
    """Whether this machine has RDMA devices."""
    try:
        return any(RDMA_DEVICES.iterdir())
    except OSError:
        return False


def _order() -> tuple[str, ...]:
    """`auto`: with RDMA devices, whichever provider's library has verbs goes first; the rest keep their order."""
    if not rdma_here():
        return _ORDER
    return tuple(sorted(_ORDER, key=lambda name: not has_verbs(_library(name))))


def has_verbs(library: Path | None) -> bool:
    """Whether a libucp finds transports over verbs: its module for them lies in a folder beside it."""
    if library is None:
        return False
    folder = os.environ.get("UCX_MODULE_DIR") or library.resolve().parent / "ucx"
    return any(Path(folder).glob("libuct_ib*.so*"))


def _library(provider: str) -> Path | None:
    """The libucp that a provider would bring, found without loading it; None where it is not installed."""
    if provider == "wheel":
        return _wheel_library()
    if provider == "system":
        return _system_library()
    if _bindings.missing(provider):
        return None
    # Without the module libucx a binding takes what its environment has (conda), else what the loader has.
    theirs = Path(sys.prefix, "lib", SONAME)
    return _wheel_library() or (theirs if theirs.exists() else _system_library())


def _wheel_library() -> Path | None:
    spec = importlib.util.find_spec("libucx")
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(next(iter(spec.submodule_search_locations))) / "lib" / "libucp.so"
    return path if path.exists() else None


def _system_library() -> Path | None:
    """Where the loader would find it: its path variable, then its cache."""
    for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":"):
        if folder and (path := Path(folder, SONAME)).exists():
            return path
    try:
        told = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, timeout=5, check=False).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    wanted = f"{SONAME} (libc6,"
    return next((Path(line.split()[-1]) for line in told.splitlines() if line.strip().startswith(wanted)), None)


def _load_ucxx() -> _bindings.Binding:
    return _bindings.bind("ucxx")


def _load_ucx_py() -> _bindings.Binding:
    return _bindings.bind("ucx-py")


def _load_wheel() -> None:
    library = _wheel_library()
    if library is None:
        raise KvhubError("there is no module libucx with a library in it")
    # These names, in this order, are what `libucx.load_library()` opens: the wheel holds copies under several names,
    # and opening another one would map a second UCX.  Its libucs_signal is left out: it installs signal handlers.
    for name in ("libucs.so", "libuct.so", "libucp.so"):
        try:
            c.CDLL(str(library.with_name(name)), mode=os.RTLD_LOCAL)
        except OSError as error:
            raise KvhubError(str(error)) from error


def _load_system() -> None:
    try:
        c.CDLL(SONAME, mode=os.RTLD_LOCAL)
    except OSError as error:
        raise KvhubError(f"the loader finds no {SONAME}: {error}") from error


_LOADERS = {"ucxx": _load_ucxx, "ucx-py": _load_ucx_py, "wheel": _load_wheel, "system": _load_system}
_BINDINGS = ("ucxx", "ucx-py")
