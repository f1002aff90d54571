"""The parts that need no UCX: addresses, settings, secrets, frames, seals, grouping."""

from __future__ import annotations

import contextlib
import random
from array import array
from typing import Any

import attrs
import pytest

from kvhub.errors import KvhubError
from kvhub.testing import make_context, make_key, make_region
from kvhub.wire import addresses, frames, groups, options

kvhub_ucx = pytest.importorskip("kvhub_ucx")
_settings = pytest.importorskip("kvhub_ucx._settings")
Config = kvhub_ucx.Config


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("h:1", ("h", 1)),
        ("10.0.0.1:7700", ("10.0.0.1", 7700)),
        ("[::1]:7700", ("::1", 7700)),
        ("[fe80::1%eth0]:5600", ("fe80::1%eth0", 5600)),
    ],
)
def test_E11_addresses(text: str, parsed: tuple[str, int]) -> None:
    assert addresses.parse(text) == parsed
    assert addresses.show(*parsed) == text


@pytest.mark.parametrize("text", ["", "::1", "::1:5", "h", "h:", ":1", "h:65536", "h:-1", "[::1]", "[::1:5"])
def test_E11_no_addresses(text: str) -> None:
    with pytest.raises(ValueError, match="expected host:port"):
        addresses.parse(text)


def test_E11_every_interface_needs_an_address_for_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    everywhere = Config(listen="0.0.0.0:7700", secret_env="X")
    monkeypatch.setattr(addresses, "interfaces", lambda: [("lo", "127.0.0.1"), ("eth0", "10.1.2.3")])
    assert options.advertised(everywhere, "wire", "0.0.0.0", 7700) == "10.1.2.3:7700"
    monkeypatch.setattr(addresses, "interfaces", lambda: [("lo", "127.0.0.1")])
    with pytest.raises(KvhubError, match=r"wire\.listen: .* no address that other machines can reach; set advertise"):
        options.advertised(everywhere, "wire", "0.0.0.0", 7700)
    monkeypatch.setattr(addresses, "interfaces", lambda: [("a", "10.0.0.1"), ("b", "10.0.0.2")])
    with pytest.raises(KvhubError, match=r"several addresses \(10\.0\.0\.1, 10\.0\.0\.2\); set advertise"):
        options.advertised(everywhere, "wire", "0.0.0.0", 7700)
    named = attrs.evolve(everywhere, advertise="[fd00::7]:0")
    assert options.advertised(named, "wire", "0.0.0.0", 7700) == "[fd00::7]:7700"


def test_E12_ucx_listens_where_the_hub_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "interfaces", lambda: [("lo", "127.0.0.1"), ("eth1", "10.1.2.3")])
    assert _settings.devices(Config()) == "lo"
    assert _settings.devices(Config(listen="[::1]:0")) == "lo"
    assert _settings.devices(Config(listen="10.1.2.3:0")) == "eth1"
    assert _settings.devices(Config(listen="0.0.0.0:0", advertise="10.1.2.3:0")) == "eth1"
    assert _settings.devices(Config(listen="10.1.2.3:0", devices="mlx5_0:1")) == "mlx5_0:1"
    monkeypatch.setattr(_settings, "rdma_devices", lambda: ["mlx5_0:1"])
    assert _settings.devices(Config(listen="10.1.2.3:0")) == "eth1,mlx5_0:1"
    assert _settings.transports(Config()).split(",")[0] == "ib"


def test_settings_of_the_user_win() -> None:
    chosen = _settings.choose(Config(transports="tcp"), {"UCX_TLS": "rc", "UCX_RNDV_THRESH": "8K"})
    assert "TLS" not in chosen and "RNDV_THRESH" not in chosen
    assert chosen["TCP_TX_SEG_SIZE"] and chosen["NET_DEVICES"] == "lo"
    assert _settings.choose(Config(transports="rc"), {})["TLS"] == "rc,tcp,self", "a lane that notices a peer's death"


def test_no_secret_beyond_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    beyond = (Config(listen="0.0.0.0:0", advertise="10.1.2.3:0"), Config(devices="eth0"))
    for config in beyond:
        transport = kvhub_ucx.UcxTransport(config, make_context("wire"))
        with pytest.raises(KvhubError, match=r"wire: .* can be reached from other machines and there is no secret"):
            transport.attach(make_region(), lambda: None)
        transport.close()
    assert options.secret(Config(), "wire", "", {}) == b""


def test_secret_from_the_environment() -> None:
    config = Config(secret_env="KV_SECRET")
    assert options.secret(config, "wire", "", {"KV_SECRET": "long enough"}) == b"long enough"
    for value, found in (({}, "is not set"), ({"KV_SECRET": "short"}, "has 5 characters")):
        with pytest.raises(KvhubError, match=rf"wire\.secret_env: environment variable KV_SECRET {found}"):
            options.secret(config, "wire", "", value)


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("listen", "nowhere", "listen: expected host:port"),
        ("provider", "ucxxx", "provider: expected one of auto, ucxx, wheel, ucx-py, system"),
        ("transports", "tcp;rc", "transports: expected"),
        ("handshake_timeout", 0, "handshake_timeout: must be more than 0"),
        ("transfer_timeout", "soon", "expected a time"),
        ("most_queued_bytes", "lots", "expected a size"),
    ],
)
def test_options_are_checked(option: str, value: object, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Config(**{option: value})


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


def test_groups_cover_everything_once_in_order() -> None:
    dice = random.Random(3)
    for _ in range(50):
        lengths = [dice.choice([-1, 0, 1, 4096, 1 << 19, 1 << 21, 5 << 20]) for _ in range(dice.randrange(700))]
        found = groups.plan(lengths)
        assert [i for group in found for i in group] == [i for i, length in enumerate(lengths) if length >= 0]
        for group in found:
            assert 0 < len(group) <= groups.MOST_PIECES
            assert len(group) == 1 or sum(lengths[i] for i in group) <= groups.GROUP_BYTES


def test_neighbouring_slots_are_one_piece() -> None:
    region = make_region(8, 4096)
    pieces = groups.Pieces(region, [2, 3, 4, 7, 0], [4096, 4096, 100, 0, 50])
    words = array("Q", pieces._words)
    assert list(words[:4]) == [region.address + 2 * 4096, 8292, region.address, 50]
    assert words[5] == 5 * 16 and pieces.entries == 3 and pieces.payload_bytes == 8342


def test_check_depends_on_key_and_bytes() -> None:
    data = memoryview(b"payload")
    assert groups.check(make_key(1), data) != groups.check(make_key(2), data)
    assert groups.check(make_key(1), data) != groups.check(make_key(1), data[:-1])
