"""How two hubs come to trust each other: two generators that yield what to say (None: nothing) and get what was heard.

    puller                          server
    Hello(version, nonce)    ──►
                             ◄──    Challenge(version, nonce, keyed)
    Card, sealed             ──►                                          the seal proves the puller's secret
                             ◄──    Card, sealed                          and this the server's
    Join(path, lane address) ──►
                             ◄──    Ready(path, lane address)             and a probe on the data lane

Both nonces are in the keys of the seals, so no greeting can be replayed.  The address of a lane may be as good as write
access to this process (see docs/transport.md), which is why it comes last.
"""

from __future__ import annotations

import hmac
import json
import os
from collections.abc import Callable, Generator
from typing import TypeVar

from kvhub.errors import LayoutError
from kvhub.layout import Layout
from kvhub.wire import frames
from kvhub.wire.channel import Channel

_M = TypeVar("_M", bound=frames.Message)


class Refusal(Exception):
    """No pairing; `reason` is one word for metrics, the text one sentence for people."""

    def __init__(self, reason: str, text: str, *, heard: bool = False) -> None:
        super().__init__(text)
        self.reason = reason
        self.heard = heard
        """It was the peer who refused, so it need not be told."""


class HandOver(Exception):
    """This connection is the data lane of another link."""

    def __init__(self, token: bytes) -> None:
        super().__init__()
        self.token = token


def _expect(kind: type[_M], message: frames.Message) -> _M:
    if isinstance(message, kind):
        return message
    if isinstance(message, frames.Refused):
        raise Refusal(message.reason, f"the peer refuses: {message.text}", heard=True)
    raise Refusal("protocol", f"expected {kind.__name__}, heard {type(message).__name__}")


def _check_version(theirs: int) -> None:
    if theirs != frames.VERSION:
        raise Refusal(
            "version",
            f"the peer speaks version {theirs} of the wire protocol, this hub version {frames.VERSION}; "
            "install the same kvhub on both",
        )


def _check_card(mine: frames.Card, theirs: frames.Card) -> None:
    if mine.namespace != theirs.namespace:
        different = ", ".join(_differences(mine.namespace_json, theirs.namespace_json)) or "unknown fields"
        raise Refusal(
            "namespace",
            f"the peer's KV cannot be used here, the namespaces differ in {different}; "
            "start both engines with the same model, revision, KV dtype, parallel layout and chunk_tokens",
        )
    if mine.layout == theirs.layout:
        return
    try:
        alike = Layout.parse(mine.layout).same_content(Layout.parse(theirs.layout))
    except LayoutError as error:
        raise Refusal("layout", f"the peer's KV layout cannot be read: {error}") from error
    if not alike:
        raise Refusal(
            "layout",
            f"the peer's KV layout {theirs.layout!r} cannot be converted to {mine.layout!r} here: they hold other "
            "contents; start both engines with the same model and KV dtype",
        )


def _differences(mine: str, theirs: str) -> list[str]:
    """Names of the top-level fields of two namespaces that differ, with both values where they are short."""
    try:
        one, two = json.loads(mine), json.loads(theirs)
        names = sorted(one.keys() | two.keys())
    except (ValueError, AttributeError):
        return []
    found = []
    for name in names:
        left, right = one.get(name), two.get(name)
        if left != right:
            text = f"{left!r} here, {right!r} there"
            found.append(f"{name} ({text})" if len(text) <= 120 else name)
    return found[:8]


def _seals(secret: bytes, puller: bytes, server: bytes) -> tuple[frames.Seal, frames.Seal]:
    """(to server, to puller)"""
    nonces = puller + server
    return frames.Seal(secret, b"to server", nonces), frames.Seal(secret, b"to puller", nonces)


Joined = tuple[frames.Card, frames.Join, frames.Ready]
Greeting = Generator[frames.Message | None, frames.Message, Joined]


def greet(mine: frames.Card, secret: bytes, channel: Channel, join: Callable[[frames.Card], frames.Join]) -> Greeting:
    """The puller's side.  `join` is given the server's card and opens a lane if it needs one.  Raises Refusal."""
    nonce = os.urandom(32)
    challenge = _expect(frames.Challenge, (yield frames.Hello(frames.VERSION, nonce)))
    _check_version(challenge.version)
    if challenge.keyed != bool(secret):
        who, other = ("the peer", "this hub") if challenge.keyed else ("this hub", "the peer")
        raise Refusal("secret", f"{who} has a secret and {other} has none; give both the same (option secret_env)")
    if secret:
        outgoing, incoming = _seals(secret, nonce, challenge.nonce)
        channel.seal(outgoing, incoming)
    theirs = _expect(frames.Card, (yield mine))
    _check_card(mine, theirs)
    asked = join(theirs)
    ready = _expect(frames.Ready, (yield asked))
    if (ready.path == "mapped") != (asked.path == "mapped"):
        raise Refusal("protocol", f"asked for path {asked.path!r}, the peer answers {ready.path!r}")
    return theirs, asked, ready


def answer(mine: frames.Card, secret: bytes, channel: Channel, join: Callable[[frames.Join], frames.Ready]) -> Greeting:
    """The server's side.  `join` opens the lane that the puller asks for.  Raises Refusal and HandOver."""
    hello = yield None
    if isinstance(hello, frames.Attach):
        if not hmac.compare_digest(hello.proof, frames.lane_proof(secret, hello.token)):
            raise Refusal("secret", "a data connection whose proof is wrong")
        raise HandOver(hello.token)
    hello = _expect(frames.Hello, hello)
    _check_version(hello.version)
    nonce = os.urandom(32)
    channel.send(frames.Challenge(frames.VERSION, nonce, bool(secret)))
    if secret:
        incoming, outgoing = _seals(secret, hello.nonce, nonce)
        channel.seal(outgoing, incoming)
    theirs = _expect(frames.Card, (yield None))
    _check_card(mine, theirs)
    asked = _expect(frames.Join, (yield mine))
    ready = join(asked)
    channel.send(ready)
    return theirs, asked, ready
