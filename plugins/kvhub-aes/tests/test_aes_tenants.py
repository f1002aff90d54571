"""Keys of tenants: who is encrypted with what, and what is left when a key goes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import attrs
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from kvhub import ConfigError, KvhubError, chunkfile
from kvhub.codec import About, Codecs
from kvhub.config import load
from kvhub.errors import Damaged, Foreign
from kvhub.keys import Context
from kvhub.plugins import Registry
from kvhub.testing.region import make_key, make_payload
from kvhub.types import Outcome
from kvhub_aes import AesCodec, AesConfig, KeySource, tenants
from kvhub_aes.tenants import TenantKeys

ANNA, BERT, CARL = (Context(salt=salt).tenant for salt in ("anna", "bert", "carl"))
COMMON, OLD, OF_ANNA, OF_BERT, NEWER = (bytes([number]) * 32 for number in (1, 2, 3, 4, 5))
DATA = make_payload("one", 5000)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KV_KEY", COMMON.hex())
    monkeypatch.setenv("KV_OLD", OLD.hex())
    monkeypatch.setattr(tenants, "LOOK_SECONDS", 0.0)


@pytest.fixture
def listed(tmp_path: Path):
    """Write the list of keys; the options that name it."""
    path = tmp_path / "tenants.json"

    def listed(keys: dict[bytes, bytes | list[bytes]], **more: object) -> AesCodec:
        plain = {
            tag.hex(): value.hex() if isinstance(value, bytes) else [each.hex() for each in value]
            for tag, value in keys.items()
        }
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(plain))
        fresh.rename(path)
        return codec(file=path, **more)

    return listed


def codec(*, key: str = "KV_KEY", old: tuple[str, ...] = (), **where: object) -> AesCodec:
    given = TenantKeys(**where) if where else None  # type: ignore[arg-type]
    return AesCodec(AesConfig(KeySource(key), tuple(map(KeySource, old)), given), "secret")


def about(tenant: bytes, size: int = len(DATA)) -> About:
    return About(make_key("one"), bytes(range(32)), "layout", size, 3, tenant)


def sealed(own: AesCodec, tenant: bytes) -> bytes:
    return bytes(own.encode(memoryview(DATA), about(tenant)))


def opened(own: AesCodec, stored: bytes, tenant: bytes) -> bytes:
    room = bytearray(len(DATA))
    Codecs(own).decode((4,), memoryview(stored), memoryview(room), about(tenant))
    return bytes(room)


def test_each_tenant_is_encrypted_with_its_own_key_by_the_page(listed) -> None:
    own = listed({ANNA: OF_ANNA, BERT: OF_BERT})
    for tenant, key in ((ANNA, OF_ANNA), (BERT, OF_BERT), (b"", COMMON)):
        stored = sealed(own, tenant)
        bound = b"kvhub aes 2" + make_key("one") + bytes(range(32)) + len(DATA).to_bytes(8, "little")
        bound += (3).to_bytes(4, "little") + tenant.ljust(16, b"\0") + b"\0" + b"layout"
        assert AESGCM(key).decrypt(stored[16:28], stored[28:], bound) == DATA
        assert opened(own, stored, tenant) == DATA
    assert len({sealed(own, tenant)[8:16] for tenant in (ANNA, BERT, b"")}) == 3


def test_a_derived_key_is_hkdf_of_the_common_one() -> None:
    own = codec(derive=True)
    stored = sealed(own, ANNA)
    derived = HKDF(SHA256(), 32, salt=b"kvhub aes tenant 1", info=ANNA).derive(COMMON)
    bound = b"kvhub aes 2" + make_key("one") + bytes(range(32)) + len(DATA).to_bytes(8, "little")
    bound += (3).to_bytes(4, "little") + ANNA + b"\0" + b"layout"
    assert AESGCM(derived).decrypt(stored[16:28], stored[28:], bound) == DATA
    assert opened(codec(derive=True), stored, ANNA) == DATA
    rotated = codec(key="KV_OLD", old=("KV_KEY",), derive=True)
    assert opened(rotated, stored, ANNA) == DATA and sealed(rotated, ANNA)[8:16] != stored[8:16]
    with pytest.raises(Foreign, match="key-id"):
        opened(codec(key="KV_OLD", derive=True), stored, ANNA)


def test_A30_a_chunk_under_another_tenant_s_tag_is_refused(listed) -> None:
    """Also where both have the same key, as by mistake."""
    own = listed({ANNA: OF_ANNA, BERT: OF_ANNA})
    with pytest.raises(Damaged, match="codec"):
        opened(own, sealed(own, ANNA), BERT)
    derived = codec(derive=True)
    with pytest.raises(Foreign, match="key-id"):
        opened(derived, sealed(derived, ANNA), BERT)


def test_a_tenant_without_a_key_is_not_stored_least_of_all_with_another_s(listed) -> None:
    own = listed({ANNA: OF_ANNA, BERT: []})
    for tenant in (BERT, CARL):
        with pytest.raises(Foreign, match="no-key"):
            sealed(own, tenant)
    both = listed({ANNA: OF_ANNA, BERT: []}, derive=True)
    with pytest.raises(Foreign, match="no-key"):
        sealed(both, BERT)
    assert opened(codec(derive=True), sealed(both, CARL), CARL) == DATA, "who is not listed has a derived key"
    assert AESGCM(OF_ANNA) and sealed(both, ANNA)[8:16] == sealed(own, ANNA)[8:16]


def test_one_tenant_s_key_is_rotated_while_the_hub_runs(listed) -> None:
    own = listed({ANNA: OF_ANNA, BERT: OF_BERT})
    before, other = sealed(own, ANNA), sealed(own, BERT)
    listed({ANNA: [NEWER, OF_ANNA], BERT: OF_BERT})
    after = sealed(own, ANNA)
    assert after[8:16] != before[8:16] and sealed(own, BERT)[8:16] == other[8:16]
    assert opened(own, before, ANNA) == opened(own, after, ANNA) == DATA
    listed({ANNA: NEWER, BERT: OF_BERT})
    with pytest.raises(Foreign, match="key-id"):
        opened(own, before, ANNA)
    assert opened(own, after, ANNA) == opened(own, other, BERT) == DATA


def test_a_tenant_s_key_that_goes_makes_exactly_its_chunks_misses(files, listed) -> None:
    """Crypto-shredding: the files stay, whole, as noise; nobody else's chunk is touched."""
    store = files.open(Codecs(listed({ANNA: OF_ANNA, BERT: OF_BERT})))
    chunks = {
        tenant: {make_key((tenant, at)): make_payload((tenant, at), 3000) for at in range(4)}
        for tenant in (ANNA, BERT, b"")
    }
    for tenant, kept in chunks.items():
        assert set(store.save(kept, tenant=tenant).outcomes) == {Outcome.DONE}
        header = chunkfile.parse(files.read(store.member.context, next(iter(kept))) or b"")
        assert header.tenant == tenant
    for kept in chunks.values():
        assert store.read([*kept]) == [*kept.values()]
    listed({BERT: OF_BERT})
    store.load([*chunks[ANNA]][:1])  # one worker alone: beside it others would still use the keys that it replaces
    assert store.read([*chunks[ANNA]]) == [None] * 4
    assert store.load([*chunks[ANNA]]).reason == "key-id"
    assert store.read([*chunks[BERT]]) == [*chunks[BERT].values()]
    assert store.read([*chunks[b""]]) == [*chunks[b""].values()]
    assert (
        "integrity_errors" not in files.counts and files.path(store.member.context, next(iter(chunks[ANNA]))).exists()
    )
    done = store.save({make_key("new"): DATA}, tenant=ANNA)
    assert (done.outcomes, done.reason) == ((Outcome.MISS,), "no-key")
    listed({ANNA: OF_ANNA, BERT: OF_BERT})
    store.load([*chunks[ANNA]][:1])
    assert store.read([*chunks[ANNA]]) == [*chunks[ANNA].values()]


def test_chunks_from_before_tenants_had_keys_stay_readable(listed) -> None:
    stored = sealed(codec(), ANNA)
    assert stored[0] == 1, "older releases read it"
    assert opened(listed({ANNA: OF_ANNA}), stored, ANNA) == opened(codec(derive=True), stored, ANNA) == DATA


def test_a_list_that_breaks_while_the_hub_runs_leaves_the_keys_as_they_were(listed, tmp_path: Path, caplog) -> None:
    own = listed({ANNA: OF_ANNA})
    stored = sealed(own, ANNA)
    path = tmp_path / "tenants.json"
    path.write_text('{"broken')
    assert opened(own, stored, ANNA) == DATA and sealed(own, ANNA)[8:16] == stored[8:16]
    path.unlink()
    assert opened(own, stored, ANNA) == DATA
    assert "holds no list of keys" in caplog.text and "cannot be read" in caplog.text and "broken" not in caplog.text


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "holds no list of keys"),
        ("[]", "holds no list of keys"),
        (json.dumps({"anna": OF_ANNA.hex()}), "expected tags of 32 hex digits"),
        (json.dumps({ANNA.hex(): 5}), "expected a key or a list of keys"),
        (json.dumps({ANNA.hex(): [OF_ANNA.hex(), 5]}), "expected a key or a list of keys"),
        (json.dumps({ANNA.hex(): "sesame"}), "holds no key"),
    ],
)
@pytest.mark.parametrize("place", ["file", "env"])
def test_a_list_that_is_none_stops_the_start_and_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str, text: str, told: str
) -> None:
    monkeypatch.setenv("KV_TENANTS", text)
    path = tmp_path / "tenants.json"
    path.write_text(text)
    with pytest.raises(KvhubError, match=rf"codecs.secret.tenants.{place}: .*{told}") as caught:
        codec(**{place: path if place == "file" else "KV_TENANTS"})
    assert OF_ANNA.hex() not in str(caught.value) and "sesame" not in str(caught.value)


def test_a_variable_may_have_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KV_TENANTS", json.dumps({ANNA.hex(): OF_ANNA.hex()}))
    assert sealed(codec(env="KV_TENANTS"), ANNA)[0] == 2
    with pytest.raises(KvhubError, match="cannot be read: No such file"):
        codec(file=Path("/nonexistent/tenants.json"))
    assert os.environ["KV_TENANTS"]


def test_behind_a_codec_a_payload_is_bound_to_that(listed) -> None:
    own = codec()
    inside = attrs.evolve(about(b""), encoded=(1,))
    stored = bytes(own.encode(memoryview(DATA), inside))
    room = bytearray(len(DATA))
    own.decode(memoryview(stored), memoryview(room), inside)
    assert bytes(room) == DATA and stored[0] == 2
    for wrong in (about(b""), attrs.evolve(inside, encoded=(2,)), attrs.evolve(inside, encoded=(1, 1))):
        with pytest.raises(Damaged, match="codec"):
            Codecs(own)._decode(4, memoryview(stored), memoryview(room), wrong)
    with pytest.raises(Damaged, match="codec"):
        Codecs(own)._decode(4, memoryview(sealed(own, b"")), memoryview(room), inside)


FILE = """\
kvhub: 1
codecs:
  secret: {use: aes, key: {env: KV_KEY}, tenants: TENANTS}
stores:
  pool: {use: nfs, root: /mnt/kv}
roles:
  both: {store: [{to: pool, codec: secret}], retrieve: [pool]}
"""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{}", "says nothing of where tenants' keys are"),
        ("{file: /a, env: B}", "file or env, not both"),
        ("{derive: 5}", "expected true or false"),
        ("{env: two words}", "expected the name of an environment variable"),
        ("{fiel: /a}", "did you mean 'file'"),
    ],
)
def test_options_that_make_no_sense(tmp_path: Path, text: str, told: str) -> None:
    registry = Registry()
    if not {"aes", "nfs"} <= {plugin.name for plugin in registry.available()}:
        pytest.skip("the plugins are not installed here")
    path = tmp_path / "kv.yaml"
    path.write_text(FILE.replace("TENANTS", "{file: /run/secrets/kv.json, derive: true}"))
    given = load(path, registry).encodings.codecs["secret"].options.tenants
    assert given == TenantKeys(file=Path("/run/secrets/kv.json"), derive=True)
    path.write_text(FILE.replace("TENANTS", text))
    with pytest.raises(ConfigError, match=f"codecs.secret.tenants.*{told}"):
        load(path, registry)
