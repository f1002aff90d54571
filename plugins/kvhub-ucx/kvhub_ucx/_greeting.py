"""How two hubs come to trust each other: two generators that yield what to say (None: nothing) and get what was heard.

    puller                          server
    Hello(version, nonce)    ──►
                             ◄──    Challenge(version, nonce, keyed)
    Card, sealed             ──►                                          the seal proves the puller's secret
                             ◄──    Card, sealed                          and this the server's
    Join(UCX address)        ──►
                             ◄──    Ready(UCX address)                    and a probe on the data lane

Both nonces are in the keys of the seals, so no greeting can be replayed.  An address of UCX is as good as write
access to this process (see the README), which is why it comes last.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Generator
from typing import TypeVar

from kvhub_ucx import _frames as frames
from kvhub_ucx._channel import Channel

_M = TypeVar("_M", bound=frames.Message)


class Refusal(Exception):
    """No pairing; `reason` is one word for metrics, the text one sentence for people."""

    def __init__(self, reason: str, text: str, *, heard: bool = False) -> None:
        super().__init__(text)
        self.reason = reason
        self.heard = heard
        """It was the peer who refused, so it need not be told."""


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
            "install the same kvhub-ucx on both",
        )


def _check_namespace(mine: frames.Card, theirs: frames.Card) -> None:
    if mine.namespace == theirs.namespace:
        return
    different = ", ".join(_differences(mine.namespace_json, theirs.namespace_json)) or "unknown fields"
    raise Refusal(
        "namespace",
        f"the peer's KV cannot be used here, the namespaces differ in {different}; "
        "start both engines with the same model, revision, KV dtype, parallel layout and chunk_tokens",
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


Greeting = Generator[frames.Message | None, frames.Message, tuple[frames.Card, bytes]]
"""Returns the peer's card and its UCX address."""


def greet(mine: frames.Card, secret: bytes, channel: Channel, open_lane: Callable[[], bytes]) -> Greeting:
    """The puller's side.  `open_lane` makes our worker and returns its address.  Raises Refusal."""
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
    _check_namespace(mine, theirs)
    ready = _expect(frames.Ready, (yield frames.Join(open_lane())))
    return theirs, ready.address


def answer(mine: frames.Card, secret: bytes, channel: Channel, open_lane: Callable[[bytes], bytes]) -> Greeting:
    """The server's side.  `open_lane` is given the puller's UCX address and returns ours.  Raises Refusal."""
    hello = _expect(frames.Hello, (yield None))
    _check_version(hello.version)
    nonce = os.urandom(32)
    channel.send(frames.Challenge(frames.VERSION, nonce, bool(secret)))
    if secret:
        incoming, outgoing = _seals(secret, hello.nonce, nonce)
        channel.seal(outgoing, incoming)
    theirs = _expect(frames.Card, (yield None))
    _check_namespace(mine, theirs)
    join = _expect(frames.Join, (yield mine))
    channel.send(frames.Ready(open_lane(join.address)))
    return theirs, join.address
