"""Addresses, secrets and options of a wire: what is taken, and what is refused by a sentence."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from kvhub.errors import KvhubError
from kvhub.wire import addresses, options
from kvhub.wire.options import WireConfig as Config


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


def test_secret_from_the_environment() -> None:
    config = Config(secret_env="KV_SECRET")
    assert options.secret(config, "wire", "", {"KV_SECRET": "long enough"}) == b"long enough"
    for value, found in (({}, "is not set"), ({"KV_SECRET": "short"}, "has 5 characters")):
        with pytest.raises(KvhubError, match=rf"wire\.secret_env: environment variable KV_SECRET {found}"):
            options.secret(config, "wire", "", value)


def test_E11_loopback_is_not_told_to_other_machines() -> None:
    config = Config(listen="10.1.2.3:7700", advertise="127.0.0.1:7700", secret_env="X")
    with pytest.raises(KvhubError, match=r"wire\.advertise: .* is loopback, while .* serves other machines"):
        options.advertised(config, "wire", "10.1.2.3", 7700)
    with pytest.raises(KvhubError, match=r"wire\.advertise: .* is no address of one machine"):
        options.advertised(Config(advertise="0.0.0.0:1"), "wire", "127.0.0.1", 7700)


def test_strangers_are_kept_out_by_a_secret_or_by_certificates() -> None:
    assert options.secret(Config(), "wire", "", {}) == b""
    with pytest.raises(KvhubError, match=r"wire: listen=x can be reached from other machines and there is no secret"):
        options.secret(Config(tls_cert="hub.pem"), "wire", "listen=x", {})
    assert options.secret(Config(tls_cert="hub.pem", tls_ca="ca.pem"), "wire", "listen=x", {}) == b""


@pytest.mark.parametrize("listen", ["0.0.0.0:7700", "10.1.2.3:0", "[::]:7700", "[fd00::7]:1"])
def test_E11_a_file_that_lets_strangers_in_is_refused_before_any_start(listen: str) -> None:
    with pytest.raises(ValueError, match="needed, since other machines can reach listen="):
        Config(listen=listen)
    assert Config(listen=listen, secret_env="X").listen == listen
    assert Config(listen=listen, tls_cert="hub.pem", tls_ca="ca.pem").listen == listen
    with pytest.raises(ValueError, match="needed, since"):
        Config(listen=listen, tls_cert="hub.pem")


def test_E11_names_and_loopback_need_no_secret_in_the_file() -> None:
    for listen in ("", "127.0.0.1:0", "[::1]:0", "127.9.9.9:0", "some-host:7700"):
        assert Config(listen=listen).secret_env == ""


def test_certificates_that_cannot_be_read(tmp_path: Path) -> None:
    bad = tmp_path / "bad.pem"
    bad.write_text("no certificate")
    for path in (tmp_path / "missing.pem", bad):
        with pytest.raises(KvhubError, match=rf"wire: TLS cannot start with tls_cert='{path}'.*; give PEM files"):
            options.tls(Config(tls_cert=str(path)), "wire")
    with pytest.raises(KvhubError, match="tls_key and tls_ca are of no use without tls_cert"):
        options.tls(Config(tls_ca="ca.pem"), "wire")
    assert options.tls(Config(), "wire") == options.Tls()


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("listen", "nowhere", "listen: expected host:port"),
        ("advertise", "::1:5", "advertise: expected host:port"),
        ("path", "carrier pigeon", "path: expected one of auto, mapped, put, message"),
        ("checksum", "never", "checksum: expected one of wire, always"),
        ("handshake_timeout", 0, "handshake_timeout: must be more than 0"),
        ("stop_timeout", -1, "a time must be finite and not negative"),
        ("transfer_timeout", "soon", "expected a time"),
        ("most_queued_bytes", "lots", "expected a size"),
        ("most_peers", 0, "most_peers: must be more than 0"),
    ],
)
def test_options_are_checked(option: str, value: object, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Config(**{option: value})
