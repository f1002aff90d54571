"""Frames and their seals: whatever comes, it is a message, a `BadFrame`, or the end of the connection."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from kvhub.wire import frames
from kvhub.wire.channel import Channel, Lost
from kvhub.wire.stream import Stream


def _seals(secret: bytes = b"secret") -> tuple[Any, Any]:
    return frames.Seal(secret, b"to server", bytes(64)), frames.Seal(secret, b"to server", bytes(64))


def test_sealed_frames() -> None:
    out, back = _seals()
    for n in range(3):
        assert frames.decode(frames.encode(frames.Go(n), out)[4:], back) == frames.Go(n)


def test_a_frame_is_good_once_and_in_its_place() -> None:
    out, back = _seals()
    first, second = frames.encode(frames.Go(1), out)[4:], frames.encode(frames.Go(2), out)[4:]
    assert frames.decode(first, back) == frames.Go(1)
    for wrong in (first, second[:-1] + bytes([second[-1] ^ 1]), frames.encode(frames.Go(2), None)[4:]):
        _, fresh = _seals()
        fresh.next(first[1:-16])
        with pytest.raises(frames.BadFrame) as caught:
            frames.decode(wrong, fresh)
        assert caught.value.reason == "secret"


def test_every_cut_frame_is_refused() -> None:
    whole = frames.encode(frames.Pull(7, bytes(64), bytes(16), 1.5), None)[4:]
    for length in range(1, len(whole)):
        with pytest.raises(frames.BadFrame):
            frames.decode(whole[:length], None)


def test_random_frames_never_raise_anything_else() -> None:
    dice = random.Random(7)
    _, seal = _seals()
    for _ in range(2000):
        for key in (None, seal):
            with contextlib.suppress(frames.BadFrame):
                frames.decode(dice.randbytes(dice.randrange(1, 80)), key)


def test_every_bit_of_a_sealed_frame_counts() -> None:
    whole = frames.encode(frames.Pull(7, bytes(64), bytes(16), 1.5), _seals()[0])[4:]
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(frames.BadFrame):
            frames.decode(bytes(damaged), _seals()[1])


def test_a_seal_is_of_one_secret_one_direction_and_one_session() -> None:
    whole = frames.encode(frames.Go(1), frames.Seal(b"secret", b"to server", bytes(64)))[4:]
    for secret, direction, nonces in (
        (b"other", b"to server", bytes(64)),
        (b"secret", b"to puller", bytes(64)),
        (b"secret", b"to server", bytes(63) + b"x"),
    ):
        with pytest.raises(frames.BadFrame, match="its seal is wrong"):
            frames.decode(whole, frames.Seal(secret, direction, nonces))


def test_without_a_secret_nothing_sealed_is_believed_and_with_one_nothing_plain() -> None:
    with pytest.raises(frames.BadFrame, match="this hub has no secret"):
        frames.decode(frames.encode(frames.Go(1), _seals()[0])[4:], None)
    with pytest.raises(frames.BadFrame, match="it is not sealed"):
        frames.decode(frames.encode(frames.Go(1), None)[4:], _seals()[1])
    refused = frames.Refused("secret", "no")
    assert frames.decode(frames.encode(refused, None)[4:], _seals()[1]) == refused


@pytest.mark.parametrize(
    "wrong",
    [
        frames.Hello(2, bytes(31)),
        frames.Card("x" * 257, bytes(32), "{}", ""),
        frames.Card("x", bytes(32), "{" * 70000, ""),
        frames.Join("x", b"a" * 20000),
        frames.Join("x", base=-1),
        frames.Join("x", slots=-1),
        frames.Join("x", heartbeat=float("nan")),
        frames.Join("x", heartbeat=-1.0),
        frames.Pull(-1, b"", b"", 0.0),
        frames.Pull(1 << 32, b"", b"", 0.0),
        frames.Offer(1, b"", b"", ["x"] * 1025, b""),
        frames.Offer(1, b"", b"", ["x" * 5000], b""),
        frames.Commit(1, -1, bytes(16)),
        frames.Commit(1, 1, bytes(15)),
        frames.Fulfilled("p" * 1025),
        frames.Attach(bytes(32), bytes(31)),
    ],
    ids=lambda one: type(one).__name__,
)
def test_fields_beyond_their_limits_are_no_message(wrong: frames.Message) -> None:
    with pytest.raises(frames.BadFrame):
        frames.decode(frames.encode(wrong, None)[4:], None)


def test_a_later_version_may_append_fields() -> None:
    body = msgspec.msgpack.encode([9, 7, "something new"])
    assert frames.decode(b"\0" + body, None) == frames.Go(7)


# Over a connection.


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, Channel]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        raw = socket.create_connection(listener.getsockname())
        sock, _ = listener.accept()
    channel = Channel(Stream(sock))
    yield raw, channel
    raw.close()
    channel.close()


def _read(channel: Channel) -> list[Any]:
    found: list[Any] = []
    while not found and not channel.ended:
        found += channel.receive()
    return found


def test_frames_may_come_in_any_pieces(pair: tuple[socket.socket, Channel]) -> None:
    raw, channel = pair
    data = b"".join(frames.encode(frames.Go(n), None) for n in range(50))
    found, dice = [], random.Random(1)
    while data:
        size = dice.randrange(1, 40)
        raw.sendall(data[:size])
        data = data[size:]
        found += channel.receive()
    raw.shutdown(socket.SHUT_WR)
    found += _read(channel)
    assert found == [frames.Go(n) for n in range(50)] and channel.ended


@pytest.mark.parametrize("length", [0, frames.GREETING_LIMIT + 1, 1 << 31, (1 << 32) - 1])
def test_a_length_that_cannot_be_is_refused_before_its_bytes_come(
    pair: tuple[socket.socket, Channel], length: int
) -> None:
    raw, channel = pair
    raw.sendall(struct.pack(">I", length))
    with pytest.raises(frames.BadFrame, match=f"it announces {length} bytes"):
        _read(channel)


def test_who_does_not_read_is_given_up(pair: tuple[socket.socket, Channel]) -> None:
    _, channel = pair
    frame = frames.Fulfilled("p" * 1000)
    with pytest.raises(Lost, match="does not read"):
        for _ in range(200_000):
            channel.send(frame)


def test_a_connection_that_breaks_is_lost(pair: tuple[socket.socket, Channel]) -> None:
    raw, channel = pair
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    raw.close()
    with pytest.raises(Lost) as caught:
        _read(channel)
    assert caught.value.reason == "peer" and channel.silent()
