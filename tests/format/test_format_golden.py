"""Objects of earlier releases are read by this one.  A golden file is never changed, only added to."""

from __future__ import annotations

from hashlib import sha256

import numpy as np
import pytest

from format import make_golden as made
from kvhub import chunkfile
from kvhub.codec import About, Codecs
from kvhub.layout import Layout
from kvhub.plugins import Registry
from kvhub.pool.look import check_whole
from kvhub.tail import common_tokens, kept_tokens

FROZEN = {
    "aes.kv": "612aeee273e9c6ab20081d97d02687ddc7386471f68f1f6fd33c81acfeeaaa44",
    "fp8.kv": "13bbe587f1eba35130155988ecf84e9cc826a5a7cc977f176a67bf1c70f05a5a",
    "int8-zstd.kv": "97dae3751109b0c246073148a761c2818bfd24fb2eace0f66ce6715e38100148",
    "int8.kv": "fd37f8fe7e65771130d0d5bacee93690ea787532625b185873ae03e1c705cd31",
    "raw.kv": "46e792ce31cd20b727fb4b0ed556c4df4bf3188448b49de7f8fcb6d580c749d0",
    "tail.kv": "f91a80bb58627ba6586b393597f1cb6bdba72f92bc2bf037a9181b82defa351b",
    "zstd-aes.kv": "7df850702f3129fb4456182879569443b4c3ffcf54030ccdc8aecc05add33dae",
    "zstd.kv": "4ae96f037cdc4de45f7fd4af799fa8e224088df4dcc0bd3a9e8ad826aed400f1",
}
DECODED = {
    "aes": "8212cd26",
    "fp8": "52bc6711",
    "int8": "770f9bfc",
    "int8-zstd": "58ecd2b3",
    "raw": "8212cd26",
    "zstd": "84f18e42",
    "zstd-aes": "fe06a12f",
}
"""First digits of sha256 of the payloads; of lossy codecs, too: the numbers are equal on every machine."""


def golden(name: str) -> tuple[chunkfile.Header, bytes]:
    data = (made.FOLDER / name).read_bytes()
    header = chunkfile.parse(data)
    payload = data[chunkfile.HEADER_BYTES :]
    chunkfile.check(header, header.key, made.SPACE.digest, len(data), 1 << 20, range(256))
    chunkfile.check_payload(header, payload)
    return header, payload


def test_the_files_are_what_they_were() -> None:
    found = {path.name: sha256(path.read_bytes()).hexdigest() for path in made.FOLDER.glob("*.kv")}
    assert found == FROZEN


def test_keys_and_namespace_are_what_they_were() -> None:
    """Golden here as well as in the tests of keys: a pool is of use only as long as both stay."""
    assert made.SPACE.digest.hex() == "b103c2db16356d27c82531c365bb961db4f839e9c1abfca9192087cc3727615d"
    assert made.chain().keys[0].hex() == "7d5bab1ff56ad1581ff58595857d13d511dc5a270884e02b713da6fdc8cfffb5"
    assert made.chain().tail_key(1).hex() == "b3f427ae71956c3cea962d5a054e3dbe66b9344e207fc1865f583ddd2b8fabfd"


@pytest.mark.parametrize("name", sorted(FROZEN))
def test_headers_say_what_they_said(name: str) -> None:
    header, payload = golden(name)
    own = made.chain()
    assert header.key == (own.tail_key(1) if name == "tail.kv" else own.keys[0])
    assert header.namespace == made.SPACE.digest
    assert header.generated == (6 if name == "tail.kv" else 2)
    assert (header.created_ns, header.writer) == (made.CREATED, b"golden-writer-01")
    assert header.stored_bytes == len(payload)
    assert Layout.parse(header.layout).block_tokens == 4


@pytest.mark.parametrize("name", sorted(FROZEN))
def test_housekeeping_verifies_them_without_any_codec(name: str) -> None:
    data = (made.FOLDER / name).read_bytes()
    space, key = made.SPACE.digest.hex()[:32], golden(name)[0].key.hex()
    assert check_whole(space, key, memoryview(data)).key.hex() == key
    with pytest.raises(chunkfile.Damaged, match="checksum"):
        check_whole(space, key, memoryview(data[:-1] + bytes([data[-1] ^ 1])))


def test_a_plain_chunk_is_its_payload() -> None:
    header, payload = golden("raw.kv")
    assert (header.codec, sha256(payload).hexdigest()[:8]) == (0, DECODED["raw"])
    assert header.layout == made.SMALL.text and len(payload) == made.SMALL.payload_bytes(16)


def test_a_tail_is_understood() -> None:
    header, payload = golden("tail.kv")
    layout, digests = Layout.parse(header.layout), made.chain().digests(1, 6)
    assert kept_tokens(memoryview(payload), layout) == 6
    assert common_tokens(memoryview(payload), layout, digests) == 6
    other = [*digests[:4], bytes(16)]
    assert common_tokens(memoryview(payload), layout, other) == 4


@pytest.mark.parametrize("name", sorted(made.USES))
def test_what_a_codec_stored_is_decoded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(made.KEY_VARIABLE, made.KEY_TEXT)
    plugin = made.USES[name].partition("/")[0]
    if plugin not in {found.name for found in Registry().available()}:
        pytest.skip(f"the plugin {plugin} is not installed here")
    header, payload = golden(f"{name}.kv")
    own = made.codec(name)
    assert header.codec == own.code
    room = memoryview(bytearray(header.payload_bytes))
    about = About(header.key, header.namespace, header.layout, header.payload_bytes, header.generated)
    Codecs(own).decode(header.codecs, memoryview(payload), room, about)
    assert sha256(room).hexdigest()[:8] == DECODED[name]
    if own.lossy:
        _, plain = golden("raw.kv")
        one, other = (np.frombuffer(data, "<u2").astype("<u4") << 16 for data in (plain, room))
        assert np.allclose(one.view("<f4"), other.view("<f4"), rtol=0.07, atol=0.05)


@pytest.mark.parametrize("name", sorted(made.CHAINS))
def test_what_several_codecs_stored_is_decoded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(made.KEY_VARIABLE, made.KEY_TEXT)
    plugins = {made.USES[each].partition("/")[0] for each in made.CHAINS[name]}
    if missing := plugins - {found.name for found in Registry().available()}:
        pytest.skip(f"these plugins are not installed here: {', '.join(missing)}")
    header, payload = golden(f"{name}.kv")
    codecs = [made.codec(each) for each in made.CHAINS[name]]
    assert (header.codec, header.codecs) == (5, tuple(codec.code for codec in codecs))
    assert header.tenant == made.TENANT and len(header.between) == 1
    room = memoryview(bytearray(header.payload_bytes))
    about = About(header.key, header.namespace, header.layout, room.nbytes, header.generated, header.tenant)
    Codecs((), codecs).decode(header.codecs, memoryview(payload), room, about, header.between)
    assert sha256(room).hexdigest()[:8] == DECODED[name]


def test_files_from_before_there_were_tags_name_no_tenant() -> None:
    assert [golden(name)[0].tenant for name in ("raw.kv", "tail.kv", "aes.kv")] == [b""] * 3
