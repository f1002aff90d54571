"""Contexts and workers that a binding makes: ucxx, or ucx-py.  Their handles are all that is used of them.

Neither is imported before its provider is asked for.  Both write UCX_* variables into the environment while they are
imported, which would be taken for the user's own and be handed on to child processes, so that is undone.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from kvhub.errors import KvhubError

# What UCX reads while it is loaded, not from ucp_config: it must install no signal handler in the engine's process (by
# default it takes SIGHUP for its debugger), start no thread of its own, and keep warnings out of the engine's log.
_AT_LOAD = {
    "UCX_HANDLE_ERRORS": "none",
    "UCX_ERROR_SIGNALS": "",
    "UCX_DEBUG_SIGNO": "0",
    "UCX_VFS_ENABLE": "n",
    "UCX_WARN_UNUSED_ENV_VARS": "n",
    "UCX_LOG_LEVEL": "error",
}

# What `import ucxx` and `import ucp` set where the user did not.
_THEIRS = {
    "UCX_MEMTYPE_CACHE": "n",
    "UCX_RNDV_THRESH": "8192",
    "UCX_RNDV_FRAG_MEM_TYPE": "cuda",
    "UCX_MAX_RNDV_RAILS": "1",
    "UCX_CUDA_COPY_MAX_REG_RATIO": "1.0",
    "UCX_PROTO_ENABLE": "n",
}
_MODULES = {"ucxx": "ucxx._lib.libucxx", "ucx-py": "ucp._libs.ucx_api"}


class Owner(Protocol):
    """Who made a `ucp_context_h` or a `ucp_worker_h` and is the one to destroy it."""

    @property
    def handle(self) -> int: ...

    def close(self) -> None:
        """Destroy it, now: when this returns the handle is gone."""


class Maker(Protocol):
    """Makes contexts and workers with the features that the wire needs: tag, RMA and wake-up."""

    drains: bool
    """Whether closing a worker first receives what came unasked, and so waits for what will never come."""

    def context(self, settings: Mapping[str, str]) -> Owner:
        """Settings by their names without UCX_.  Raises KvhubError."""

    def worker(self, context: Owner) -> Owner:
        """A worker that nobody but the caller progresses.  Raises KvhubError."""


class _Held:
    """The one reference to a binding's object.

    ucxx destroys a handle with the last reference to its object, ucx-py with `close` or, failing that, likewise.
    """

    def __init__(self, thing: Any) -> None:
        self.thing = thing
        self.handle = int(thing.handle)

    def close(self) -> None:
        thing, self.thing = self.thing, None
        if hasattr(thing, "close"):
            thing.close()


class Binding:
    """Either binding: the classes and their arguments have the same names in both."""

    drains = True

    def __init__(self, name: str, api: Any) -> None:
        self.name, self._api = name, api

    def context(self, settings: Mapping[str, str]) -> _Held:
        feature = self._api.Feature
        flags = (feature.TAG, feature.RMA, feature.WAKEUP)
        with self._told("UCXContext"):
            return _Held(self._api.UCXContext(config_dict=dict(settings), feature_flags=flags))

    def worker(self, context: Any) -> _Held:
        with self._told("UCXWorker"):
            return _Held(self._api.UCXWorker(context.thing))

    @contextlib.contextmanager
    def _told(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            # Not chained: the traceback's frames would keep what was half made.
            raise KvhubError(f"UCX: {self.name} could not make a {what}: {type(error).__name__}: {error}") from None


@contextlib.contextmanager
def load_environment() -> Iterator[None]:
    """The environment in which UCX and bindings are loaded; afterwards it is what it was before."""
    before = {name: value for name, value in os.environ.items() if name.startswith("UCX_")}
    os.environ.update({name: value for name, value in _AT_LOAD.items() if name not in before})
    try:
        yield
    finally:
        for name in [name for name in os.environ if name.startswith("UCX_") and name not in before]:
            del os.environ[name]
        os.environ.update(before)


def users_environment() -> dict[str, str]:
    """os.environ less what an earlier import of a binding, by somebody else in this process, has put there."""
    own = dict(os.environ)
    if "ucxx" in sys.modules or "ucp" in sys.modules:
        at_start = _at_start()
        for name, value in _THEIRS.items():
            if own.get(name) == value and name not in at_start:
                del own[name]
    return own


def _at_start() -> set[str]:
    try:
        entries = Path("/proc/self/environ").read_bytes().split(b"\0")
    except OSError:
        return set()
    return {os.fsdecode(entry.partition(b"=")[0]) for entry in entries}


def imported() -> list[str]:
    """The bindings that somebody in this process uses already."""
    return [name for name, module in _MODULES.items() if module in sys.modules]


def missing(name: str) -> str:
    """Why a binding is not here, without importing anything; empty where it is."""
    package, _, rest = _MODULES[name].partition(".")
    spec = importlib.util.find_spec(package)
    folders = [Path(place) for place in (spec.submodule_search_locations or ())] if spec is not None else []
    if spec is None:
        return f"there is no module {package}"
    inner, _, module = rest.rpartition(".")
    if not any(any((folder / inner).glob(f"{module}.*")) for folder in folders):
        return _foreign(name, spec.origin or "?")
    return ""


def _foreign(name: str, where: str) -> str:
    package = _MODULES[name].partition(".")[0]
    said = f"the module {package} at {where} is not {name}: it has no {_MODULES[name]}"
    return f"{said}; the public index has something else under the name {package}" if name == "ucx-py" else said


def bind(name: str) -> Binding:
    """Import a binding, inside of `load_environment`.  Raises KvhubError."""
    if problem := missing(name):
        raise KvhubError(problem)
    package, _, _ = _MODULES[name].partition(".")
    try:
        top, api = importlib.import_module(package), importlib.import_module(_MODULES[name])
    except Exception as error:
        raise KvhubError(f"importing {package} failed: {type(error).__name__}: {error}") from error
    wanted = ("UCXContext", "UCXWorker", "Feature")
    if not callable(getattr(top, "get_ucx_version", None)) or not all(hasattr(api, word) for word in wanted):
        raise KvhubError(_foreign(name, getattr(top, "__file__", None) or "?"))
    return Binding(name, api)
