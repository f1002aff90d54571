"""Encryption: what a chunk is bound to, whose key it is, and that no key is ever shown."""

from __future__ import annotations

import base64
import json
import threading

import attrs
import pytest
from format.kv import NHD, kv
from hypothesis import given, settings
from hypothesis import strategies as st

from kvhub import ConfigError, KvhubError, chunkfile
from kvhub.cli import main
from kvhub.codec import About, Codecs
from kvhub.config import load
from kvhub.errors import Damaged, Foreign
from kvhub.plugins import Registry
from kvhub.testing.region import make_key, make_payload
from kvhub.types import MOST_GROWTH, Outcome
from kvhub_aes import AesCodec, AesConfig, KeySource
from kvhub_aes.codec import GROWTH

KEYS = {"KV_KEY": bytes(range(32)), "KV_OLD": bytes(range(100, 132)), "KV_OTHER": b"\xff" * 32}
KEY, DATA = make_key("one"), make_payload("one", 5000)
ABOUT = About(KEY, bytes(range(32)), NHD.text, len(DATA), generated=3)
CHANGED = {
    "key": attrs.evolve(ABOUT, key=make_key("two")),
    "namespace": attrs.evolve(ABOUT, namespace=bytes(32)),
    "layout": attrs.evolve(ABOUT, layout=NHD.text + " "),
    "generated": attrs.evolve(ABOUT, generated=4),
}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for at, (name, key) in enumerate(KEYS.items()):
        monkeypatch.setenv(name, key.hex() if at else base64.b64encode(key).decode())


def codec(key: str = "KV_KEY", *old: str) -> AesCodec:
    return AesCodec(AesConfig(KeySource(key), tuple(KeySource(name) for name in old)), "secret")


def back(own: AesCodec, stored: bytes, about: About = ABOUT) -> bytes:
    room = bytearray(about.payload_bytes)
    Codecs(own).decode((4,), memoryview(stored), memoryview(room), about)
    return bytes(room)


def sealed(own: AesCodec, data: bytes = DATA, about: About = ABOUT) -> bytes:
    return bytes(own.encode(memoryview(data), about))


@given(st.binary(max_size=400), st.integers(0, 2**32 - 1))
@settings(max_examples=100)
def test_any_bytes_come_back(data: bytes, generated: int) -> None:
    about = About(KEY, bytes(32), "layout", len(data), generated)
    stored = sealed(codec(), data, about)
    assert len(stored) == len(data) + GROWTH <= len(data) + MOST_GROWTH
    assert back(codec(), stored, about) == data


def test_nothing_of_a_payload_can_be_seen_and_no_two_are_equal() -> None:
    data = kv(NHD, 16)
    about = attrs.evolve(ABOUT, payload_bytes=len(data))
    own = codec()
    one, two = sealed(own, data, about), sealed(own, data, about)
    assert one[:16] == two[:16] and one[16:28] != two[16:28], "a nonce is used once"
    assert not {data[at : at + 8] for at in range(0, len(data) - 8, 8)} & {
        one[at : at + 8] for at in range(len(one) - 8)
    }
    assert all(KEYS["KV_KEY"][at : at + 8] not in one for at in range(24))


def test_against_gcm_itself() -> None:
    """Another implementation reads it by the page: id, nonce and bound data as they are written down."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    stored = sealed(codec())
    bound = b"kvhub aes 1" + ABOUT.key + ABOUT.namespace + (5000).to_bytes(8, "little") + (3).to_bytes(4, "little")
    plain = AESGCM(KEYS["KV_KEY"]).decrypt(stored[16:28], stored[28:], bound + ABOUT.layout.encode())
    assert plain == DATA and stored[:8] == b"\x01" + bytes(7)


@pytest.mark.parametrize("what", CHANGED)
def test_A30_a_payload_is_bound_to_its_chunk(what: str) -> None:
    with pytest.raises(Damaged, match="codec"):
        back(codec(), sealed(codec()), CHANGED[what])
    shorter = attrs.evolve(ABOUT, payload_bytes=4999)
    with pytest.raises(Damaged, match="codec"):
        back(codec(), sealed(codec()), shorter)


STORED_BYTES = len(DATA) + GROWTH


@pytest.mark.parametrize("at", [16, 27, 28, 2000, STORED_BYTES - 17, STORED_BYTES - 16, STORED_BYTES - 1])
def test_A30_one_flipped_bit_is_refused(at: int) -> None:
    stored = bytearray(sealed(codec()))
    stored[at] ^= 1
    with pytest.raises(Damaged, match="codec") as caught:
        back(codec(), bytes(stored))
    assert not isinstance(caught.value, Foreign)


@pytest.mark.parametrize("left", [0, 1, 27, 28, 43, 44, STORED_BYTES - 1])
def test_what_is_cut_is_refused(left: int) -> None:
    with pytest.raises(Damaged, match="codec"):
        back(codec(), sealed(codec())[:left])
    with pytest.raises(Damaged, match="codec"):
        back(codec(), sealed(codec()) + bytes(left + 1))


def test_random_bytes_are_refused() -> None:
    @given(st.binary(max_size=500), st.integers(0, 600), st.booleans())
    @settings(max_examples=200)
    def law(data: bytes, size: int, named: bool) -> None:
        stored = sealed(own)[:16] + data if named else data
        with pytest.raises((Damaged, Foreign)):
            back(own, stored, attrs.evolve(ABOUT, payload_bytes=size))

    own = codec()
    law()


def test_keys_are_rotated_without_losing_a_chunk() -> None:
    old = sealed(codec("KV_OLD"))
    assert back(codec("KV_KEY", "KV_OTHER", "KV_OLD"), old) == DATA
    new = sealed(codec("KV_KEY", "KV_OLD"))
    assert back(codec("KV_KEY"), new) == DATA
    with pytest.raises(Foreign, match="key-id"):
        back(codec("KV_KEY"), old)


def test_a_later_form_is_foreign() -> None:
    with pytest.raises(Foreign, match="form"):
        back(codec(), b"\x03" + sealed(codec())[1:])


def test_a_removed_key_is_a_miss_and_removes_nothing(files) -> None:
    """Crypto-shredding: without its key a chunk is noise, whoever has the medium; others' chunks stay readable."""
    first = files.open(Codecs(codec("KV_OLD")))
    first.keep({KEY: DATA})
    second = files.open(Codecs(codec("KV_KEY")))
    done = second.load([KEY])
    assert (done.outcomes, done.reason) == ((Outcome.MISS,), "key-id")
    assert files.counts == {"foreign_objects": 1}
    other = make_key("two")
    second.keep({other: DATA})
    both = files.open(Codecs(codec("KV_KEY", "KV_OLD")))
    assert both.read([KEY, other]) == [DATA, DATA]


def test_A30_a_plain_chunk_in_an_encrypted_store_is_not_read(files) -> None:
    """Otherwise whoever can write to the medium needs no key to put his own KV there."""
    files.open(None).keep({KEY: DATA})
    store = files.open(Codecs(codec()))
    assert store.load([KEY]).outcomes == (Outcome.MISS,)
    header = chunkfile.parse(files.read(store.member.context, KEY) or b"")
    assert header.codec == 0


def test_A30_a_chunk_under_another_s_name_is_refused_though_its_header_was_made_to_fit(files) -> None:
    """Checksums and headers can be forged by anyone; the tag cannot."""
    store = files.open(Codecs(codec()))
    other, context = make_key("two"), store.member.context
    store.keep({KEY: DATA, other: make_payload("two", 5000)})
    stolen = (files.read(context, KEY) or b"")[4096:]
    own = chunkfile.parse(files.read(context, other) or b"")
    forged = chunkfile.pack(other, context.namespace, stolen, layout=own.layout, codecs=(4,), payload_bytes=5000)
    files.write(context, other, forged + stolen)
    assert store.load([other]).outcomes == (Outcome.CORRUPT,)
    assert store.read([KEY]) == [DATA]


def test_threads_share_one_codec() -> None:
    own, wrong = codec(), list[int]()

    def work(at: int) -> None:
        data = make_payload(at, 20000)
        about = attrs.evolve(ABOUT, payload_bytes=len(data), key=make_key(at))
        wrong.extend(at for _ in range(30) if back(own, sealed(own, data, about), about) != data)

    threads = [threading.Thread(target=work, args=(at,)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  ",
        "00" * 31,
        "00" * 33,
        "zz" * 32,
        base64.b64encode(b"x" * 31).decode(),
        "not base64 at all !!!!!!!!!!!!!!",
    ],
)
def test_a_key_that_is_none_stops_the_start_and_is_not_shown(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("KV_KEY", text)
    with pytest.raises(KvhubError, match=r"codecs.secret.key: .*KV_KEY.*(openssl rand|is not shown)") as caught:
        codec()
    assert not text.strip() or text not in str(caught.value)
    monkeypatch.setenv("KV_KEY", KEYS["KV_KEY"].hex())
    monkeypatch.delenv("KV_OLD")
    with pytest.raises(KvhubError, match=r"codecs.secret.old\[0\]: the environment has no KV_OLD"):
        codec("KV_KEY", "KV_OLD")
    with pytest.raises(KvhubError, match="two of its keys are the same"):
        codec("KV_KEY", "KV_KEY")


@pytest.mark.parametrize("spelt", ["hex", "HEX", "base64", "base64url"])
def test_spellings_of_a_key(monkeypatch: pytest.MonkeyPatch, spelt: str) -> None:
    key = bytes([0xFB, 0xFF] * 16)
    texts = {"hex": key.hex(), "HEX": key.hex().upper(), "base64": base64.b64encode(key).decode()}
    texts["base64url"] = base64.urlsafe_b64encode(key).decode()
    monkeypatch.setenv("KV_SPELT", f" {texts[spelt]}\n")
    monkeypatch.setenv("KV_PLAIN", key.hex())
    assert back(codec("KV_PLAIN"), sealed(codec("KV_SPELT"))) == DATA


FILE = """\
kvhub: 1
codecs:
  secret: {use: aes, key: {env: KV_KEY}, old: [{env: KV_OLD}]}
stores:
  pool: {use: nfs, root: /mnt/kv}
roles:
  both: {store: [{to: pool, codec: secret}], retrieve: [pool]}
"""


@pytest.fixture
def registry() -> Registry:
    made = Registry()
    if not {"aes", "nfs"} <= {plugin.name for plugin in made.available()}:
        pytest.skip("the plugins are not installed here")
    return made


def test_options_name_variables_and_keys_are_never_shown(registry: Registry, tmp_path, capsys) -> None:
    path = tmp_path / "one.yaml"
    path.write_text(FILE)
    assert load(path, registry).encodings.codecs["secret"].options.old == (KeySource("KV_OLD"),)
    assert main(["check", str(path)]) == 0
    said = capsys.readouterr()
    assert "codecs.secret.key.env" in said.out and "KV_KEY" in said.out
    assert "pool: keeps chunks encoded by secret (aes, exact), and reads nothing else" in said.out
    for text in (base64.b64encode(KEYS["KV_KEY"]).decode(), KEYS["KV_OLD"].hex()):
        assert text not in said.out + said.err
    path.write_text(FILE.replace("env: KV_KEY", f"env: {base64.b64encode(KEYS['KV_KEY']).decode()}"))
    with pytest.raises(ConfigError, match=r"codecs.secret.key.env: .*expected the name of an environment") as caught:
        load(path, registry)
    assert base64.b64encode(KEYS["KV_KEY"]).decode() not in str(caught.value)
    for codec in (codec_of(path.with_name("two.yaml"), registry), AesCodec(AesConfig(KeySource("KV_KEY")), "secret")):
        assert KEYS["KV_KEY"].hex() not in repr(vars(codec)) and repr(KEYS["KV_KEY"]) not in repr(vars(codec))


def test_variables_of_keys_may_look_like_ours(registry: Registry, tmp_path) -> None:
    """`KVHUB_...` is an option's variable elsewhere; one that an option names is not, in lists either."""
    path = tmp_path / "one.yaml"
    path.write_text(FILE.replace("KV_KEY", "KVHUB_KEY").replace("KV_OLD", "KVHUB_OLD"))
    environ = {"KVHUB_KEY": "x", "KVHUB_OLD": "y"}
    assert load(path, registry, environ=environ).encodings.codecs["secret"].options.key == KeySource("KVHUB_KEY")
    with pytest.raises(ConfigError, match="environment KVHUB_OTHER: unknown variable"):
        load(path, registry, environ=environ | {"KVHUB_OTHER": "z"})


def codec_of(path, registry: Registry) -> AesCodec:
    path.write_text(FILE)
    entry = load(path, registry).encodings.codecs["secret"]
    made = entry.cls(entry.options, "secret")
    assert isinstance(made, AesCodec)
    return made


def test_inspect_tells_whether_a_file_s_keys_open_a_chunk(
    registry: Registry, files, tmp_path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = files.open(Codecs(codec("KV_OLD")))
    store.keep({KEY: DATA})
    chunk, path = files.path(store.member.context, KEY), tmp_path / "one.yaml"
    path.write_text(FILE)

    def inspect(*more: str) -> dict[str, str]:
        assert main(["inspect", str(chunk), "--json", *more]) == 0
        said = capsys.readouterr()
        assert KEYS["KV_OLD"].hex() not in said.out + said.err
        return dict(json.loads(said.out))

    assert inspect()["codec_name"] == "aes" and "decodable" not in inspect()
    assert inspect("--config", str(path))["decodable"] == "yes, by 'secret'"
    told = inspect("--header", "--config", str(path))
    assert told["decodable"].startswith("perhaps") and told["payload"] == "not read"
    path.write_text(FILE.replace(", old: [{env: KV_OLD}]", ""))
    assert inspect("--config", str(path))["decodable"] == "no: 'secret': made with another key-id"
    monkeypatch.delenv("KV_KEY")
    assert "the environment has no KV_KEY" in inspect("--config", str(path))["decodable"]
