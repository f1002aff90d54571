"""The parts of the plugin that need no UCX: which settings are made of its options."""

from __future__ import annotations

import pytest

from kvhub.errors import KvhubError
from kvhub.testing import make_context, make_region
from kvhub.wire import addresses

kvhub_ucx = pytest.importorskip("kvhub_ucx")
_settings = pytest.importorskip("kvhub_ucx._settings")
Config = kvhub_ucx.Config


def test_E12_ucx_listens_where_the_hub_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "interfaces", lambda: [("lo", "127.0.0.1"), ("eth1", "10.1.2.3")])
    assert _settings.devices(Config()) == "lo"
    assert _settings.devices(Config(listen="[::1]:0")) == "lo"
    assert _settings.devices(Config(listen="10.1.2.3:0", secret_env="X")) == "eth1"
    assert _settings.devices(Config(listen="0.0.0.0:0", advertise="10.1.2.3:0", secret_env="X")) == "eth1"
    assert _settings.devices(Config(listen="10.1.2.3:0", devices="mlx5_0:1", secret_env="X")) == "mlx5_0:1"
    monkeypatch.setattr(_settings, "rdma_devices", lambda: ["mlx5_0:1"])
    assert _settings.devices(Config(listen="10.1.2.3:0", secret_env="X")) == "eth1,mlx5_0:1"
    assert _settings.transports(Config()).split(",")[0] == "ib"


def test_settings_of_the_user_win() -> None:
    chosen = _settings.choose(Config(transports="tcp"), {"UCX_TLS": "rc", "UCX_RNDV_THRESH": "8K"})
    assert "TLS" not in chosen and "RNDV_THRESH" not in chosen
    assert chosen["TCP_TX_SEG_SIZE"] and chosen["NET_DEVICES"] == "lo"
    assert _settings.choose(Config(transports="rc"), {})["TLS"] == "rc,tcp,self", "a lane that notices a peer's death"


def test_no_secret_beyond_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"other machines can reach listen='0\.0\.0\.0:0'"):
        Config(listen="0.0.0.0:0", advertise="10.1.2.3:0")
    transport = kvhub_ucx.UcxTransport(Config(devices="eth0"), make_context("wire"))
    with pytest.raises(KvhubError, match=r"wire: .* can be reached from other machines and there is no secret"):
        transport.attach(make_region(), lambda: None)
    transport.close()


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("provider", "ucxxx", "provider: expected one of auto, ucxx, wheel, ucx-py, system"),
        ("transports", "tcp;rc", "transports: expected"),
        ("require_action", "shrug", "require_action: expected one of refuse, warn"),
    ],
)
def test_options_are_checked(option: str, value: object, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Config(**{option: value})
