"""The moments of the wire's protocol, and how a process stops or kills itself at one of them."""

from __future__ import annotations

import importlib
import signal
import threading
from typing import Any

import attrs

from kvhub.wire import channel, frames
from kvhub.wire.lane import Lane
from kvhub.wire.link import PROBE_TAG
from kvhub.wire.wire import Wire

SIGNALS = {"stop": signal.SIGSTOP, "kill": signal.SIGKILL}
_PLACES = {"check": ("kvhub.wire.groups", "check"), "copy": ("kvhub.wire.arrivals", "copy")}


class _Fault:
    """One shot: the n-th time that `due` is asked, the process gets its signal before `due` returns."""

    def __init__(self, fault: str, nth: int) -> None:
        self._number, self._left = SIGNALS[fault], nth

    def due(self) -> None:
        self._left -= 1
        if self._left == 0:
            # To this very thread: nothing more of the wire runs, not even for a microsecond.
            signal.pthread_kill(threading.get_ident(), self._number)


def arm(fault: str, frame: str = "", at: str = "before", step: str = "", nth: int = 1) -> None:
    """Let this process `stop` or `kill` itself.

    With `frame`: `before` or `after` the n-th frame of that kind is sent, or when it was `heard` and not yet looked at.
    With `step`: at the n-th payload that is checked or copied (`check`, `copy`), or the n-th call of a lane's method
    (`send`, `put`, `progress`, ...; `progress` counts from the first send on).  At least one hub may have been made.
    """
    shot = _Fault(fault, nth)
    if frame:
        kind = getattr(frames, frame)
        _at_sends(shot, kind, at) if at != "heard" else _at_decodes(shot, kind)
    elif step in _PLACES:
        module, name = _PLACES[step]
        _before(importlib.import_module(module), name, shot)
    else:
        _at_lanes(shot, step)


def _at_sends(shot: _Fault, kind: type, at: str) -> None:
    real = channel.Channel.send

    def send(self: channel.Channel, message: frames.Message, *, plain: bool = False) -> None:
        if isinstance(message, kind) and at == "before":
            shot.due()
        real(self, message, plain=plain)
        if isinstance(message, kind) and at == "after":
            shot.due()

    channel.Channel.send = send  # type: ignore[method-assign]


def _at_decodes(shot: _Fault, kind: type) -> None:
    real = frames.decode

    def decode(frame: bytes, seal: frames.Seal | None) -> Any:
        message = real(frame, seal)
        if isinstance(message, kind):
            shot.due()
        return message

    frames.decode = decode


def _before(owner: Any, name: str, shot: _Fault) -> None:
    real = getattr(owner, name)

    def call(*arguments: Any) -> Any:
        shot.due()
        return real(*arguments)

    setattr(owner, name, call)


def _at_lanes(shot: _Fault, step: str) -> None:
    real = Wire.open_lane

    def open_lane(self: Wire, link: Any) -> Lane:
        lane = real(self, link)
        begun = step != "progress"

        def tap(name: str) -> None:
            method = getattr(lane, name)

            def call(*arguments: Any) -> Any:
                nonlocal begun
                probe = PROBE_TAG in arguments
                if name == step and begun and not probe:
                    shot.due()
                begun = begun or (name in ("send", "put") and not probe)
                return method(*arguments)

            setattr(lane, name, call)

        for name in dict.fromkeys((step, "send", "put")):
            tap(name)
        return lane

    Wire.open_lane = open_lane  # type: ignore[method-assign]


@attrs.frozen
class Moment:
    """A state of the protocol in which a peer may be lost."""

    name: str
    side: str
    """Who is lost: `server` or `puller`."""
    fault: dict[str, Any]
    paths: tuple[str, ...] = ("message", "put", "mapped")
    begun: bool = True
    """The request had been made; before that the loss is one of pairing."""
    writes: bool = False
    """The server may be in the middle of writing by itself, on paths where it does."""
    maybe: bool = False
    """The pull may have succeeded all the same."""


def _frame(at: str, frame: str) -> dict[str, Any]:
    return {"at": at, "frame": frame}


_CHECKED = ("message", "put")
_GOES = ("message", "mapped")
MOMENTS = (
    Moment("hello heard", "server", _frame("before", "Challenge"), begun=False),
    Moment("challenge said", "server", _frame("after", "Challenge"), begun=False),
    Moment("card due", "server", _frame("before", "Card"), begun=False),
    Moment("ready due", "server", _frame("before", "Ready"), begun=False),
    Moment("ready said", "server", _frame("after", "Ready"), begun=False, maybe=True),
    Moment("offer due", "server", _frame("before", "Offer"), writes=True),
    Moment("offer said", "server", _frame("after", "Offer"), writes=True),
    Moment("go heard", "server", _frame("heard", "Go"), _GOES),
    Moment("first payload", "server", {"step": "check", "nth": 1}, _CHECKED, writes=True),
    Moment("middle", "server", {"step": "check", "nth": 12}, _CHECKED, writes=True),
    Moment("put", "server", {"step": "put", "nth": 2}, ("put",), writes=True),
    Moment("landed due", "server", _frame("before", "Landed"), ("put",), writes=True),
    Moment("landed heard", "puller", _frame("heard", "Landed"), ("put",)),
    Moment("commit due", "server", _frame("before", "Commit"), writes=True),
    Moment("commit said", "server", _frame("after", "Commit"), maybe=True),
    Moment("ack heard", "server", _frame("heard", "Ack"), maybe=True),
    Moment("hello said", "puller", _frame("after", "Hello"), begun=False),
    Moment("card said", "puller", _frame("after", "Card"), begun=False),
    Moment("join said", "puller", _frame("after", "Join"), begun=False),
    Moment("pull due", "puller", _frame("before", "Pull"), begun=False),
    Moment("pull said", "puller", _frame("after", "Pull")),
    Moment("offer heard", "puller", _frame("heard", "Offer")),
    Moment("go due", "puller", _frame("before", "Go"), _GOES),
    Moment("go said", "puller", _frame("after", "Go"), _GOES),
    Moment("first payload", "puller", {"step": "check", "nth": 1}, _CHECKED),
    Moment("middle", "puller", {"step": "check", "nth": 12}, _CHECKED),
    Moment("first copy", "puller", {"step": "copy", "nth": 1}, ("mapped",)),
    Moment("middle", "puller", {"step": "copy", "nth": 12}, ("mapped",)),
    Moment("commit heard", "puller", _frame("heard", "Commit")),
    Moment("ack due", "puller", _frame("before", "Ack")),
    Moment("ack said", "puller", _frame("after", "Ack")),
)


def moments(path: str, side: str) -> list[Moment]:
    """Those that a path has."""
    return [one for one in MOMENTS if one.side == side and path in one.paths]
